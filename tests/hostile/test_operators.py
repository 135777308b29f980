"""Allowed operators with arguments that mean harm, in a real device child with little memory.

Each is refused at load, fails at load, or fails the request that asked for it; the child lives and
a healthy model beside it keeps giving right answers.
"""

import io
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpumuxd.device.confinement import MEMORY_RESERVE_BYTES
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


ROW_BYTES = 4 * MIB
FAIL_AT_REQUEST: list[tuple[str, list[Json]]] = [
    ("zeros", grows(lambda n: call("zeros.default", "r",
                                   {"as_sym_ints": [n, {"as_int": ROW_BYTES // 4}]}))),
    ("repeat", grows(lambda n: call("repeat.default", "r", B,
                                    {"as_sym_ints": [n, {"as_int": ROW_BYTES // 12}]}))),
    ("pad", grows(lambda n: call("constant_pad_nd.default", "r", X,
                                 {"as_sym_ints": [{"as_int": 0}, {"as_int": 1 << 20}]}))),
]  # fmt: skip


@pytest.mark.parametrize("nodes", [pytest.param(n, id=what) for what, n in FAIL_AT_REQUEST])
def test_a_request_that_takes_all_memory_fails_alone(
    nodes: list[Json], child: DeviceChild, tmp_path: Path
) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(archive(*nodes))
    child.load(read_artifact(path), "m/1")
    rows = 2 * math.ceil((MEMORY_BYTES + MEMORY_RESERVE_BYTES) / ROW_BYTES)
    submit = child.submit("m/1", {"x": torch.ones(rows, 4)})
    outcome = child.finish(submit).outcome
    child.free(submit)
    assert outcome.kind is OutcomeKind.MODEL_FAULTED
    assert re.search(r"can't allocate memory: you tried to allocate \d+ bytes", outcome.reason)
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
