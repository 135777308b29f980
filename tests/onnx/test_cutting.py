"""Where ONNX graphs are cut, what a sub-model takes and gives, and how sizes are explained."""

import numpy as np
import pytest
import torch
from onnx import helper

from gpumuxd.programs.onnx_cutter import Cutter, cut_costs, live_counts, units
from gpumuxd.programs.onnx_fit import common_multiple, fit_axis, fit_size
from gpumuxd.programs.onnx_model import OnnxModel
from gpumuxd.programs.segmenter import cut_where_narrow
from tests.onnx.support import info, largest_difference, layers, model, opened, read, run, whole

X = np.linspace(-1, 1, 3 * 32, dtype=np.float32).reshape(3, 32)


@pytest.mark.parametrize(
    ("node_ns", "widths", "target", "cuts"),
    [
        ([1, 1, 1, 1], [9, 9, 9, 9], 4, [4]),
        ([5, 5], [1, 1], 4, [1, 2]),
        ([1, 1, 1, 1, 1, 1], [1, 1, 1, 9, 1, 1], 4, [3, 6]),  # the narrowest of those long enough
        ([1, 1, 1, 1, 1, 1], [0, 1, 2, 2, 2, 2], 4, [4, 6]),  # two units are too short
        ([3, 3, 3], [1, 1, 1], 7, [2, 3]),
    ],
)
def test_cuts_are_where_few_values_cross(
    node_ns: list[int], widths: list[int], target: int, cuts: list[int]
) -> None:
    assert cut_where_narrow(node_ns, target, widths) == cuts


def test_live_values_are_handed_over_and_dropped_after_their_last_use() -> None:
    plan = read(layers(3)).plan
    assert live_counts(plan) == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    first, second = Cutter(plan).cut([4, len(plan.nodes)])
    names = [value.name for value in plan.values]
    assert [names[value] for value in first.reads] == ["x"]
    assert [names[value] for value in second.reads] == ["m1", "x"]
    assert first.clears == (), "x is read again"
    assert [names[value] for value in second.clears] == ["m1", "x"]


def test_units_begin_with_heavy_work_and_a_residual_is_kept_with_its_convolution() -> None:
    def conv(x: str, y: str) -> object:
        return helper.make_node("Conv", [x, "w"], [y], kernel_shape=[1, 1])

    nodes = [
        *(conv("x", "a"), helper.make_node("Relu", ["a"], ["b"])),
        *(conv("b", "c"), helper.make_node("Relu", ["c"], ["d"]), conv("d", "e")),
        *(helper.make_node("Add", ["e", "b"], ["f"]), conv("f", "y")),
    ]
    shape = ["n", 4, 8, 8]
    made = model(
        nodes,
        [info("x", shape)],
        [info("y", shape)],
        [helper.make_tensor("w", 1, [4, 4, 1, 1], np.ones(16))],
    )
    plan = read(made).plan
    assert units(plan) == [6, 7]
    assert [cost >= 8 for cost in cut_costs(plan)] == [False] * 2 + [True] * 3 + [False] * 3


@pytest.mark.parametrize("cuts", [[4], [1, 2, 3, 4], [2, 4]])
def test_any_grouping_gives_what_the_whole_gives(cuts: list[int]) -> None:
    made = layers(4)
    model_ = opened(read(made))
    assert model_.node_count == 4
    got = run(model_.grouped_program(cuts), model_.spec, [X])
    expected = whole(made.SerializeToString(), model_.spec, [X])
    assert largest_difference(got, expected) <= 1e-6


@pytest.mark.parametrize(
    ("axis", "tokens"),
    [
        ({1: 1, 2: 2, 7: 7}, ("s",)),
        ({1: 3, 2: 6, 5: 15}, ("s", 3, "*")),
        ({64: 8, 65: 8, 69: 9, 128: 16, 1024: 128}, ("s", 3, "+", 8, "//")),
        ({32: 21, 64: 42, 96: 63}, ("s", 21, "*", 32, "//")),
        ({10: 8, 11: 9, 20: 18}, ("s", 2, "-")),
        ({1: 1, 2: 4, 3: 9, 4: 16}, None),
    ],
)
def test_a_size_is_explained(axis: dict[int, int], tokens: object) -> None:
    assert fit_axis("s", axis) == tokens


def test_sizes_of_two_symbols_multiply_or_add_and_are_proved_elsewhere() -> None:
    def samples(of: object) -> dict[tuple[int, ...], int]:
        grid = [(4, 4), (8, 4), (12, 4), (4, 8), (4, 12), (8, 12), (20, 8)]
        return {sizes: of(*sizes) for sizes in grid}  # type: ignore[operator]  # a function

    names = ("h", "w")
    assert fit_size(names, (4, 4), samples(lambda h, w: 7)) == 7
    assert fit_size(names, (4, 4), samples(lambda h, w: w)) == ("w",)
    product = fit_size(names, (4, 4), samples(lambda h, w: h * w // 4))
    assert product == ("h", "w", "*", 4, "//")
    assert fit_size(names, (4, 4), samples(lambda h, w: h + w)) is not None
    assert fit_size(names, (4, 4), samples(lambda h, w: max(h, w))) is None


@pytest.mark.parametrize(
    ("base", "accepted", "refused", "multiple"),
    [
        (64, [64, 96, 128], [65, 66, 68, 72, 80], 32),
        (64, [64, 63, 96], [65, 66, 80], 32),
        (64, [64, 66, 68], [65, 67], 2),
        (64, [64, 65, 66], [1], 1),  # too small is no matter of multiples
        (64, [64, 65], [], 1),
    ],
)
def test_multiples(base: int, accepted: list[int], refused: list[int], multiple: int) -> None:
    assert common_multiple(base, accepted, refused) == multiple


def test_a_group_enters_one_session_where_its_units_entered_many() -> None:
    """Units of 1.15 ms are of 1 ms in a group: eight are as long as the target, and not six."""
    model_ = opened(read(layers(16)))
    assert model_.node_count == 16
    assert model_.cut_by_time([1_150_000] * 16, 1) == [8, 16]
    assert model_.cut_by_time([40_000] * 16, 1) == [16], "no unit is shorter than nothing"


def two_outputs() -> OnnxModel:
    """x -> (a, b), two values of one session; a is read at once, b at the end, x is an output."""
    nodes = [
        *(helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Neg", ["a"], ["b"])),
        *(
            helper.make_node("MatMul", ["a", "w"], ["c"]),
            helper.make_node("Add", ["c", "b"], ["y"]),
        ),
    ]
    eye = helper.make_tensor("w", 1, [4, 4], np.eye(4, dtype=np.float32).ravel())
    shape = ["n", 4]
    outputs = [info("y", shape), info("b", shape)]
    return opened(read(model(nodes, [info("x", shape)], outputs, [eye])))


def test_a_frame_counts_what_its_vectors_keep_and_gives_results_that_outlive_it() -> None:
    model_ = two_outputs()
    program = model_.grouped_program([1, 2])
    x = torch.arange(8, dtype=torch.float32).reshape(2, 4)
    slots = program.start([x])
    assert program.bytes_held(slots) == x.nbytes
    program.groups[0](slots)
    assert program.bytes_held(slots) == 2 * x.nbytes, "a and b; x is read by nobody any more"
    program.groups[1](slots)
    assert program.bytes_held(slots) == 3 * x.nbytes, "a is in one vector with b, an output"
    y, b = program.outputs(slots)
    del slots
    assert y.tolist() == (x - x).tolist()
    assert b.tolist() == (-x).tolist()


def test_two_frames_of_one_program_do_not_share_values() -> None:
    program = two_outputs().grouped_program([1, 2])
    first, second = (program.start([torch.full((1, 4), value)]) for value in (1.0, 2.0))
    for group in program.groups:
        group(first)
        group(second)
    assert program.outputs(first)[1].tolist() == [[-1.0] * 4]
    assert program.outputs(second)[1].tolist() == [[-2.0] * 4]
