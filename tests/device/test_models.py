"""Models that come and go: measuring, the cache, failures that leave nothing, draining."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from gpumuxd.domain import OutcomeKind, PriorityClass
from gpumuxd.programs.exporter import export_model
from gpumuxd.units import MIB
from gpumuxd.wire.frames import (
    Accepted,
    AskStatistics,
    Finished,
    LoadModel,
    ModelFailed,
    ModelLoaded,
    ModelReleased,
    Ping,
    Pong,
    Statistics,
    UnloadModel,
)
from gpumuxd.wire.process import sealed_memfd
from tests.device.conftest import Mlp, make
from tests.device.support import SETTINGS, DeviceChild, LoadedArtifact, read_artifact

MODEL_BYTES_MAX = 64 * MIB


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceChild]:
    """A child of this module, with no model between tests."""
    limit = SETTINGS.arena_bytes + MODEL_BYTES_MAX
    settings = replace(
        SETTINGS,
        profile_cache_dir=str(tmp_path_factory.mktemp("cache") / "profiles"),
        scheduler=replace(SETTINGS.scheduler, memory_bytes_max=limit),
    )
    with DeviceChild(settings) as child:
        child.wait_started()
        yield child
        assert child.stop()[0] == 0


def memfd(data: bytes) -> int:
    return sealed_memfd("test", lambda file: file.write(data))


def send_load(child: DeviceChild, model: str, plan_fd: int, weights_fd: int) -> None:
    frame = LoadModel(model, "hash", PriorityClass.STANDARD, None, "tenant")
    child.send(frame, [plan_fd, weights_fd])


def test_a_loaded_model_tells_what_was_measured(own: DeviceChild, slow: LoadedArtifact) -> None:
    loaded = own.load(slow, "slow/1")
    assert [bucket for bucket, _ in loaded.run_ns] == [(1,), (2,)]
    longest = [groups[0] for groups in loaded.longest_groups]
    # Of the one pass that counts, so whatever else the machine does.
    for (_, run_ns), group in zip(loaded.run_ns, longest, strict=True):
        assert run_ns >= group.device_ns > 0
        assert 0 <= group.first_node < group.end_node
    assert max(group.device_ns for group in longest) == loaded.longest_group_ns
    assert loaded.group_count > 4, "nodes of milliseconds are groups by themselves"
    assert loaded.left_out == ()
    assert loaded.weights_bytes >= 512 * 512 * 4
    assert loaded.frame_bytes >= 2 * 256 * 512 * 4, "a frame holds one activation at least"
    own.unload("slow/1")
    own.expect(ModelReleased)


def test_sizes_beyond_the_bound_of_the_moment_are_told_as_left_out(
    own: DeviceChild, mlp: LoadedArtifact, slow: LoadedArtifact
) -> None:
    # An SLO that it can't meet alone asks for no bound; a REALTIME model is there all the same.
    own.send_load(mlp, "urgent/1", PriorityClass.REALTIME, slo_ns=1)
    own.expect(ModelLoaded)
    loaded = own.load(replace(slow, hash="with a profile of its own"), "slow/1")
    assert ([bucket for bucket, _ in loaded.run_ns], loaded.left_out) == ([(1,)], ((2,),))
    assert len(loaded.longest_groups) == 1
    own.send(AskStatistics())
    statistics = own.expect(Statistics)
    assert (statistics.bound_ns, statistics.bound_origin) == (0, "least_delay")
    assert statistics.bound_model == ""
    for model in ("slow/1", "urgent/1"):
        own.unload(model)
        own.expect(ModelReleased)


def test_small_nodes_are_merged_into_one_group(own: DeviceChild, mlp: LoadedArtifact) -> None:
    assert own.load(mlp, "mlp/1").group_count < 4
    own.unload("mlp/1")
    own.expect(ModelReleased)


def test_a_profile_is_measured_once_for_each_artifact(
    own: DeviceChild, mlp: LoadedArtifact
) -> None:
    artifact = replace(mlp, hash="as if it were another file")
    first = own.load(artifact, "mlp/1")
    second = own.load(artifact, "mlp/2")
    assert [first.profile_was_cached, second.profile_was_cached] == [False, True]
    assert second == msgspec.structs.replace(first, model="mlp/2", profile_was_cached=True)
    x = torch.randn(2, 32)
    assert torch.equal(own.infer("mlp/1", {"x": x})[0], own.infer("mlp/2", {"x": x})[0])
    for key in ("mlp/1", "mlp/2"):
        own.unload(key)
        own.expect(ModelReleased)


def test_unload_finishes_what_was_admitted_and_lets_go_of_the_weights(
    own: DeviceChild, slow: LoadedArtifact
) -> None:
    before = own.maps.count("gpumuxd-weights")
    own.load(slow, "slow/1")
    assert own.maps.count("gpumuxd-weights") == before + 1
    submits = [own.submit("slow/1", {"x": torch.randn(2, 256, 512)}) for _ in range(2)]
    for _ in submits:
        own.expect(Accepted)
    own.unload("slow/1")
    late = own.submit("slow/1", {"x": torch.randn(2, 256, 512)})
    own.expect(ModelReleased)
    outcomes = {f.request_id: f.outcome.kind for f in own.frames if isinstance(f, Finished)}
    own.frames.clear()
    assert outcomes == {
        submits[0].request_id: OutcomeKind.COMPLETED,
        submits[1].request_id: OutcomeKind.COMPLETED,
        late.request_id: OutcomeKind.DRAINING,
    }, "all were finished before the model was released"
    assert own.maps.count("gpumuxd-weights") == before
    gone = own.submit("slow/1", {"x": torch.randn(2, 256, 512)})
    assert own.finish(gone).outcome.kind is OutcomeKind.MODEL_NOT_READY
    for submit in (*submits, late, gone):
        own.free(submit)


def test_a_model_can_be_loaded_again_under_another_key(
    own: DeviceChild, mlp: LoadedArtifact
) -> None:
    for key in ("mlp/1#1", "mlp/1#2"):
        own.load(mlp, key)
        x = torch.randn(1, 32)
        with torch.inference_mode():
            assert torch.equal(own.infer(key, {"x": x})[0], make(Mlp)(x))
        own.unload(key)
        own.expect(ModelReleased)


@pytest.mark.parametrize(
    ("plan", "weights", "reason"),
    [
        pytest.param(b"\xc1rubbish", b"w" * 64, "not a plan", id="plan is rubbish"),
        pytest.param(b"", b"w" * 64, "", id="plan is empty"),
        pytest.param(None, b"w" * 64, "weights", id="weights are too short"),
    ],
)
def test_a_load_that_fails_says_why_and_leaves_nothing(
    own: DeviceChild, mlp: LoadedArtifact, plan: bytes | None, weights: bytes, reason: str
) -> None:
    before = own.maps
    if plan is None:
        plan = os.pread(mlp.plan_fd, MIB, 0)
    plan_fd, weights_fd = memfd(plan), memfd(weights)
    send_load(own, "bad/1", plan_fd, weights_fd)
    failed = own.expect(ModelFailed)
    assert failed.model == "bad/1"
    assert failed.reason
    assert reason in failed.reason
    assert own.maps.count("memfd:") == before.count("memfd:")
    own.load(mlp, "bad/1")  # the key is free again
    own.unload("bad/1")
    own.expect(ModelReleased)
    os.close(plan_fd)
    os.close(weights_fd)


def test_memory_that_its_sender_could_change_is_refused(
    own: DeviceChild, mlp: LoadedArtifact
) -> None:
    fd = os.memfd_create("open", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, b"x" * 64)
    send_load(own, "open/1", mlp.plan_fd, fd)
    assert "NotSealed" in own.expect(ModelFailed).reason
    send_load(own, "open/1", fd, mlp.weights_fd)
    assert "NotSealed" in own.expect(ModelFailed).reason
    os.close(fd)


def test_a_load_without_its_two_descriptors_fails(own: DeviceChild, mlp: LoadedArtifact) -> None:
    own.send(LoadModel("m/1", "hash", PriorityClass.STANDARD, None, "t"), [mlp.plan_fd])
    assert own.expect(ModelFailed).model == "m/1"


def test_weights_beyond_the_devices_memory_are_refused_with_the_numbers(
    own: DeviceChild, mlp: LoadedArtifact
) -> None:
    weights_fd = sealed_memfd("large", lambda file: file.truncate(2 * MODEL_BYTES_MAX))
    send_load(own, "large/1", mlp.plan_fd, weights_fd)
    failed = own.expect(ModelFailed)
    assert failed.is_out_of_memory
    reason = failed.reason
    arena_mib = SETTINGS.arena_bytes // MIB
    assert "weights of 128.0 MiB do not fit: " in reason
    assert " of 64.0 MiB are free;" in reason
    assert (
        f"has {arena_mib + 64} MiB (memory_mib_max), of which the arena takes {arena_mib}" in reason
    )
    os.close(weights_fd)


class Hoard(torch.nn.Module):
    """Holds far more than its inputs or weights tell of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(8192, 4096).sum()


def test_a_run_beyond_the_devices_memory_fails_the_load_with_the_numbers(
    own: DeviceChild, mlp: LoadedArtifact, tmp_path: Path
) -> None:
    export_model(Hoard(), {"x": torch.zeros(2, 4)}, tmp_path / "hoard.pt2")
    own.send_load(read_artifact(tmp_path / "hoard.pt2"), "hoard/1")
    failed = own.expect(ModelFailed)
    assert failed.is_out_of_memory
    held, free = 8192 * 4096 * 4 + 16, MODEL_BYTES_MAX - 64  # with x, without what weights take
    assert failed.reason == f"one run holds {held} bytes and more, {free} are free"
    own.load(mlp, "hoard/1")  # the key and the memory are free again
    own.unload("hoard/1")
    own.expect(ModelReleased)


class Division(torch.nn.Module):
    """Fails for what it is measured with, since integers are zeros there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.div(x, x, rounding_mode="floor")


def test_a_run_that_fails_fails_the_load_with_the_sizes(own: DeviceChild, tmp_path: Path) -> None:
    export_model(Division(), {"x": torch.ones(2, 4, dtype=torch.int64)}, tmp_path / "d.pt2")
    own.send_load(read_artifact(tmp_path / "d.pt2"), "division/1")
    failed = own.expect(ModelFailed)
    assert not failed.is_out_of_memory
    assert failed.reason.startswith("a run at sizes [1] failed: RuntimeError: ZeroDivisionError")


def test_unloading_during_a_load_cancels_it(
    own: DeviceChild, slow: LoadedArtifact, mlp: LoadedArtifact
) -> None:
    own.frames.clear()
    own.send_load(slow, "slow/1")
    own.send_load(mlp, "mlp/1")  # waits behind the first
    own.send(Ping(1))
    own.expect(Pong)  # the first one goes on by now
    own.unload("slow/1")
    own.unload("mlp/1")
    released = {own.expect(ModelReleased).model, own.expect(ModelReleased).model}
    assert released == {"slow/1", "mlp/1"}
    assert own.frames == [], "neither ModelLoaded nor ModelFailed"
    assert "gpumuxd-weights" not in own.maps
    own.load(mlp, "mlp/1")
    own.unload("mlp/1")
    own.expect(ModelReleased)


def test_unloading_what_is_not_there_is_done_at_once(own: DeviceChild) -> None:
    own.send(UnloadModel("never/1"))
    assert own.expect(ModelReleased).model == "never/1"


def test_requests_are_served_while_a_model_loads(
    own: DeviceChild, mlp: LoadedArtifact, slow: LoadedArtifact
) -> None:
    own.load(mlp, "mlp/1")
    own.frames.clear()
    own.send_load(slow, "slow/1")
    served = 0
    while not any(isinstance(frame, ModelLoaded) for frame in own.frames):
        x = torch.randn(1, 32)
        submit = own.submit("mlp/1", {"x": x}, PriorityClass.REALTIME)
        assert own.finish(submit).outcome.kind is OutcomeKind.COMPLETED
        own.free(submit)
        served += 1
    assert served > 5
    own.frames.clear()
    for key in ("mlp/1", "slow/1"):
        own.unload(key)
        own.expect(ModelReleased)
