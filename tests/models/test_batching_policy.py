"""What a manifest may say of batching, and which models it fits."""

import pytest

from gpumuxd.domain import Batching
from gpumuxd.errors import InvalidManifest
from gpumuxd.models.batching_policy import ROWS_MAX_MAX, BatchingPolicy, Pad
from gpumuxd.models.manifest import parse_manifest
from gpumuxd.models.spec import Condition, ModelSpec, Size, Symbol, TensorSpec
from gpumuxd.units import NS_PER_MS
from gpumuxd.wire.in_flight_board import MEMBERS_MAX

PADS = (Pad("length", "ids", 0), Pad("length", "mask", False))


BATCH = Symbol("batch", 1, 100)


def spec(
    batch: Symbol = BATCH,
    extra: tuple[Size, ...] = (),
    conditions: tuple[Condition, ...] = (),
) -> ModelSpec:
    sizes = (("batch",), ("length",))
    return ModelSpec(
        inputs=(
            TensorSpec("side", "FP32", (("batch",), 3)),
            TensorSpec("ids", "INT64", sizes),
            TensorSpec("mask", "BOOL", sizes),
        ),
        outputs=(TensorSpec("out", "FP32", (("batch",), *extra)),),
        symbols=(Symbol("length", 1, 16), batch),
        batch_symbol="batch",
        conditions=conditions,
    )


def test_what_it_says() -> None:
    text = b"""
        [batching]
        rows_max = 32
        delay_ms_max = 1.5
        pad.length = { ids = 0, mask = false }
    """
    policy = parse_manifest(text).batching
    assert policy == BatchingPolicy(32, 1.5, PADS)
    policy.check(spec(), None)
    assert policy.padded == ("length",)
    assert policy.fills(spec()) == (0, 0, False)


def test_what_is_not_said_has_a_default() -> None:
    assert parse_manifest(b"").batching is None
    policy = parse_manifest(b"batching = { rows_max = 2 }").batching
    assert policy == BatchingPolicy(2, 0, ())
    assert policy.fills(spec()) == ()


@pytest.mark.parametrize(
    "text",
    [
        "batching = 5",
        "[batching]",
        "[batching]\ndelay_ms_max = 5",
        "[batching]\nrows_max = 1",
        "[batching]\nrows_max = 1025",
        "[batching]\nrows_max = true",
        "[batching]\nrows_max = 2.0",
        "[batching]\nrows_max = 8\ndelay_ms_max = -1",
        "[batching]\nrows_max = 8\ndelay_ms_max = nan",
        "[batching]\nrows_max = 8\ndelay_ms_max = 10001",
        "[batching]\nrows_max = 8\ndelay_ms_max = true",
        "[batching]\nrows_max = 8\npad = 5",
        "[batching]\nrows_max = 8\npad.length = 0",
        "[batching]\nrows_max = 8\npad.length = {}",
        "[batching]\nrows_max = 8\npad.length = { ids = 'a' }",
        "[batching]\nrows_max = 8\npad.length = { ids = 0 }\npad.width = { ids = 1 }",
    ],
)
def test_anything_else_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(InvalidManifest, match="batching: expected a table"):
        parse_manifest(text.encode())


@pytest.mark.parametrize(
    ("batch", "rows_max", "batch_max", "sizes"),
    [
        (Symbol("batch", 1, 100), 32, None, (1, 2, 4, 8, 16, 32)),
        (Symbol("batch", 1, 100), 33, None, (1, 2, 4, 8, 16, 32)),
        (Symbol("batch", 1, 100), 32, 9, (1, 2, 4, 8)),
        (Symbol("batch", 1, 20), 32, None, (1, 2, 4, 8, 16, 20)),
        (Symbol("batch", 0, 4), 32, None, (1, 2, 4)),
        (Symbol("batch", 2, 1 << 40), 8, None, (2, 4, 8)),
        (Symbol("batch", 3, 12, 3), 32, None, (3, 6, 12)),
    ],
)
def test_sizes_are_those_that_runs_are_measured_at(
    batch: Symbol, rows_max: int, batch_max: int | None, sizes: tuple[int, ...]
) -> None:
    policy = BatchingPolicy(rows_max, 0.5)
    policy.check(spec(batch), batch_max)
    assert policy.batching(spec(batch), batch_max) == Batching(1, sizes, NS_PER_MS // 2)
    for size in sizes:
        assert spec(batch).bucket({"batch": size, "length": 1})[1] == size


@pytest.mark.parametrize(
    ("policy", "model", "told"),
    [
        (BatchingPolicy(8), spec(Symbol("batch", 5, 100)), "at most 8 rows .* at least 5"),
        (BatchingPolicy(8), spec(extra=(("batch", 2, "*"),)), "'out' has a dimension batch \\* 2"),
        (BatchingPolicy(8), ModelSpec((), ()), "a batch dimension that varies in front"),
        (BatchingPolicy(8, 0, (Pad("width", "ids", 0),)), spec(), r"no dimension 'width'.*length"),
        (BatchingPolicy(8, 0, (Pad("batch", "ids", 0),)), spec(), "no dimension 'batch'"),
        (BatchingPolicy(8, 0, PADS[:1]), spec(), "what input 'mask' is filled with too"),
        (BatchingPolicy(8, 0, (*PADS, Pad("length", "side", 0))), spec(), "'side' has no such"),
        (BatchingPolicy(8, 0, (*PADS, Pad("length", "none", 0))), spec(), "'none' has no such"),
        (BatchingPolicy(8, 0, (Pad("length", "ids", 0.5), PADS[1])), spec(), "INT64 and can't be"),
        (BatchingPolicy(8, 0, (Pad("length", "ids", 1 << 63), PADS[1])), spec(), "can't be filled"),
        (BatchingPolicy(8, 0, (PADS[0], Pad("length", "mask", 0))), spec(), "is BOOL and can't"),
        (BatchingPolicy(8), spec(conditions=(("batch", 5, "!="),)), "takes no 5 rows"),
        (BatchingPolicy(8), spec(conditions=(("batch", "length", "!="),)), "fit alone need not"),
        (BatchingPolicy(8, 0, PADS), spec(conditions=(("length", 5, "!="),)), "fit alone need not"),
    ],
)
def test_a_model_that_it_does_not_fit(policy: BatchingPolicy, model: ModelSpec, told: str) -> None:
    with pytest.raises(InvalidManifest, match=told):
        policy.check(model, None)


def test_there_is_room_to_note_all_that_share_a_run() -> None:
    assert ROWS_MAX_MAX <= MEMBERS_MAX


def test_conditions_that_joined_sizes_fulfil_are_none_of_its_business() -> None:
    model = spec(conditions=(("batch", 9, "!="), ("length", 5, "!=")))
    BatchingPolicy(8).check(model, None)
