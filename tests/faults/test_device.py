"""A device that is killed, stopped or full, and clients that go: what comes from outside."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest
from gpumuxd_client.errors import QueueFull
from gpumuxd_client.types import InferResult

from gpumuxd.units import MIB
from tests.daemon.harness import LIMIT_S
from tests.faults.ask import Fault
from tests.faults.rig import ARENA_MIB, Rig, is_right, large_rows, told

REQUESTS = 20

LAUNCHED_MAX = 8
"""Runs that are on the device's queue already, behind the one that stands still: nothing takes them
back, and their memory is theirs until they have passed."""


async def test_a_device_that_is_killed(rig: Rig) -> None:
    before = await rig.device()
    async with rig.faulty_model() as model:
        run = rig.ask(model, Fault.NOTHING, at_gate=True)
        async with rig.at_gate():
            others = rig.ask_bystanders(REQUESTS)
            await rig.wait_in_flight(1 + REQUESTS)
            os.kill(before.pid, signal.SIGKILL)
        results = await asyncio.gather(*others)
        assert [is_right(result, index) for index, result in enumerate(results)] == [
            True
        ] * REQUESTS
        assert isinstance(await run, InferResult)
        await rig.wait_ready()
    await rig.is_whole()
    assert (await rig.device()).restarts == before.restarts + 1


async def test_a_device_that_is_stopped_for_a_moment_loses_nothing(rig: Rig) -> None:
    before = await rig.device()
    os.kill(before.pid, signal.SIGSTOP)
    calls = rig.ask_bystanders(REQUESTS)
    await rig.wait_in_flight(REQUESTS)
    os.kill(before.pid, signal.SIGCONT)
    results = await asyncio.gather(*calls)
    assert [is_right(result, index) for index, result in enumerate(results)] == [True] * REQUESTS
    await rig.is_whole()
    assert (await rig.device()).pid == before.pid


async def test_a_device_that_is_stopped_for_good_is_replaced(rig: Rig) -> None:
    before = await rig.device()
    os.kill(before.pid, signal.SIGSTOP)
    results = await asyncio.gather(*rig.ask_bystanders(REQUESTS))
    assert [is_right(result, index) for index, result in enumerate(results)] == [True] * REQUESTS
    await rig.is_whole()
    assert (await rig.device()).restarts == before.restarts + 1


async def test_a_full_arena_refuses_and_forgets_nothing(rig: Rig) -> None:
    quarter = large_rows(ARENA_MIB * MIB // 4 - 4096)
    async with rig.faulty_model() as model:
        run = rig.ask(model, Fault.NOTHING, at_gate=True)
        async with rig.at_gate():
            calls = [
                asyncio.ensure_future(told(rig.bystander.infer("large", {"x": quarter})))
                for _ in range(8)
            ]
            async with asyncio.timeout(LIMIT_S):
                while (await rig.device()).requests_in_flight - 1 != waiting(calls):
                    pass
            refused = [call.result() for call in calls if call.done()]
            assert 0 < len(refused) < len(calls)
            assert [type(error) for error in refused] == [QueueFull] * len(refused)
        results = [await call for call in calls]
        assert sum(isinstance(result, InferResult) for result in results) == 8 - len(refused)
        assert isinstance(await run, InferResult)
    await rig.is_whole()


def waiting(calls: Sequence["asyncio.Task[object]"]) -> int:
    return sum(not call.done() for call in calls)


_CLIENT = """
import asyncio, sys
import numpy as np
from gpumuxd_client import AsyncClient

sys.stdin.readline()

async def main():
    async with AsyncClient(sys.argv[1], retries=0) as client:
        x = np.ones((1, 4), dtype=np.float32)
        await asyncio.gather(*(client.infer("tiny", {"x": x}) for _ in range(int(sys.argv[2]))))

asyncio.run(main())
"""


async def test_a_client_that_is_killed_leaves_nothing(rig: Rig) -> None:
    command = [sys.executable, "-c", _CLIENT, rig.bystander.target, str(REQUESTS)]
    client = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
    assert client.stdin is not None
    async with rig.faulty_model() as model:
        run = rig.ask(model, Fault.NOTHING, at_gate=True)
        async with rig.at_gate():
            client.stdin.write(b"\n")
            await rig.wait_in_flight(1 + REQUESTS)
            client.kill()
            # What waits for its turn is gone before the run is.
            await rig.wait_in_flight(1, 1 + LAUNCHED_MAX)
        assert isinstance(await run, InferResult)
    await client.wait()
    await rig.wait_in_flight(0)
    await rig.is_whole()


@pytest.mark.parametrize("end", ["cancelled", "expired"])
async def test_calls_that_are_given_up_leave_nothing(rig: Rig, end: str) -> None:
    async with rig.faulty_model() as model:
        run = rig.ask(model, Fault.NOTHING, at_gate=True)
        async with rig.at_gate():
            if end == "cancelled":
                calls = rig.ask_bystanders(REQUESTS)
                await rig.wait_in_flight(1 + REQUESTS)
                for call in calls:
                    call.cancel()
            else:
                calls = rig.ask_bystanders(REQUESTS, deadline=0.05)
                ends = {getattr(await call, "status", "OK") for call in calls}
                assert ends == {"DEADLINE_EXCEEDED"}
            await rig.wait_in_flight(1, 1 + LAUNCHED_MAX)
        assert isinstance(await run, InferResult)
    await rig.wait_in_flight(0)
    await rig.is_whole()
