"""A spec from a loader is foreign data: one that could break validation is refused."""

import msgspec
import pytest

from gpumuxd.errors import InvalidModel
from gpumuxd.models.spec import ModelSpec, Size, Symbol, TensorSpec
from gpumuxd.node.spec_check import check_spec

GOOD = ModelSpec(
    inputs=(TensorSpec("x", "FP32", (("batch",), 2)),),
    outputs=(TensorSpec("y", "FP32", (("batch", 2, "*"),)),),
    symbols=(Symbol("batch", 0, 8),),
    batch_symbol="batch",
)


def x(datatype: str = "FP32", shape: tuple[Size, ...] = (("batch",), 2), name: str = "x"):
    return (TensorSpec(name, datatype, shape),)


def test_a_good_spec() -> None:
    check_spec(GOOD)
    check_spec(msgspec.structs.replace(GOOD, conditions=(("batch", 5, "!="),)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": ()}, "expected 1 to 256 inputs and outputs"),
        ({"inputs": x() * 300}, "expected 1 to 256"),
        ({"inputs": x() * 2}, "two tensors of one name"),
        ({"inputs": x("BYTES")}, "datatype 'BYTES' is not served"),
        ({"inputs": x(name="")}, "a tensor name of 0 characters"),
        ({"inputs": x(shape=(("batch",),) * 17)}, "over 16 dimensions"),
        ({"symbols": (Symbol("batch", 2, 1),)}, "no range"),
        ({"symbols": (Symbol("batch", -1, 1),)}, "no range"),
        ({"symbols": (Symbol("batch", 2, 5, 2),)}, "ends are no multiples"),
        ({"symbols": (Symbol("batch", 1, 4, 2),)}, "ends are no multiples"),
        ({"symbols": (Symbol("batch", 0, 4, 0),)}, "ends are no multiples"),
        ({"symbols": (Symbol("batch", 0, 1), Symbol("batch", 0, 1))}, "two dynamic dimensions"),
        ({"batch_symbol": "rows"}, "'rows' is not among"),
        ({"inputs": x(shape=(("batch", 1, "+"),))}, "no input has dimension 'batch' by itself"),
        ({"outputs": x(shape=(("other",),))}, "does not evaluate"),
        ({"outputs": x(shape=((1, 0, "//"),))}, "does not evaluate"),
        ({"outputs": x(shape=((),))}, "does not evaluate"),
        ({"outputs": x(shape=(("batch", 9, "-"),))}, "shape"),
        ({"outputs": x(shape=(2**30, 2**30))}, "over .* bytes"),
        ({"conditions": (("other", 1, "!="),)}, "a condition on .'other'."),
        ({"conditions": ((1,),)}, "a condition on .., dynamic dimensions are .'batch'."),
        ({"conditions": (("batch", "!="),)}, "makes no sense"),
        ({"conditions": (("batch", "!="),) * 4097}, "conditions of over 8192 terms"),
    ],
)
def test_a_bad_spec(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        check_spec(msgspec.structs.replace(GOOD, **change))
