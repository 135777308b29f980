"""Allowed operators with arguments that mean harm, in a real device child with little memory.

Each is refused at load, fails at load, or fails the request that asked for it; the child lives and
a healthy model beside it keeps giving right answers.
"""

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpumuxd.domain import OutcomeKind
from gpumuxd.errors import InvalidModel
from gpumuxd.models import plan as plans
from gpumuxd.models.pt2 import Artifact
from gpumuxd.programs.model import ServedModel
from gpumuxd.units import MIB
from gpumuxd.wire.frames import ModelFailed, ModelLoaded, ModelReleased
from tests.device.support import SETTINGS, DeviceChild, read_artifact
from tests.models import archives
from tests.models.archives import BATCH_EXPRESSION, argument, meta, node, tensor

MEMORY_BYTES = 64 * MIB
HUGE = 1 << 40
Json = dict[str, Any]


@pytest.fixture(scope="module")
def child() -> Iterator[DeviceChild]:
    limit = SETTINGS.arena_bytes + MEMORY_BYTES
    settings = replace(SETTINGS, scheduler=replace(SETTINGS.scheduler, memory_bytes_max=limit))
    with DeviceChild(settings) as child:
        child.wait_started()
        yield child
        assert child.stop()[0] == 0


def call(operator: str, result: str, *values: Json, **keywords: Json) -> Json:
    inputs = [argument(f"a{i}", value) for i, value in enumerate(values)]
    inputs += [argument(name, value, kind=2) for name, value in keywords.items()]
    return node(operator, inputs, result)


def size_of_x(dim: int, result: str) -> Json:
    made = call("sym_size.int", result, tensor("x"), {"as_int": dim})
    made["outputs"] = [{"as_sym_int": {"as_name": result}}]
    return made


def ints(*values: int) -> Json:
    return {"as_ints": list(values)}


def integer(value: int) -> Json:
    return {"as_int": value}


def archive(*nodes: Json, batch_max: int = 4096) -> bytes:
    """`y` is what the last node returns; inputs are `x` [batch, 4], weights `w` [3, 4], `b` [3]."""
    graph = archives.good_graph()
    inner = graph["graph_module"]["graph"]
    inner["nodes"] = list(nodes)
    inner["tensor_values"]["y"] = meta(BATCH_EXPRESSION, 4)
    graph["range_constraints"]["s0"]["max_val"] = batch_max
    return archives.archive(archives.members(graph=graph)).getvalue()


X, W, B = tensor("x"), tensor("w"), tensor("b")
INDEX = call("full.default", "i", ints(2), integer(HUGE), dtype={"as_scalar_type": 5})
BEFORE = call("full.default", "i", ints(2), integer(-5), dtype={"as_scalar_type": 5})
I = tensor("i")  # noqa: E741
TWO = call("zeros.default", "t", ints(2, 4))
T = tensor("t")

FAIL_AT_LOAD: list[tuple[str, list[Json]]] = [
    # Memory
    ("repeat", [call("repeat.default", "y", X, ints(HUGE, HUGE))]),
    ("expand and clone", [call("expand.default", "e", X, ints(HUGE, 1, 4)),
                          call("clone.default", "y", tensor("e"))]),
    ("zeros", [call("zeros.default", "y", ints(HUGE))]),
    ("zeros whose bytes wrap", [call("zeros.default", "y", ints(1 << 62, 4))]),
    ("full of a negative size", [call("full.default", "y", ints(-4), integer(1))]),
    ("arange", [call("arange.default", "y", integer(HUGE))]),
    ("linspace", [call("linspace.default", "y", integer(0), integer(1), integer(HUGE))]),
    ("pad", [call("constant_pad_nd.default", "y", X, ints(HUGE, HUGE))]),
    ("pad of 2^62", [call("constant_pad_nd.default", "y", X, ints(1 << 62, 1 << 62))]),
    ("matmul of what is broadcast", [
        call("zeros.default", "z", ints(1, 1)),
        call("expand.default", "e", tensor("z"), ints(1 << 18, 1)),
        call("expand.default", "f", tensor("z"), ints(1, 1 << 18)),
        call("matmul.default", "y", tensor("e"), tensor("f"))]),
    ("outer", [call("arange.default", "l", integer(1 << 18)),
               call("outer.default", "y", tensor("l"), tensor("l"))]),
    ("one_hot", [INDEX, call("one_hot.default", "y", I, integer(HUGE))]),
    ("cat of many", [call("zeros.default", "z", ints(1 << 22)),
                     call("cat.default", "y", {"as_tensors": [{"name": "z"}] * 200})]),
    ("unfold", [call("unfold.default", "y", X, integer(0), integer(HUGE), integer(1))]),
    ("upsample", [call("unsqueeze.default", "u", X, integer(0)),
                  call("unsqueeze.default", "v", tensor("u"), integer(0)),
                  call("upsample_nearest2d.vec", "y", tensor("v"), ints(HUGE, HUGE),
                       {"as_none": True})]),
    # Places outside
    ("embedding", [INDEX, call("embedding.default", "y", W, I)]),
    ("embedding before", [BEFORE, call("embedding.default", "y", W, I)]),
    ("index_select", [INDEX, call("index_select.default", "y", W, integer(0), I)]),
    ("index", [INDEX, call("index.Tensor", "y", W, {"as_optional_tensors": [I]})]),
    ("take", [INDEX, call("take.default", "y", W, I)]),
    ("take before", [call("full.default", "i", ints(2), integer(-50),
                          dtype={"as_scalar_type": 5}), call("take.default", "y", W, I)]),
    ("gather", [INDEX, call("gather.default", "y", B, integer(0), I)]),
    ("scatter", [INDEX, call("scatter.value", "y", B, integer(0), I, integer(1))]),
    ("index_add", [INDEX, TWO, call("index_add.default", "y", W, integer(0), I, T)]),
    ("index_put", [INDEX, TWO, call("index_put.default", "y", W,
                                    {"as_optional_tensors": [I]}, T)]),
    ("select", [call("select.int", "y", X, integer(1), integer(HUGE))]),
    ("narrow", [call("narrow.default", "y", X, integer(1), integer(-1), integer(HUGE))]),
    ("dimension of 2^62", [call("sum.dim_IntList", "y", X, ints(1 << 62))]),
    ("top 2^62", [call("topk.default", "y", X, integer(1 << 62))]),
    ("view of another size", [call("view.default", "y", X, ints(-1, HUGE))]),
    ("split by 0", [call("split.Tensor", "y", X, integer(0))]),
    # What is no argument of theirs
    ("string for a tensor", [call("relu.default", "y", {"as_string": "x"})]),
    ("tensor for a list", [call("repeat.default", "y", X, X)]),
    ("too many arguments", [call("relu.default", "y", *[X] * 9)]),
    ("too few", [call("matmul.default", "y", X)]),
    ("out=", [call("add.Tensor", "y", X, X, out=W)]),
    ("generator", [call("clone.default", "y", X, generator=integer(1))]),
    ("an unknown keyword", [call("relu.default", "y", X, __class__=integer(1))]),
    ("a type that is a number", [call("to.dtype", "y", X, integer(-1))]),
    ("a type of 2^40", [call("zeros.default", "y", ints(4), dtype=integer(HUGE))]),
    ("a layout that is a number", [call("zeros.default", "y", ints(4), layout=integer(99))]),
    ("a format that is a number", [call("clone.default", "y", X, memory_format=integer(99))]),
    ("a type from a size", [size_of_x(0, "n"), call("zeros.default", "y", ints(4),
                            dtype={"as_sym_int": {"as_name": "n"}})]),
    ("integers that grow", [size_of_x(0, "n"), *[
        {"target": "_operator.mul", "metadata": {},
         "inputs": [argument("a", {"as_sym_int": {"as_name": f"n{'n' * i}"[:i + 1]}}),
                    argument("b", {"as_sym_int": {"as_int": HUGE}})],
         "outputs": [{"as_sym_int": {"as_name": "n" * (i + 2)}}]} for i in range(4)],
        call("zeros.default", "y", {"as_sym_ints": [{"as_name": "nnnnn"}]})]),
]  # fmt: skip


@pytest.mark.parametrize("nodes", [pytest.param(nodes, id=what) for what, nodes in FAIL_AT_LOAD])
def test_refused_or_failed_at_load(nodes: list[Json], child: DeviceChild, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(archive(*nodes))
    try:
        artifact = read_artifact(path)
    except InvalidModel:
        return
    child.send_load(artifact, "bad/1")
    answer = child.expect_either(ModelFailed, ModelLoaded)
    assert isinstance(answer, ModelFailed), answer
    assert 20 < len(answer.reason) < 600


def test_a_healthy_model_is_served_after_all_that(child: DeviceChild, tmp_path: Path) -> None:
    check_healthy(child, tmp_path)


def check_healthy(child: DeviceChild, folder: Path) -> None:
    path = folder / "healthy.pt2"
    path.write_bytes(archives.archive(archives.members()).getvalue())
    child.load(read_artifact(path), "healthy/1")
    (y,) = child.infer("healthy/1", {"x": torch.ones(2, 4)})
    assert torch.equal(y, torch.tensor([[6.5, 23.5, 40.5]] * 2))
    child.unload("healthy/1")
    child.expect(ModelReleased)


def grows(make: Callable[[Json], Json]) -> list[Json]:
    """Harmless for the rows that a load measures, and huge for many."""
    return [
        size_of_x(0, "n"),
        make({"as_name": "n"}),
        call("sum.default", "q", tensor("r")),
        call("add.Tensor", "y", X, tensor("q")),
    ]


ROWS = 1024
ELEMENTS = 1024
"""In each of the squares of rows: 4 GiB in all. A frame is expected to grow with the rows and
not with their square, so that the request is admitted."""

FAIL_AT_REQUEST: list[tuple[str, list[Json]]] = [
    ("zeros", grows(lambda n: call("zeros.default", "r",
                                   {"as_sym_ints": [n, n, {"as_int": ELEMENTS}]}))),
    ("repeat", grows(lambda n: call("repeat.default", "r", B,
                                    {"as_sym_ints": [n, n, {"as_int": ELEMENTS // 3}]}))),
]  # fmt: skip


@pytest.mark.parametrize("nodes", [pytest.param(n, id=what) for what, n in FAIL_AT_REQUEST])
def test_a_request_that_takes_all_memory_fails_alone(
    nodes: list[Json], child: DeviceChild, tmp_path: Path
) -> None:
    reason = r"can't allocate memory: you tried to allocate \d+ bytes"
    check_fails_alone(nodes, ROWS, OutcomeKind.MODEL_FAULTED, reason, child, tmp_path)


def test_a_request_that_would_take_all_memory_is_not_run(
    child: DeviceChild, tmp_path: Path
) -> None:
    row_bytes = 4 * MIB
    nodes = grows(
        lambda n: call("zeros.default", "r", {"as_sym_ints": [n, {"as_int": row_bytes // 4}]})
    )
    rows = 2 * MEMORY_BYTES // row_bytes
    reason = "a frame of model 'm/1' needs"
    check_fails_alone(nodes, rows, OutcomeKind.OUT_OF_DEVICE_MEMORY, reason, child, tmp_path)


def check_fails_alone(
    nodes: list[Json],
    rows: int,
    kind: OutcomeKind,
    reason: str,
    child: DeviceChild,
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(archive(*nodes))
    child.load(read_artifact(path), "m/1")
    submit = child.submit("m/1", {"x": torch.ones(rows, 4)})
    outcome = child.finish(submit).outcome
    child.free(submit)
    assert outcome.kind is kind
    assert re.search(reason, outcome.reason)
    (y,) = child.infer("m/1", {"x": torch.ones(1, 4)})
    assert y.shape == (1, 4), "the same model with a request that fits"
    child.unload("m/1")
    child.expect(ModelReleased)
    check_healthy(child, tmp_path)


def test_the_archives_above_are_well_formed() -> None:
    """Or what is refused would say nothing of operators."""
    data = archive(call("relu.default", "y", X))
    assert len(Artifact(io.BytesIO(data)).plan.nodes) == 1


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(("unbind.int", [integer(0)]), id="unbind"),
        pytest.param(("split.Tensor", [integer(1)]), id="split"),
        pytest.param(("chunk.default", [integer(1 << 20)]), id="chunk"),
        pytest.param(("tensor_split.sections", [integer(1 << 20)]), id="tensor_split"),
    ],
)
def test_a_tensor_in_a_million_pieces_is_refused(cut: tuple[str, list[Json]]) -> None:
    """They would be made under the GIL, with the device loop standing still."""
    operator, values = cut
    pieces = call(operator, "p", tensor("z"), *values)
    pieces["outputs"] = [{"as_tensors": [{"name": "p"}, {"name": "q"}]}]
    nodes = [call("zeros.default", "z", ints(5000)), pieces, call("relu.default", "y", tensor("q"))]
    plan = plans.encode(Artifact(io.BytesIO(archive(*nodes))).plan)
    program = ServedModel.open(plan, memoryview(bytearray(256))).node_program()
    slots = program.start([torch.ones(1, 4)])
    program.groups[0](slots)
    with pytest.raises(ValueError, match="at most 4096 are allowed"):
        program.groups[1](slots)


IMAGE = [  # x [batch, 4] as one image of one channel, `v`
    call("unsqueeze.default", "u", X, integer(0)),
    call("unsqueeze.default", "v", tensor("u"), integer(0)),
]
V, NONE = tensor("v"), {"as_none": True}
KERNEL = call("zeros.default", "k", ints(1, 1, 1, 1))
K = tensor("k")
BYTES = call("to.dtype", "b8", V, {"as_scalar_type": 1})
GRID = call("zeros.default", "g", ints(1, 2, 2, 2))


def fl(value: float) -> Json:
    return {"as_float": value}


def boolean(value: bool) -> Json:
    return {"as_bool": value}


OUT_OF_BOUNDS: list[tuple[str, str, list[Json]]] = [
    ("padding", "padding must be from", [KERNEL, call(
        "conv2d.default", "y", V, K, NONE, ints(1, 1), ints(1 << 61, 1 << 61))]),
    ("stride", "stride must be from", [KERNEL, call(
        "convolution.default", "y", V, K, NONE, ints(HUGE, 1), ints(0, 0), ints(1, 1),
        boolean(False), ints(0, 0), integer(1))]),
    ("dilation", "dilation must be from", [KERNEL, call(
        "conv2d.padding", "y", V, K, NONE, ints(1, 1), {"as_string": "same"}, ints(1 << 61, 1))]),
    ("transposed", "padding must be from", [KERNEL, call(
        "conv_transpose2d.input", "y", V, K, NONE, ints(1, 1), ints(1 << 61, 1 << 61))]),
    ("pool", "kernel_size must be from", [call("max_pool2d.default", "y", V, ints(1 << 40, 1))]),
    ("im2col", "dilation must be from", [call(
        "im2col.default", "y", V, ints(1, 1), ints(1 << 61, 1), ints(0, 0), ints(1, 1))]),
    ("pad", "pad must be from", [call("constant_pad_nd.default", "y", X, ints(1 << 62, -1 << 62))]),
    ("roll", "shifts must be from", [call("roll.default", "y", X, ints(1 << 62))]),
    ("window", "window_length must be from", [call("hann_window.default", "y", integer(HUGE))]),
    ("fft", "n must be from", [call("fft_rfft.default", "y", X, integer(1 << 62))]),
    *[(f"scale {scale}", "scales_h must be from", [BYTES, call(
        "upsample_bicubic2d.default", "y", tensor("b8"), ints(2, 4), boolean(False), fl(scale),
        fl(1.0))]) for scale in (1e-300, 1e-20, 0.0, -1.0, 1e300)],
    *[(f"scales {scale}", "scale_factors must be from", [call(
        "upsample_nearest2d.vec", "y", V, NONE, {"as_floats": [1.0, scale]})])
      for scale in (1e-20, 1e20)],
    *[(f"grid {mode} {padding}", "_mode must be one of 0, 1, 2", [GRID, call(
        "grid_sampler.default", "y", V, tensor("g"), integer(mode), integer(padding),
        boolean(False))]) for mode, padding in ((3, 0), (-1, 0), (0, 3), (0, -1), (HUGE, 0))],
    ("a mode that depends on sizes", "interpolation_mode must be one of", [
        GRID, size_of_x(0, "n"), call(
            "grid_sampler_2d.default", "y", V, tensor("g"), {"as_sym_int": {"as_name": "n"}},
            integer(0), boolean(False))]),
    ("a mode that a volume has not", "interpolation_mode must be one of 0, 1, ", [
        call("grid_sampler_3d.default", "y", V, V, integer(2), integer(0), boolean(False))]),
    ("bags", "mode must be one of", [call(
        "embedding_bag.padding_idx", "y", W, B, B, boolean(False), integer(3))]),
    ("a weight for a number", "padding must be from", [KERNEL, call(
        "conv2d.default", "y", V, K, NONE, ints(1, 1), {"as_tensors": [{"name": "b"}] * 2})]),
    ("a variance without a mean", "running_var must be one of none", [call(
        "instance_norm.default", "y", V, NONE, NONE, NONE, B, boolean(True), fl(0.1), fl(1e-5),
        boolean(False))]),
]  # fmt: skip


def served(*nodes: Json) -> ServedModel:
    plan = plans.encode(Artifact(io.BytesIO(archive(*nodes))).plan)
    return ServedModel.open(plan, memoryview(bytearray(256)))


@pytest.mark.parametrize(
    ("said", "nodes"), [pytest.param(said, nodes, id=what) for what, said, nodes in OUT_OF_BOUNDS]
)
def test_numbers_that_torch_does_not_look_at_are_refused(said: str, nodes: list[Json]) -> None:
    with pytest.raises(InvalidModel, match=said):
        served(*IMAGE, *nodes)


def test_a_number_that_a_request_makes_too_large_is_refused_in_the_call() -> None:
    """Of 1 row it is a padding, of 2 one that would overflow."""
    grown: Json = {
        "target": "_operator.pow", "metadata": {},
        "inputs": [argument("a", {"as_sym_int": {"as_name": "n"}}),
                   argument("b", {"as_sym_int": {"as_int": 61}})],
        "outputs": [{"as_sym_int": {"as_name": "p"}}],
    }  # fmt: skip
    padded = {"as_sym_ints": [{"as_int": 0}, {"as_name": "p"}]}
    model = served(
        *IMAGE, KERNEL, size_of_x(0, "n"), grown,
        call("conv2d.default", "y", V, K, NONE, ints(1, 1), padded),
    )  # fmt: skip
    program = model.node_program()
    for rows, is_refused in ((1, False), (2, True)):
        slots = program.start([torch.ones(rows, 4)])
        for group in program.groups[:-1]:
            group(slots)
        if is_refused:
            with pytest.raises(ValueError, match="padding must be from"):
                program.groups[-1](slots)
        else:
            program.groups[-1](slots)
            assert program.outputs(slots)[0].shape == (1, 1, 1, 6)


def test_a_tensor_does_not_pass_for_a_number() -> None:
    one = call("full.default", "t1", ints(1), integer(1 << 61), dtype={"as_scalar_type": 5})
    padded = {"as_tensors": [{"name": "t1"}, {"name": "t1"}]}
    program = served(
        *IMAGE, KERNEL, one, call("conv2d.default", "y", V, K, NONE, ints(1, 1), padded)
    ).node_program()
    slots = program.start([torch.ones(1, 4)])
    for group in program.groups[:-1]:
        group(slots)
    with pytest.raises(ValueError, match="padding must be from"):
        program.groups[-1](slots)


NAMES: list[tuple[str, list[Json]]] = [
    ("gelu", [call("gelu.default", "y", X, approximate={"as_string": "xx"})]),
    ("div", [call("div.Tensor_mode", "y", X, X, rounding_mode={"as_string": "xx"})]),
    ("pad", [call("pad.default", "y", X, ints(1, 1), {"as_string": "xx"})]),
    ("conv", [KERNEL, call("conv2d.padding", "y", V, K, NONE, ints(1, 1), {"as_string": "xx"})]),
    ("fft", [call("fft_rfft.default", "y", X, NONE, integer(-1), {"as_string": "xx"})]),
    ("meshgrid", [call("meshgrid.indexing", "y", {"as_tensors": [{"name": "b"}]},
                       indexing={"as_string": "xx"})]),
    ("scatter_reduce", [INDEX, call("scatter_reduce.two", "y", B, integer(0), I, B,
                                    {"as_string": "xx"})]),
]  # fmt: skip


@pytest.mark.parametrize("nodes", [pytest.param(nodes, id=what) for what, nodes in NAMES])
def test_torch_says_which_names_of_modes_there_are_not(nodes: list[Json]) -> None:
    """So they need no table of ours. An operator that took any name would show it here."""
    program = served(*IMAGE, *nodes).node_program()
    slots = program.start([torch.ones(1, 4)])
    for group in program.groups[:-1]:
        group(slots)
    with pytest.raises((RuntimeError, ValueError)):
        program.groups[-1](slots)
