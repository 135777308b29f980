"""Memory that many want at once: loads beyond what there is, and an arena that everybody fills."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gpumuxd_client import DeviceMemory, DeviceTotals
from gpumuxd_client.errors import DeviceLost, OutOfDeviceMemory, QueueFull
from gpumuxd_client.types import InferResult

from gpumuxd.programs.exporter import export_model
from gpumuxd.units import MIB
from tests.daemon.harness import LIMIT_S
from tests.faults.ask import Fault
from tests.faults.rig import ARENA_MIB, MEMORY_MIB, Rig, is_right, large_rows, told

WEIGHTS_MIB = 4
MODELS = 16  # twice what there is room for, and more
WIDTH = 1024


class Heavy(torch.nn.Module):
    """y = x, by way of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heavy") / "model.pt2"
    export_model(Heavy(), {"x": torch.zeros(2, WIDTH)}, path, output_names=("y",))
    return path


@contextlib.asynccontextmanager
async def heavy_models(rig: Rig, artifact: Path) -> AsyncIterator[list[str]]:
    """Models of the culprit's own, which nobody has loaded; none is left."""
    names = [f"heavy-{number}" for number in range(MODELS)]
    for name in names:
        (rig.repository / name / "1").mkdir(parents=True)
        shutil.copy(artifact, rig.repository / name / "1" / "model.pt2")
        (rig.repository / name / "model.toml").write_text('tenants = ["culprit"]\n')
    try:
        yield names
    finally:
        await asyncio.gather(*(rig.culprit.unload(name) for name in names))
        for name in names:
            shutil.rmtree(rig.repository / name)


async def memory(rig: Rig) -> tuple[DeviceMemory, DeviceTotals]:
    (device,) = await rig.operator.memory()
    assert device.totals is not None
    return device, device.totals


async def load_all(rig: Rig, names: list[str]) -> list[str]:
    """Load them at once, while a bystander is served; those that found room."""
    loads = [asyncio.ensure_future(rig.culprit.load(name)) for name in names]
    while not all(load.done() for load in loads):
        result = await rig.ask_bystanders(1)[0]
        assert is_right(result, 0), result
        _, totals = await memory(rig)
        assert totals.weights_bytes + totals.frame_bytes_held + totals.arena_bytes <= (
            MEMORY_MIB * MIB
        )
    results = await asyncio.gather(*loads, return_exceptions=True)
    failed = [each for each in results if each is not None]
    assert [each for each in failed if not isinstance(each, OutOfDeviceMemory)] == []
    assert failed
    return [name for name, result in zip(names, results, strict=True) if result is None]


async def test_loads_take_what_there_is_and_no_more_and_give_it_back(
    rig: Rig, artifact: Path
) -> None:
    _, before = await memory(rig)
    async with heavy_models(rig, artifact) as names:
        for _ in range(2):
            loaded = await load_all(rig, names)
            device, totals = await memory(rig)
            assert len(loaded) >= (MEMORY_MIB - ARENA_MIB) // WEIGHTS_MIB - 3
            assert {f"{m.name}" for m in device.models} >= set(loaded)
            assert totals.weights_bytes - before.weights_bytes >= len(loaded) * WEIGHTS_MIB * MIB
            x = np.arange(WIDTH, dtype=np.float32)[None]
            for name in loaded:
                result = await rig.culprit.infer(name, {"x": x})
                np.testing.assert_array_equal(result["y"], x)
            index = {entry.name: entry for entry in await rig.culprit.index()}
            for name in set(names) - set(loaded):
                assert index[name].state == "UNAVAILABLE"
                assert "weights on cpu:0: heavy-" in index[name].reason
            await asyncio.gather(*(rig.culprit.unload(name) for name in names))
            _, after = await memory(rig)
            assert after.weights_bytes == before.weights_bytes
    await rig.is_whole()


async def test_a_tenant_takes_its_own_share_and_leaves_the_rest(rig: Rig, artifact: Path) -> None:
    async with heavy_models(rig, artifact) as names, share(rig, 3 * WEIGHTS_MIB + 2):
        loaded = await load_all(rig, names)
        assert len(loaded) == 3
        device, _ = await memory(rig)
        (held,) = [each for each in device.tenants if each.name == "culprit"]
        assert held.bytes_max is not None
        assert 3 * WEIGHTS_MIB * MIB <= held.weights_bytes <= held.bytes_max
        (own,) = await rig.culprit.memory()
        assert ([each.name for each in own.tenants], own.totals) == (["culprit"], None)
        assert {m.name for m in own.models if m.tenant} == set(loaded)
        (other,) = await rig.bystander.memory()
        assert [m.name for m in other.models if m.name.startswith("heavy")] == []
        assert {each.name for each in other.tenants} <= {"bystander"}
        await rig.operator.load("tiny")  # others have room
    await rig.is_whole()


@contextlib.asynccontextmanager
async def share(rig: Rig, mib: int) -> AsyncIterator[None]:
    """The culprit's own models may take so much."""
    config = rig.site.config_path
    before = config.read_text()
    config.write_text(
        before.replace("[tenants.culprit]", f"[tenants.culprit]\nmemory_mib_max = {mib}")
    )
    try:
        await reload(rig)
        yield
    finally:
        config.write_text(before)
        await reload(rig)


async def reload(rig: Rig) -> None:
    count = rig.daemon.log.count('"reloaded"')
    rig.daemon.signal(signal.SIGHUP)
    async with asyncio.timeout(LIMIT_S):
        while rig.daemon.log.count('"reloaded"') == count:
            await rig.device()


async def test_an_arena_that_many_fill_refuses_answers_and_forgets_nothing(rig: Rig) -> None:
    """Requests of every size from four connections of two tenants at once."""
    before = await rig.device()
    sizes = [ARENA_MIB * MIB * part // 100 for part in (3, 10, 24, 49, 90)]

    async def fill(number: int) -> Counter[str]:
        client = (rig.culprit, rig.bystander)[number % 2]
        ends: Counter[str] = Counter()
        for size_bytes in sizes * 4:
            result = await told(client.infer("large", {"x": large_rows(size_bytes)}))
            if isinstance(result, InferResult):
                assert result["y"].tolist() == [0]
            else:
                assert isinstance(result, QueueFull), result
            ends[type(result).__name__] += 1
        return ends

    ends = sum(await asyncio.gather(*map(fill, range(12))), Counter[str]())
    assert ends["InferResult"] > 0
    assert ends["QueueFull"] > 0
    await rig.is_whole()
    assert (await rig.device()).pid == before.pid


async def test_what_is_not_idempotent_is_refused_after_a_kill_and_others_run_again(
    rig: Rig,
) -> None:
    before = await rig.device()
    async with rig.faulty_model("idempotent = false\n") as model:
        run = rig.ask(model, Fault.NOTHING, at_gate=True)
        async with rig.at_gate():
            waiting = [rig.ask(model, Fault.NOTHING) for _ in range(5)]
            others = rig.ask_bystanders(5)
            await rig.wait_in_flight(11)
            os.kill(before.pid, signal.SIGKILL)
        for result in [await run, *[await each for each in waiting]]:
            assert isinstance(result, DeviceLost), result
            assert "idempotent = false" in result.message
            assert result.retry_delay_s is not None
        results = await asyncio.gather(*others)
        assert all(is_right(result, index) for index, result in enumerate(results))
    await rig.is_whole()


async def test_kills_under_load_of_what_is_not_idempotent(rig: Rig) -> None:
    """An answer that is right, or a refusal that says that it may be asked for again."""
    async with rig.faulty_model("idempotent = false\n") as model:

        async def ask(number: int) -> None:
            x = np.full((1, 4), number, dtype=np.float32)
            for _ in range(40):
                result = await told(rig.culprit.infer(model, {"x": x}))
                if isinstance(result, InferResult):
                    np.testing.assert_array_equal(result["y"], x * 2 + 1)
                else:
                    assert result.status == "UNAVAILABLE", result
                    assert result.retry_delay_s is not None or not isinstance(result, DeviceLost)

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(ask(number))
            for _ in range(2):
                await lose_device(rig)
    await rig.is_whole()


async def lose_device(rig: Rig) -> None:
    """Kill it, and wait until all serves again."""
    before = await rig.device()
    assert before.pid > 0, "it is not up"
    os.kill(before.pid, signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        while (await rig.device()).restarts == before.restarts:
            pass
    await rig.wait_ready()
