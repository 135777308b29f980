"""The node with its real device children and loaders, on two CPU devices."""

import asyncio
import os
import signal
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpumuxd.clock import monotonic_ns
from gpumuxd.errors import DeadlineMissed, InvalidModel, InvalidRequest
from gpumuxd.node.api import InferCall, InferReply, InputTensor, ModelState
from gpumuxd.node.node import Node
from gpumuxd.node.settings import LinkSettings, NodeSettings
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB, NS_PER_MS
from tests.node.artifacts import export_tiny

READY_S = 60.0


class Served:
    """A running node and a way to wait for its readiness."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self._changed = asyncio.Event()
        self.node = Node(
            NodeSettings(
                repository_paths=(repository,),
                devices=tuple(DeviceSettings(f"cpu:{i}", arena_bytes=MIB) for i in range(2)),
                startup_models=("tiny",),
                link=LinkSettings(ping_interval_ns=50 * NS_PER_MS),
            ),
            on_readiness=lambda is_ready: self._changed.set(),
        )

    async def wait_ready(self, is_ready: bool = True) -> None:
        async with asyncio.timeout(READY_S):
            while self.node.is_ready() is not is_ready:
                self._changed.clear()
                await self._changed.wait()

    async def infer(self, *rows: tuple[float, ...], deadline_ns: int | None = None) -> InferReply:
        data = b"".join(struct.pack(f"{len(row)}f", *row) for row in rows)
        tensor = InputTensor("x", "FP32", (len(rows), 4), data)
        return await self.node.infer(
            InferCall(DEFAULT_TENANT, "tiny", "", 0, deadline_ns, monotonic_ns(), [tensor])
        )


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    repository = tmp_path_factory.mktemp("repository")
    export_tiny(repository / "tiny" / "1" / "model.pt2")
    served = Served(repository)
    await served.node.start()
    assert await served.node.load_startup_models() == {}
    yield served
    pids = [device.pid for device in served.node.view().devices]
    await served.node.drain()
    await served.node.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_results_are_right(served: Served) -> None:
    reply = await served.infer((0, 1, 2, 3), (4, 5, 6, 7))
    values = {o.name: struct.unpack(f"{len(o.data) // 4}f", o.data) for o in reply.outputs}
    assert values == {"y": (1, 3, 5, 7, 9, 11, 13, 15), "n": (6, 22)}
    assert reply.report.compute_ns > 0
    view = await served.node.model_view(DEFAULT_TENANT, "tiny", "")
    assert view.group_count >= 1
    assert {bucket for bucket, _ in view.run_ns} == {(1,), (2,), (4,)}


async def test_many_at_once_each_get_their_own(served: Served) -> None:
    replies = await asyncio.gather(*(served.infer((i, 0, 0, 0)) for i in range(50)))
    assert [struct.unpack("f", r.outputs[1].data)[0] for r in replies] == list(range(50))


async def test_a_request_that_is_cancelled_leaves_nothing(served: Served) -> None:
    tasks = [asyncio.ensure_future(served.infer((1, 2, 3, 4))) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(r, asyncio.CancelledError) for r in results[::2])
    assert all(isinstance(r, InferReply) for r in results[1::2])
    await served.infer((1, 2, 3, 4))  # after it, by order of arrival, the cancelled ones ended
    assert served.node.requests_in_flight == 0


async def test_a_batch_over_the_maximum_and_then_a_good_one(served: Served) -> None:
    with pytest.raises(InvalidRequest, match="expected batch of 1 to 4, got 5"):
        await served.infer(*[(0, 0, 0, 0)] * 5)
    await served.infer(*[(0, 0, 0, 0)] * 4)


async def test_a_foreign_artifact_is_refused_and_the_next_load_works(served: Served) -> None:
    good = (served.repository / "tiny" / "1" / "model.pt2").read_bytes()
    for name, data in (("truncated", good[: len(good) // 2]), ("foreign", b"\x7fELF" * 100)):
        artifact = served.repository / name / "1" / "model.pt2"
        artifact.parent.mkdir(parents=True)
        artifact.write_bytes(data)
        with pytest.raises(InvalidModel):
            await served.node.load(DEFAULT_TENANT, name)
        (entry,) = [e for e in await served.node.index(DEFAULT_TENANT) if e.name == name]
        assert entry.state is ModelState.UNAVAILABLE
        assert entry.reason
        artifact.write_bytes(good)
        await served.node.load(DEFAULT_TENANT, name)
        (unloaded,) = await served.node.unload(DEFAULT_TENANT, name)
        assert unloaded.version == "1"
        assert unloaded.resident_bytes_before > 0 < unloaded.resident_bytes_after


async def test_a_child_that_is_stopped_keeps_nobody_beyond_a_deadline(served: Served) -> None:
    await served.wait_ready()
    pid = served.node.view().devices[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineMissed, match="gave no answer until the deadline"):
            await served.infer((1, 2, 3, 4), deadline_ns=monotonic_ns() + 50 * NS_PER_MS)
    finally:
        os.kill(pid, signal.SIGCONT)
    await served.infer((1, 2, 3, 4))
    assert served.node.requests_in_flight == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_child_that_dies_or_stands_still_is_replaced(
    served: Served, number: signal.Signals
) -> None:
    await served.wait_ready()
    before = served.node.view().devices[0]
    # It can't answer any of these: it is stopped before they are sent.
    os.kill(before.pid, signal.SIGSTOP)
    tasks = [asyncio.ensure_future(served.infer((1, 2, 3, 4))) for _ in range(5)]
    await asyncio.sleep(0)
    if number is signal.SIGKILL:
        os.kill(before.pid, signal.SIGKILL)
    async with asyncio.timeout(READY_S):
        results = await asyncio.gather(*tasks)
    quiet = await served.infer((1, 2, 3, 4))
    assert all(result.outputs == quiet.outputs for result in results)
    assert [result.replays for result in results] == [1] * 5
    await served.wait_ready()
    after = served.node.view().devices[0]
    assert after.pid != before.pid
    assert after.restarts == before.restarts + 1
