"""A model is batched only if rows that run together come out as they do alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpumuxd.domain import OutcomeKind, PriorityClass
from gpumuxd.models.batching_policy import DELAY_MS_MAX, BatchingPolicy, Pad
from gpumuxd.programs.exporter import export_model
from gpumuxd.programs.joined_rows import difference
from gpumuxd.wire.frames import Accepted, Cancel, ModelLoaded
from tests.device.support import DeviceChild, LoadedArtifact, read_artifact


class Centred(torch.nn.Module):
    """Each row less the mean of all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Words(torch.nn.Module):
    """The mean of the rows of a table, over what the mask shows."""

    def __init__(self, is_masked: bool) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(2, 8)
        self.is_masked = is_masked

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.table(ids)
        weights = mask.unsqueeze(2).to(torch.float32)
        if not self.is_masked:
            weights = torch.ones_like(weights)
        return (seen * weights).sum(1) / weights.sum(1).clamp(min=1), seen


@pytest.fixture(scope="module")
def apart() -> Iterator[DeviceChild]:
    with DeviceChild() as child:
        child.wait_started()
        yield child


def load(
    child: DeviceChild, artifact: LoadedArtifact, model: str, policy: BatchingPolicy | None = None
) -> ModelLoaded:
    """No model is REALTIME, so no bound keeps a run from being measured, however slow it is."""
    return child.load(artifact, model, PriorityClass.BEST_EFFORT, policy)


def words(folder: Path, is_masked: bool) -> LoadedArtifact:
    path = folder / f"words-{is_masked}.pt2"
    ids = torch.zeros(2, 8, dtype=torch.int64)
    torch.manual_seed(1)
    export_model(
        Words(is_masked).eval(),
        {"ids": ids, "mask": ids + 1},
        path,
        dynamic={name: {0: "batch", 1: "length"} for name in ("ids", "mask")},
        output_names=("mean", "words"),
    )
    return read_artifact(path)


def test_rows_that_come_out_alike(apart: DeviceChild, mlp: LoadedArtifact) -> None:
    loaded = load(apart, mlp, "mlp/1", BatchingPolicy(8))
    assert loaded.batch_rows_max == 8
    assert "up to 8 rows share a run; tried with 8 at load" in loaded.batching_note
    assert [bucket[0] for bucket, _ in loaded.run_ns] == [1, 2, 4, 8]  # more than runs alone


def test_rows_that_have_a_part_in_each_other(apart: DeviceChild, folder: Path) -> None:
    path = folder / "centred.pt2"
    export_model(Centred(), {"x": torch.randn(2, 4)}, path, output_names=("y",))
    loaded = load(apart, read_artifact(path), "centred/1", BatchingPolicy(4))
    assert loaded.batch_rows_max == 0
    assert "off: output 'y' of a request differs by" in loaded.batching_note
    assert "when 2 run together" in loaded.batching_note
    x = torch.tensor([[3.0, 1.0, 2.0, 4.0]])
    assert torch.equal(apart.infer("centred/1", {"x": x})[0], x - x)


def test_what_is_padded_must_be_masked(apart: DeviceChild, folder: Path) -> None:
    policy = BatchingPolicy(4, 0, (Pad("length", "ids", 0), Pad("length", "mask", 0)))
    loaded = load(apart, words(folder, True), "masked/1", policy)
    assert loaded.batch_rows_max == 4, loaded
    bare = words(folder, False)
    loaded = load(apart, bare, "bare/1", policy)
    assert loaded.batch_rows_max == 0
    assert "output 'mean' of a request differs" in loaded.batching_note
    assert load(apart, bare, "even/1", BatchingPolicy(4)).batch_rows_max == 4  # nothing to pad


def test_nobody_asked_for_it(apart: DeviceChild, mlp: LoadedArtifact) -> None:
    loaded = load(apart, mlp, "plain/1")
    assert (loaded.batch_rows_max, loaded.batching_note) == (0, "")


def test_who_is_cancelled_under_way_disturbs_nobody(
    apart: DeviceChild, slow: LoadedArtifact
) -> None:
    load(apart, slow, "slow/1", BatchingPolicy(2, DELAY_MS_MAX))
    rows = [torch.randn(1, 256, 512) for _ in range(2)]
    expected = apart.infer("slow/1", {"x": rows[1]})[0]
    first, second = [apart.submit("slow/1", {"x": row}, batch_key=()) for row in rows]
    while apart.expect(Accepted).request_id != second.request_id:
        pass
    apart.send(Cancel(first.request_id))  # both were launched, in the turn that accepted the second
    gone, finished = apart.finish(first), apart.finish(second)
    # Completed, if this process was kept from saying so for as long as the run took.
    assert gone.outcome.kind in (OutcomeKind.CANCELLED, OutcomeKind.COMPLETED)
    assert finished.outcome.kind is OutcomeKind.COMPLETED
    assert finished.report.batch_rows == 2
    torch.testing.assert_close(apart.tensor(finished.outputs[0]), expected)
    for submit in (first, second):
        apart.free(submit)


NAN = float("nan")


@pytest.mark.parametrize(
    ("alone", "together", "told"),
    [
        ([1.0, NAN, float("inf")], [1.0, NAN, float("inf")], ""),
        ([1000.0, 0.0], [1000.0, 0.05], ""),
        ([1000.0, 0.0], [1000.0, 0.2], "differs by 0.0002"),
        ([1.0, 2.0], [1.0, NAN], "differs by nan"),
        ([0.0, 0.0], [0.0, 1e-20], "differs by inf"),
        ([1, 2, 3], [1, 2, 3], ""),
        ([1, 2, 3], [1, 2, 4], "in 1 of 3 values"),
        ([[1.0]], [1.0], "has shape"),
    ],
)
def test_how_much_may_differ(alone: list[float], together: list[float], told: str) -> None:
    _, why_not = difference(torch.tensor(alone), torch.tensor(together))
    assert told in why_not
    assert bool(told) == bool(why_not)
