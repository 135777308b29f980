"""Guards of torch.export are parsed as data, and hold for every request or refuse it."""

import dataclasses

import pytest

from gpumuxd.errors import InvalidModel, InvalidRequest
from gpumuxd.models.guards import with_guards
from gpumuxd.models.limits import DEFAULT_LIMITS, ReadLimits
from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.spec import Condition, ModelSpec, Symbol, TensorSpec
from tests.models.archives import archive, good_graph, members

SPEC = ModelSpec(
    (TensorSpec("image", "FP32", (("batch",), 3, ("height",))), TensorSpec("m.x", "FP32", (2,))),
    (TensorSpec("y", "FP32", (("batch",),)),),
    (Symbol("batch", 1, 64), Symbol("height", 32, 640, 32)),
    "batch",
)
B, H = "L['image'].size()[0]", "L['image'].size()[2]"


def guarded(*guards: str, limits: ReadLimits = DEFAULT_LIMITS) -> ModelSpec:
    return with_guards(SPEC, guards, ["image", "m_x"], [("image",), ("m", "x")], limits)


@pytest.mark.parametrize(
    ("guard", "conditions"),
    [
        (f"{B} == {B}",                                    ()),
        (f"({H} // 32) == ({H} // 32)",                    ()),
        ("L['m']['x'].size()[0] == 2",                     ()),
        (f"{B} != 5",                                      (("batch", 5, "!="),)),
        (f"5 != {B}",                                      ((5, "batch", "!="),)),
        (f"({H} // 32) != 25",                             (("height", 32, "//", 25, "!="),)),
        (f"((-1) + {B}) % 2 == 0",
         ((1, "neg", "batch", "+", 2, "%", 0, "=="),)),
        (f"max(1, {B} // 4, 3) < {H}*2",
         ((1, "batch", 4, "//", "max", 3, "max", "height", 2, "*", "<"),)),
        (f"min(1, {B} / 4) >= 0.25",
         ((1, "batch", 4, "/", "min", 0.25, ">="),)),
        (f"math.floor({B} / 2) > 0",                       (("batch", 2, "/", "floor", 0, ">"),)),
        (f"not ({B} == 3 or {B} == 4 and True)",
         (("batch", 3, "==", "batch", 4, "==", True, "and", "or", "not"),)),
        (f"torch.sym_float({B}) ** 2 != torch._sym_sqrt({H})",
         (("batch", "float", 2, "**", "height", "sqrt", "!="),)),
    ],
)  # fmt: skip
def test_what_no_range_can_say_is_a_condition(
    guard: str, conditions: tuple[Condition, ...]
) -> None:
    spec = guarded(guard, guard)
    assert spec.conditions == conditions
    assert spec.symbols == SPEC.symbols


@pytest.mark.parametrize(
    ("guard", "batch", "height"),
    [
        (f"{B} != 1",     (2, 64), (32, 640)),
        (f"64 != {B}",    (1, 63), (32, 640)),
        (f"{B} != 65",    (1, 64), (32, 640)),
        (f"{B} < 30",     (1, 29), (32, 640)),
        (f"{B} <= 30",    (1, 30), (32, 640)),
        (f"{B} > 3",      (4, 64), (32, 640)),
        (f"3 <= {B}",     (3, 64), (32, 640)),
        (f"{B} == 7",     (7, 7),  (32, 640)),
        (f"{H} != 32",    (1, 64), (64, 640)),
        (f"{H} > 33",     (1, 64), (64, 640)),
        (f"600 >= {H}",   (1, 64), (32, 576)),
    ],
)  # fmt: skip
def test_what_a_range_can_say_narrows_it(
    guard: str, batch: tuple[int, int], height: tuple[int, int]
) -> None:
    spec = guarded(guard)
    assert spec.conditions == ()
    assert spec.symbols == (Symbol("batch", *batch), Symbol("height", *height, 32))


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        (f"{B} < 1",                                "'batch' has no size that the guards allow"),
        ("L['m']['x'].size()[0] != 2",              "holds at no size"),
        ("L['m']['x'].size()[0] % 0 == 0",          "holds at no size"),
        ("L['other'].size()[0] == 2",               "can't be checked"),
        ("L['m'].size()[0] == 2",                   "can't be checked"),
        ("L['image'].size()[9] == 2",               "can't be checked"),
        ("L['image'].stride()[0] == 2",             "can't be checked"),
        ("L[__import__('os')].size()[0] == 2",      "can't be checked"),
        ("__import__('os').system('touch /tmp/x')", "can't be checked"),
        (f"[{B}, 1][0] == 2",                       "can't be checked"),
        (f"1 < {B} < 4",                            "can't be checked"),
        (f"{B} == '2'",                             "can't be checked"),
        (f"{B} << 3 == 8",                          "can't be checked"),
        (f"abs({B}) == {1 << 70}",                  "can't be checked"),
        (f"math.exp({B}) == 1",                     "can't be checked"),
        (f"{B} ==",                                 "can't be checked"),
        ("(" * 400 + B + ")" * 400,                 "can't be checked"),
        (" + ".join([B] * 150) + " == 2",           "can't be checked"),
        ("1" * 5000,                                "expression_chars_max"),
    ],
)  # fmt: skip
def test_what_can_not_be_checked_refuses_the_model(guard: str, said: str) -> None:
    with pytest.raises(InvalidModel, match=said):
        guarded(guard)


def test_all_conditions_together_have_a_limit() -> None:
    limits = dataclasses.replace(DEFAULT_LIMITS, condition_tokens_max=6)
    assert len(guarded(f"{B} != 5", f"{B} != 6", limits=limits).conditions) == 2
    with pytest.raises(InvalidModel, match="condition_tokens_max"):
        guarded(f"{B} != 5", f"{B} != 6", f"{B} != 7", limits=limits)


@pytest.mark.parametrize(
    ("paths", "graph_name", "source"),
    [
        (None,            "pair_0",     "L['pair'][0]"),
        (None,            "x_a_b",      "L['X']['a b']"),
        ([("more_0",)],   "more_0",     "L['more'][0]"),  # of *more
        ([("d", "f")],    "d_f",        "L['d'].f"),
        ([("d", "f")],    "other",      "L['d']['f']"),
    ],
)  # fmt: skip
def test_inputs_are_found_by_place_or_by_the_name_in_the_graph(
    paths: list[tuple[str, ...]] | None, graph_name: str, source: str
) -> None:
    tensor = TensorSpec("x", "FP32", (("n",),))
    spec = ModelSpec((tensor,), (tensor,), (Symbol("n", 1, 9),))
    read = with_guards(spec, [f"{source}.size()[0] != 5"], [graph_name], paths, DEFAULT_LIMITS)
    assert read.conditions == (("n", 5, "!="),)


def test_a_request_that_does_not_fulfil_one_is_told_so() -> None:
    spec = guarded(f"{B} != 5", f"{B} % ({H} // 32 - 2) != 0")
    assert spec.bind({"image": (7, 3, 32 * 5), "m.x": (2,)}) == {"batch": 7, "height": 160}
    for batch, height, said in (
        (5, 160, "input 'image': the model takes no batch of 5; it was exported for batch != 5"),
        (6, 160, "takes no batch of 6, height of 160; it was exported for batch % "),
        (6, 64, "takes no batch of 6, height of 64"),  # divides by zero
    ):
        with pytest.raises(InvalidRequest) as caught:
            spec.bind({"image": (batch, 3, height), "m.x": (2,)})
        assert said in caught.value.message


def test_an_archive_is_read_with_its_guards() -> None:
    graph = good_graph()
    graph["guards_code"] = ["L['x'].size()[0] != 5", "L['x'].size()[0] < 40"]
    spec = Artifact(archive(members(graph))).plan.spec
    assert spec.conditions == (("batch", 5, "!="),)
    assert spec.symbols == (Symbol("batch", 1, 39),)
