"""Validation: every kind of bad call next to a good one, and what the messages say."""

import dataclasses

import pytest

from gpumuxd.domain import PriorityClass
from gpumuxd.errors import InvalidModel, InvalidRequest, PermissionDenied
from gpumuxd.models.spec import ModelSpec, Size, Symbol, TensorSpec
from gpumuxd.node.api import InferCall, InputTensor, Tenant
from gpumuxd.node.validation import FITS_KEPT_MAX, CallChecker, Fit, check_priority

SPEC = ModelSpec(
    inputs=(
        TensorSpec("ids", "INT64", (("batch",), ("length",))),
        TensorSpec("mask", "BOOL", (("batch",), ("length",))),
        TensorSpec("scale", "FP32", ()),
        TensorSpec("fixed", "UINT8", (2, 3)),
    ),
    outputs=(
        TensorSpec("out", "FP32", (("batch",), ("length", 2, "*"))),
        TensorSpec("sum", "FP32", (("batch",),)),
    ),
    symbols=(Symbol("batch", 1, 8), Symbol("length", 0, 16)),
    batch_symbol="batch",
)


def tensors(batch: int = 2, length: int = 3) -> dict[str, InputTensor]:
    return {
        "ids": InputTensor("ids", "INT64", (batch, length), bytes(8 * batch * length)),
        "mask": InputTensor("mask", "BOOL", (batch, length), b"\1" * batch * length),
        "scale": InputTensor("scale", "FP32", (), bytes(4)),
        "fixed": InputTensor("fixed", "UINT8", (2, 3), memoryview(b"\xff" * 6)),
    }


def make_call(inputs: list[InputTensor], wanted: tuple[str, ...] = ()) -> InferCall:
    return InferCall(Tenant("t"), "m", "", 0, None, 0, inputs, wanted)


def check_call(spec: ModelSpec, call: InferCall, rows_max: int | None = None) -> Fit:
    return CallChecker(spec, rows_max).check(call).fit


def test_a_good_call_in_any_order() -> None:
    call = make_call(list(reversed(tensors().values())))
    checked, data = CallChecker(SPEC).check(call)
    assert [t.spec.name for t in checked.inputs] == ["ids", "mask", "scale", "fixed"]
    assert data == tuple(tensor.data for tensor in tensors().values())
    assert checked.bucket == (2, 4)
    assert checked.rows == 2
    assert [(t.shape, t.size_bytes) for t in checked.outputs] == [((2, 6), 48), ((2,), 8)]
    assert checked.wanted == (0, 1)
    assert checked.input_bytes == 48 + 6 + 4 + 6
    assert checked.output_bytes == 56


def test_zero_size_is_good_where_the_range_has_a_zero() -> None:
    checked = check_call(SPEC, make_call(list(tensors(length=0).values())))
    assert checked.bucket == (2, 0)
    assert checked.inputs[0].size_bytes == 0
    with pytest.raises(InvalidRequest, match="'ids': expected batch of 1 to 8, got 0"):
        check_call(SPEC, make_call(list(tensors(batch=0).values())))


def odd_spec(shape: tuple[Size, ...], symbols: str = "n") -> ModelSpec:
    """One input with these dynamic dimensions, one output of a shape that a stranger declared."""
    return ModelSpec(
        inputs=(TensorSpec("x", "UINT8", tuple((name,) for name in symbols)),),
        outputs=(TensorSpec("y", "FP32", shape),),
        symbols=tuple(Symbol(name, 0, 2**31) for name in symbols),
    )


@pytest.mark.parametrize(
    ("shape", "n", "error", "told"),
    [
        # n * n - 10 n + 20, which is positive at both ends of a range of 1 to 9
        ((("n", "n", "*", 10, "n", "*", "-", 20, "+"),), 5, InvalidModel, "'y'.*declares .-5. for"),
        ((("n", 10, "-"), ("n", 10, "-")), 5, InvalidModel, "'y'.*declares .-5, -5. for sizes"),
        ((1, ("n", 5, "-"), 1), 4, InvalidModel, "'y'.*declares .1, -1, 1. for sizes"),
        ((("n", 2**40, "*"),), 2, InvalidRequest, "'y': shape .2199023255552. is over"),
        ((0, ("n", 2**100, "*")), 2, InvalidModel, "does not fit 64 bits"),
        ((("n", 7, "n", 5, "-", "//", "*"),), 5, InvalidModel, "does not evaluate"),
    ],
)
def test_a_declared_output_that_makes_no_sense_of_a_size_in_between_is_refused(
    shape: tuple[Size, ...], n: int, error: type[Exception], told: str
) -> None:
    checker = CallChecker(odd_spec(shape))
    with pytest.raises(error, match=told):
        checker.check(make_call([InputTensor("x", "UINT8", (n,), bytes(n))]))


def test_an_empty_input_has_strides_too() -> None:
    checker = CallChecker(odd_spec((1,), "abc"))
    checker.check(make_call([InputTensor("x", "UINT8", (0, 2**20, 2**20), b"")]))
    with pytest.raises(InvalidRequest, match=r"'x': shape .0, 2147483648, 2147483648. is over"):
        checker.check(make_call([InputTensor("x", "UINT8", (0, 2**31, 2**31), b"")]))


@pytest.mark.parametrize(
    ("wanted", "positions"),
    [((), (0, 1)), (("sum",), (1,)), (("sum", "out"), (1, 0)), (("sum", "sum"), (1,))],
)
def test_outputs_wanted(wanted: tuple[str, ...], positions: tuple[int, ...]) -> None:
    assert check_call(SPEC, make_call(list(tensors().values()), wanted)).wanted == positions


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ids", {"datatype": "INT32"}, "'ids': expected datatype INT64, got 'INT32'"),
        ("ids", {"shape": (6,)}, r"'ids': expected 2 dimensions \[batch, length\], got 1: \[6\]"),
        ("ids", {"shape": (2, -3)}, "'ids': expected sizes of 0 or more .* got -3"),
        ("ids", {"shape": (2, 2**63)}, "'ids': expected sizes of 0 or more"),
        ("ids", {"shape": (2, 17)}, "'ids': expected length of 0 to 16, got 17"),
        ("ids", {"shape": (9, 3)}, "'ids': expected batch of 1 to 8, got 9"),
        ("ids", {"shape": (2**62, 3)}, "'ids': expected batch of 1 to 8"),
        ("ids", {"data": b""}, r"'ids': expected 48 bytes for INT64 \[2, 3\], got 0"),
        ("ids", {"data": bytes(49)}, "'ids': expected 48 bytes .* got 49"),
        ("mask", {"shape": (3, 2)}, r"'mask': expected shape \[2, 3\] .* got \[3, 2\]"),
        ("mask", {"data": b"\2" * 6}, "'mask': expected BOOL bytes of 0 or 1"),
        ("scale", {"shape": (1,)}, r"'scale': expected 0 dimensions \[\], got 1"),
        ("scale", {"data": bytes(8)}, r"'scale': expected 4 bytes for FP32 \[\], got 8"),
        ("fixed", {"shape": (3, 2)}, r"'fixed': expected shape \[2, 3\]"),
        ("fixed", {"shape": ()}, "'fixed': expected 2 dimensions .* got 0"),
        ("fixed", {"datatype": "BYTES"}, "expected datatype UINT8, got 'BYTES'"),
    ],
)
def test_a_wrong_tensor(name: str, change: dict[str, object], message: str) -> None:
    checker = CallChecker(SPEC)
    for _ in range(2):  # what is remembered of good calls makes no bad one good, nor does a bad one
        given = tensors()
        given[name] = dataclasses.replace(given[name], **change)
        with pytest.raises(InvalidRequest, match=message):
            checker.check(make_call(list(given.values())))
        checker.check(make_call(list(tensors().values())))


def test_a_form_is_worked_out_once_and_not_kept_for_ever() -> None:
    spec = ModelSpec((TensorSpec("x", "UINT8", (("n",),)),), (), (Symbol("n", 1, 1000),))
    checker = CallChecker(spec)

    def check(size: int) -> Fit:
        return checker.check(make_call([InputTensor("x", "UINT8", (size,), bytes(size))])).fit

    first = check(1)
    assert check(1) is first
    assert check(2).input_bytes == 2
    for size in range(3, FITS_KEPT_MAX + 2):
        check(size)
    assert check(1) is not first
    assert check(1) == first


def test_missing_extra_and_repeated_inputs() -> None:
    given = tensors()
    with pytest.raises(InvalidRequest, match=r"missing input \['fixed'\]; expected inputs \['ids"):
        check_call(SPEC, make_call([t for t in given.values() if t.name != "fixed"]))
    extra = dataclasses.replace(given["ids"], name="other")
    with pytest.raises(InvalidRequest, match="unknown input 'other'; expected inputs"):
        check_call(SPEC, make_call([*given.values(), extra]))
    with pytest.raises(InvalidRequest, match="input 'ids' came twice"):
        check_call(SPEC, make_call([*given.values(), given["ids"]]))
    with pytest.raises(InvalidRequest, match=r"missing input \['ids', 'mask'"):
        check_call(SPEC, make_call([]))


def test_an_unknown_output() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown output 'x'; the model has \['out', 'sum'\]"):
        check_call(SPEC, make_call(list(tensors().values()), ("x",)))


def test_the_manifest_may_allow_fewer_rows() -> None:
    call = make_call(list(tensors(batch=2).values()))
    check_call(SPEC, call, rows_max=2)
    with pytest.raises(InvalidRequest, match="expected at most 1 rows in a request, got 2"):
        check_call(SPEC, call, rows_max=1)


@pytest.mark.parametrize("field", ["name", "datatype", "shape"])
def test_a_message_is_short_whatever_came(field: str) -> None:
    huge = {"name": "n" * 100_000, "datatype": "d" * 100_000, "shape": (1,) * 100_000}[field]
    given = tensors()
    given["ids"] = dataclasses.replace(given["ids"], **{field: huge})
    with pytest.raises(InvalidRequest) as caught:
        check_call(SPEC, make_call(list(given.values())))
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    # default and ceiling of the tenant, class the model was loaded for, priority asked, class
    ("default", "ceiling", "model_max", "asked", "expected"),
    [
        (2, "STANDARD", "REALTIME", 0, "STANDARD"),
        (2, "STANDARD", "REALTIME", 2, "STANDARD"),
        (2, "STANDARD", "REALTIME", 3, "BEST_EFFORT"),
        (2, "STANDARD", "REALTIME", 2**31, "BEST_EFFORT"),
        (2, "STANDARD", "REALTIME", 1, PermissionDenied),
        (1, "REALTIME", "REALTIME", 0, "REALTIME"),
        (1, "REALTIME", "BEST_EFFORT", 0, "BEST_EFFORT"),
        (1, "REALTIME", "BEST_EFFORT", 2, PermissionDenied),
        (3, "BEST_EFFORT", "REALTIME", 0, "BEST_EFFORT"),
        (3, "BEST_EFFORT", "REALTIME", 2, PermissionDenied),
        (2, "STANDARD", "REALTIME", -1, InvalidRequest),
        (2, "STANDARD", "REALTIME", -(10**500), InvalidRequest),
    ],
)
def test_priority(
    default: int, ceiling: str, model_max: str, asked: int, expected: str | type[Exception]
) -> None:
    tenant = Tenant("t", default, PriorityClass[ceiling])
    if isinstance(expected, str):
        assert check_priority(tenant, asked, PriorityClass[model_max]) is PriorityClass[expected]
    else:
        with pytest.raises(expected) as caught:
            check_priority(tenant, asked, PriorityClass[model_max])
        assert len(str(caught.value)) < 300
