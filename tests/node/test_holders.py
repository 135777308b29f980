"""Who holds the memory of a device, as an error tells it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpumuxd.domain import Outcome, OutcomeKind
from gpumuxd.errors import OutOfDeviceMemory
from gpumuxd.models.manifest import Manifest
from gpumuxd.node.api import Tenant
from gpumuxd.node.holders import with_holders
from gpumuxd.units import MIB
from gpumuxd.wire import frames
from gpumuxd.wire.frames import ModelFigures
from tests.node.fakes import WAIT_S, FakeLife, call, load_well
from tests.node.world import ADMIN, INDEX, TENANTS, VOICE, World

SEEN, HIDDEN = Manifest(), Manifest(tenants=("other",))


def entry(
    label: str,
    mib: float,
    manifest: Manifest = SEEN,
    device: str = "cpu:0",
    frames_mib: float | None = None,
) -> Any:
    """One with `frames_mib` None has a device that has told nothing yet."""
    key, loaded = f"{label}#1", SimpleNamespace(weights_bytes=int(mib * MIB))
    told = None
    if frames_mib is not None:
        figures = [ModelFigures("x/1#9", 0, 0, 0, 0, 0, MIB, MIB)]
        figures.append(ModelFigures(key, 0, 0, 0, 0, 0, int(frames_mib * MIB), 0))
        told = SimpleNamespace(models=figures)
    link = SimpleNamespace(statistics=told)
    replica = SimpleNamespace(key=key, loaded=loaded, manifest=manifest, link=link)
    return SimpleNamespace(label=label, replicas={device: replica})


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([], "full"),
        ([entry("a/1", 3, device="cpu:1")], "full"),
        ([entry("a/1", 1), entry("b/2", 2.5)], "full; weights on cpu:0: b/2 2.5 MiB, a/1 1.0 MiB"),
        (
            [entry("a/1", 1), entry("secret/1", 9, HIDDEN), entry("secret/2", 1, HIDDEN)],
            "full; weights on cpu:0: a/1 1.0 MiB, other models 10.0 MiB",
        ),
        ([entry("secret/1", 9, HIDDEN)], "full; weights on cpu:0: other models 9.0 MiB"),
        (
            [entry(f"m/{n}", n) for n in range(1, 8)],
            "full; weights on cpu:0: m/7 7.0 MiB, m/6 6.0 MiB, m/5 5.0 MiB, m/4 4.0 MiB, "
            "m/3 3.0 MiB, other models 3.0 MiB",
        ),
        (
            [entry("a/1", 2, frames_mib=0), entry("b/2", 1, frames_mib=7)],
            "full; weights on cpu:0: b/2 1.0 MiB and 7.0 MiB of frames, a/1 2.0 MiB",
        ),
        (
            [entry("secret/1", 9, HIDDEN, frames_mib=1.5), entry("secret/2", 1, HIDDEN)],
            "full; weights on cpu:0: other models 10.0 MiB and 1.5 MiB of frames",
        ),
    ],
)
def test_the_largest_first_and_nobody_is_named_whom_one_may_not_know(
    entries: list[Any], told: str
) -> None:
    error = OutOfDeviceMemory("full", {"model": "x"}, 5)
    after = with_holders(error, "cpu:0", entries, lambda manifest: manifest is SEEN)
    assert (after.message, after.facts, after.retry_delay_ns) == (told, {"model": "x"}, 5)


NAMED = {
    "open": "",
    "own": "tenants = ['voice']",
    "shared": "tenants = ['voice', 'index']",
    "foreign": "tenants = ['index']",
}


def holders_in(message: str) -> set[str]:
    """Who is named as holding something."""
    named = {name: f"{name}/1 " for name in NAMED} | {"other models": "other models "}
    return {name for name, text in named.items() if text in message}


@pytest.mark.parametrize(
    ("tenant", "told"),
    [
        (VOICE, {"open", "own", "shared", "other models"}),
        (INDEX, {"open", "shared", "foreign", "other models"}),
        (ADMIN, set(NAMED)),
    ],
)
async def test_a_request_that_does_not_fit_names_whom_its_tenant_may_know(
    tmp_path: Path, tenant: Tenant, told: set[str]
) -> None:
    world = World(tmp_path)
    for name, manifest in NAMED.items():
        world.add(name, manifest=manifest)
    async with (
        asyncio.timeout(WAIT_S),
        world.started(tenants=TENANTS, startup_models=tuple(NAMED)) as node,
    ):
        task = asyncio.ensure_future(node.infer(call(model="open", tenant=tenant)))
        (submit,) = await world.life.wait_for(frames.Submit)
        full = Outcome(OutcomeKind.OUT_OF_DEVICE_MEMORY, "a frame needs 9 MiB")
        world.life.finish(submit.request_id, outcome=full)
        with pytest.raises(OutOfDeviceMemory, match="9 MiB; weights on cpu:0: ") as refused:
            await task
        assert holders_in(refused.value.message) == told


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        ("tenants = ['voice']", {"open", "own", "shared", "other models"}),
        ("tenants = ['voice', 'index']", {"open", "shared", "other models"}),
        ("", {"open", "other models"}),
    ],
)
async def test_a_load_that_does_not_fit_names_whom_everyone_who_may_see_it_may_know(
    tmp_path: Path, manifest: str, told: set[str]
) -> None:
    """Its reason stands in the index, for whoever may see the model; also if an admin loads it."""

    def load(life: FakeLife, frame: frames.LoadModel) -> None:
        if frame.model.startswith("large"):
            life.send(frames.ModelFailed(frame.model, "no room", is_out_of_memory=True))
        else:
            load_well(life, frame)

    world = World(tmp_path)
    world.device.on_load = load
    for name, each in (*NAMED.items(), ("large", manifest)):
        world.add(name, manifest=each)
    async with (
        asyncio.timeout(WAIT_S),
        world.started(tenants=TENANTS, startup_models=tuple(NAMED)) as node,
    ):
        with pytest.raises(OutOfDeviceMemory, match="no room; weights on cpu:0: ") as refused:
            await node.load(ADMIN, "large")
        assert holders_in(refused.value.message) == told
        assert holders_in((await world.state("large"))[1]) == told
