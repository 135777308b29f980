"""Which requests may share a run: those with equal keys, and never one without."""

from gpumuxd.models.batching_policy import BatchingPolicy, Pad
from gpumuxd.models.spec import ModelSpec, Symbol, TensorSpec
from gpumuxd.node.api import InferCall, InputTensor, Tenant
from gpumuxd.node.validation import CallChecker

SPEC = ModelSpec(
    inputs=(
        TensorSpec("ids", "INT64", (("batch",), ("length",))),
        TensorSpec("side", "INT64", (("batch",), ("width",))),
    ),
    outputs=(TensorSpec("out", "INT64", (("batch",),)),),
    symbols=(Symbol("batch", 0, 16), Symbol("length", 1, 16), Symbol("width", 1, 16)),
    batch_symbol="batch",
)
PADDED = BatchingPolicy(8, 0, (Pad("length", "ids", 0),))


def key(
    policy: BatchingPolicy | None, rows: int, length: int, width: int, rows_max: int | None = None
) -> tuple[int, ...] | None:
    shapes = {"ids": (rows, length), "side": (rows, width)}
    inputs = [InputTensor(n, "INT64", s, bytes(8 * s[0] * s[1])) for n, s in shapes.items()]
    call = InferCall(Tenant("t"), "m", "", 0, None, 0, inputs)
    return CallChecker(SPEC, rows_max, None, policy).check(call).fit.batch_key


def test_exact_sizes_of_all_that_is_neither_rows_nor_padded() -> None:
    assert key(BatchingPolicy(8), 1, 3, 5) == (3, 5)
    assert key(BatchingPolicy(8), 4, 3, 5) == (3, 5)  # and not the bucket's (4, 8)
    assert key(PADDED, 1, 3, 5) == key(PADDED, 7, 9, 5) == (5,)


def test_who_can_be_joined_by_nobody_has_none() -> None:
    assert key(None, 1, 3, 5) is None
    assert key(PADDED, 0, 3, 5) is None
    assert key(PADDED, 8, 3, 5) is None
    assert key(PADDED, 16, 3, 5) is None
    assert key(PADDED, 4, 3, 5, rows_max=4) is None
