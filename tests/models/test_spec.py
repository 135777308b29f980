"""Dimensions that must be multiples: what a request may send, and which bucket it runs in."""

import pytest

from gpumuxd.errors import InvalidRequest
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec

SIDES = (("batch",), ("side",))


def spec(symbol: Symbol) -> ModelSpec:
    tensors = (TensorSpec("x", "FP32", SIDES),)
    return ModelSpec(tensors, tensors, (Symbol("batch", 1, 8), symbol), "batch")


@pytest.mark.parametrize(
    ("size", "refused"),
    [
        (32,  None),
        (96,  None),
        (0,   "side of 32 to 96, got 0"),
        (48,  "side to be a multiple of 32, got 48"),
        (33,  "side to be a multiple of 32, got 33"),
        (128, "side of 32 to 96, got 128"),
    ],
)  # fmt: skip
def test_requests(size: int, refused: str | None) -> None:
    of = spec(Symbol("side", 32, 96, 32))
    if refused is None:
        assert of.bind({"x": (2, size)}) == {"batch": 2, "side": size}
        return
    with pytest.raises(InvalidRequest, match=refused):
        of.bind({"x": (2, size)})


@pytest.mark.parametrize(
    ("multiple", "maximum", "size", "bucket"),
    [
        # of the model    sent  runs in
        (1,    100,       9,    16),
        (1,    100,       90,   100),
        (14,   1022,      14,   14),
        (14,   1022,      70,   112),
        (14,   1022,      1022, 1022),
        (32,   1024,      96,   128),
        (96,   480,       288,  384),
        (96,   480,       480,  480),
    ],
)  # fmt: skip
def test_a_bucket_is_a_size_that_can_be_run(
    multiple: int, maximum: int, size: int, bucket: int
) -> None:
    of = spec(Symbol("side", multiple, maximum, multiple))
    assert of.bucket({"batch": 3, "side": size}) == (4, bucket)
    assert of.bucket(of.bind({"x": (4, bucket)})) == (4, bucket)
