"""Served models: mapped weights, profile buckets, example inputs."""

import gc
import mmap
import os

import msgspec
import pytest
import torch

from gpumuxd.errors import InvalidModel
from gpumuxd.models import plan as plans
from gpumuxd.models.plan import WeightEntry
from gpumuxd.models.pt2 import Artifact
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.programs.model import ServedModel
from gpumuxd.wire.process import map_sealed, sealed_memfd
from tests.programs.conftest import Exported
from tests.programs.networks import open_artifact
from tests.programs.test_program import CHAIN, serve


def test_weights_are_views_of_a_sealed_mapping(exported: Exported) -> None:
    module, path = exported("forms")
    with path.open("rb") as file:
        artifact = Artifact(file)
        fd = sealed_memfd("weights", lambda out: artifact.write_weights(out.write))
    mapped = map_sealed(fd)
    assert isinstance(mapped, mmap.mmap)
    model = ServedModel.open(plans.encode(artifact.plan), mapped)
    weights = model.bindings.weights
    start = weights[0].untyped_storage().data_ptr()
    assert all(w.untyped_storage().data_ptr() == start for w in weights), "nothing was copied"
    assert all(w.data_ptr() % w.element_size() == 0 for w in weights)
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    strided = named["strided"]
    (ours,) = [w for w in weights if w.shape == strided.shape]
    assert ours.stride() == strided.stride() == (1, 5)
    assert torch.equal(ours, strided)


def test_a_mapping_can_be_closed_as_soon_as_its_programs_are_gone(
    exported: Exported,
) -> None:
    """Without a garbage collection, which would hold a serving device up."""
    _, path = exported("forms")
    with path.open("rb") as file:
        artifact = Artifact(file)
        fd = sealed_memfd("weights", lambda out: artifact.write_weights(out.write))
    mapped = map_sealed(fd)
    os.close(fd)
    gc.disable()
    try:
        model = ServedModel.open(plans.encode(artifact.plan), memoryview(mapped))
        program = model.node_program()
        slots = program.start(model.example_inputs(model.profile_buckets(1)[0]))
        for group in program.groups[:3]:  # some are compiled by that, the others never are
            group(slots)
        del model, program, slots, group
        mapped.close()  # BufferError while anything holds a weight
    finally:
        gc.enable()


def test_writable_memory_of_the_right_size_is_demanded() -> None:
    plan = plans.encode(CHAIN)
    with pytest.raises(InvalidModel, match="64 bytes of weights, got 64 that are read-only"):
        ServedModel.open(plan, memoryview(bytes(64)))
    with pytest.raises(InvalidModel, match="64 bytes of weights, got 63"):
        ServedModel.open(plan, memoryview(bytearray(63)))


def test_empty_and_scalar_weights() -> None:
    entries = (WeightEntry(64, "FP32", (0, 3), (3, 1)), WeightEntry(8, "INT64", (), ()))
    model = serve(msgspec.structs.replace(CHAIN, weights=(*CHAIN.weights, *entries)), bytes(16))
    empty, scalar = model.bindings.weights[1:]
    assert empty.shape == (0, 3)
    assert scalar.shape == ()
    assert scalar.item() == 0


N = (("n",), 3)


def spec(*symbols: Symbol, shape: tuple[int | tuple[str, ...], ...] = N) -> ModelSpec:
    tensors = (TensorSpec("x", "FP32", shape),)
    return ModelSpec(tensors, tensors, symbols, "n" if symbols else None)


def buckets(of: ModelSpec, hints: tuple[int, ...], batch_max: int) -> list[tuple[int, ...]]:
    plan = msgspec.structs.replace(CHAIN, spec=of, size_hints=hints)
    return serve(plan).profile_buckets(batch_max)


@pytest.mark.parametrize(
    ("minimum", "maximum", "batch_max", "batches"),
    [
        # of the model      asked   measured
        (1, 64,             8,      [1, 2, 4, 8]),
        (1, 64,             1,      [1]),
        (1, 64,             5,      [1, 2, 4]),
        (1, 6,              8,      [1, 2, 4, 6]),
        (1, 6,              6,      [1, 2, 4, 6]),
        (1, 1,              8,      [1]),
        (2, 64,             8,      [2, 4, 8]),
        (3, 64,             8,      [4, 8]),
        (16, 64,            8,      [16]),
    ],
)  # fmt: skip
def test_batches_to_profile(minimum: int, maximum: int, batch_max: int, batches: list[int]) -> None:
    assert buckets(spec(Symbol("n", minimum, maximum)), (2,), batch_max) == [(b,) for b in batches]


def test_other_sizes_are_those_of_the_example_rounded_to_a_bucket() -> None:
    of = spec(Symbol("n", 1, 4), Symbol("t", 2, 100), shape=(("n",), ("t",)))
    assert buckets(of, (2, 9), 2) == [(1, 16), (2, 16)]
    assert buckets(of, (2, 90), 2) == [(1, 100), (2, 100)]
    assert buckets(of, (2, 1), 1) == [(1, 2)]


def test_batches_that_must_be_multiples() -> None:
    assert buckets(spec(Symbol("n", 3, 60, 3)), (6,), 15) == [(3,), (6,), (12,)]
    assert buckets(spec(Symbol("n", 6, 18, 6)), (6,), 18) == [(6,), (12,), (18,)]
    assert buckets(spec(Symbol("n", 12, 60, 6)), (6,), 8) == [(12,)]


def test_sizes_that_a_condition_excludes_are_not_measured() -> None:
    of = msgspec.structs.replace(spec(Symbol("n", 1, 64)), conditions=(("n", 4, "!="),))
    assert buckets(of, (3,), 8) == [(1,), (2,), (8,)]
    odd = msgspec.structs.replace(of, conditions=(("n", 2, "%", 1, "=="), ("n", 1, "!=")))
    assert buckets(odd, (3,), 8) == [(3,)], "as in the example"


def test_a_model_without_batch_or_symbols_has_one_bucket() -> None:
    assert buckets(spec(shape=(3, 4)), (), 8) == [()]


def test_example_inputs_run(exported: Exported) -> None:
    for name in ("forms", "speech", "bert"):
        model = open_artifact(exported(name)[1])
        program = model.node_program()
        for bucket in model.profile_buckets(4):
            inputs = model.example_inputs(bucket)
            shapes = {t.name: list(i.shape) for t, i in zip(model.spec.inputs, inputs, strict=True)}
            assert model.spec.bucket(model.spec.bind(shapes)) == bucket
            with torch.inference_mode():
                slots = program.start(inputs)
                for group in program.groups:
                    group(slots)
            assert program.outputs(slots)[0].shape[0] > 0


def test_example_values() -> None:
    kinds = ("FP16", "INT32", "BOOL")
    inputs = tuple(TensorSpec(kind, kind, (("n",), 2)) for kind in kinds)
    relu = plans.Node("aten.relu.default", (plans.Slot(0),), (), (3,), False, ())
    plan = msgspec.structs.replace(
        CHAIN,
        spec=ModelSpec(inputs, CHAIN.spec.outputs, CHAIN.spec.symbols, "n"),
        nodes=(relu,),
        outputs=(plans.Slot(3),),
    )
    examples = serve(plan).example_inputs((3,))
    assert [list(example.shape) for example in examples] == [[3, 2]] * 3
    assert [example.dtype for example in examples] == [torch.float16, torch.int32, torch.bool]
    half, integer, flag = (example.unique().item() for example in examples)
    assert 0 < half < 1
    assert integer == 0
    assert flag is True
