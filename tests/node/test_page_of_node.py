"""The page of a model as the node gives it: every state, and only to whom it is for."""

import asyncio
from collections.abc import Awaitable

import pytest

from gpumuxd.errors import InvalidRequest, PermissionDenied, UnknownModel
from gpumuxd.node.api import BoundOrigin, ModelDetail, Tenant
from gpumuxd.node.node import Node
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.settings import DeviceSettings, SchedulerSettings, Slicing
from gpumuxd.units import MIB
from gpumuxd.wire import frames
from tests.node.fakes import FakeDevice, FakeLife, add_model, call
from tests.node.world import ADMIN, INDEX, TENANTS, VOICE, World


def told(detail: ModelDetail) -> list[tuple[str, str, str, bool]]:
    return [(v.version, v.state.value, v.reason, v.loaded is not None) for v in detail.versions]


async def test_each_version_is_there_with_its_state_and_the_newest_first(world: World) -> None:
    for version in (2, 10):
        add_model(world.repository, "m", version, manifest='versions = "all"\nbatch_max = 4')
    async with world.started() as node:
        page = await node.model_detail(DEFAULT_TENANT, "m", "")
        assert told(page) == [
            (version, "UNAVAILABLE", "not loaded", False) for version in ("10", "2", "1")
        ]
        assert [v.policy.batch_max for v in page.versions if v.policy] == [4, 4, 4]
        await node.load(DEFAULT_TENANT, "m")
        page = await node.model_detail(DEFAULT_TENANT, "m", "2")
        assert told(page) == [("2", "READY", "", True)]
        loaded = page.versions[0].loaded
        assert loaded is not None
        assert (loaded.device, loaded.group_count, loaded.batch_max) == ("cpu:0", 3, 4)
        assert loaded.buckets[0].longest is None, "this device does not tell"
        await node.unload(DEFAULT_TENANT, "m")
        assert {each[2:] for each in told(await node.model_detail(DEFAULT_TENANT, "m", ""))} == {
            ("unloaded", False)
        }


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        ("nobody", "", UnknownModel),
        ("m", "7", UnknownModel),
        ("m", "x", InvalidRequest),
        ("", "", InvalidRequest),
        ("../m", "", InvalidRequest),
    ],
)
async def test_what_is_not_there_is_refused(
    world: World, name: str, version: str, error: type[Exception]
) -> None:
    async with world.started() as node:
        with pytest.raises(error):
            await node.model_detail(DEFAULT_TENANT, name, version)


async def test_a_model_of_others_is_not_there_loaded_or_not(world: World) -> None:
    add_model(world.repository, "secret", manifest='tenants = ["voice"]')
    async with world.started(tenants=TENANTS) as node:
        for _ in ("not loaded", "loaded"):
            for tenant in (VOICE, ADMIN):
                page = await node.model_detail(tenant, "secret", "")
                assert page.versions[0].policy is not None
                assert page.versions[0].policy.tenants == ("voice",)
            with pytest.raises(UnknownModel, match="no model 'secret'"):
                await node.model_detail(INDEX, "secret", "")
            await node.load(ADMIN, "secret")


async def refusals(node: Node, tenant: Tenant, name: str, version: str) -> list[str]:
    """What every call that names a model answers, without the name."""
    calls: list[Awaitable[object]] = [
        node.infer(call(model=name, version=version, tenant=tenant)),
        node.model_view(tenant, name, version),
        node.model_detail(tenant, name, version),
        node.load(tenant, name),
        node.unload(tenant, name),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert not node.is_model_ready(tenant, name, version)
    return [repr(answer).replace(name, "NAME") for answer in answers]


async def test_a_model_of_others_can_not_be_told_from_none(world: World) -> None:
    add_model(world.repository, "secret", manifest='tenants = ["voice"]')
    async with world.started(tenants=TENANTS) as node:
        for _ in ("not loaded", "loaded"):
            for version in ("", "1", "7"):
                missing = await refusals(node, INDEX, "nobody", version)
                assert await refusals(node, INDEX, "secret", version) == missing
                assert missing == ["UnknownModel(\"no model 'NAME' in the repository\")"] * 5
            await node.load(VOICE, "secret")
        world.repository.rename(away := world.repository.with_name("away"))
        try:
            await node.index(ADMIN)
            missing = await refusals(node, INDEX, "nobody", "")
            assert await refusals(node, INDEX, "secret", "") == missing
            assert "No such file or directory" in missing[0]
        finally:
            away.rename(world.repository)


async def test_the_manifest_in_force_says_who_sees_what_serves(world: World) -> None:
    path = add_model(world.repository, "own", manifest='tenants = ["voice"]')
    async with world.started(tenants=TENANTS, startup_models=("own",)) as node:
        (path.parents[1] / "model.toml").write_text('tenants = ["index"]')
        for tenant, names in ((VOICE, ["m", "own"]), (INDEX, ["m"]), (ADMIN, ["m", "own"])):
            assert [entry.name for entry in await node.index(tenant)] == names
        assert (await node.model_detail(VOICE, "own", "")).versions[0].policy is not None
        assert (await node.model_view(VOICE, "own", "1")).name == "own"
        for attempt in (
            node.model_detail(INDEX, "own", ""),
            node.infer(call(model="own", tenant=INDEX)),
        ):
            with pytest.raises(UnknownModel, match="no model 'own'"):
                await attempt
        with pytest.raises(UnknownModel, match="no version '2'"):
            await node.model_view(VOICE, "own", "2")
        # One that is not loaded is for whom the disk says.
        add_model(world.repository, "own", 2, manifest='tenants = ["index"]')
        entries = [(e.name, e.version) for e in await node.index(INDEX)]
        assert entries == [("m", "1"), ("own", "2")]
        with pytest.raises(UnknownModel, match="no version '2'"):
            await node.model_view(VOICE, "own", "2")
        with pytest.raises(UnknownModel, match="no version '1'"):
            await node.model_view(INDEX, "own", "1")
        with pytest.raises(PermissionDenied, match="may not load"):
            await node.load(VOICE, "own")
        with pytest.raises(UnknownModel):
            await node.unload(INDEX, "own")
        await node.load(INDEX, "own")  # as model.toml will have it
        assert [e.name for e in await node.index(VOICE)] == ["m"]


async def test_a_manifest_that_can_not_be_read_is_for_admins(world: World) -> None:
    add_model(world.repository, "odd", manifest="nothing = 1")
    async with world.started(tenants=TENANTS) as node:
        page = await node.model_detail(ADMIN, "odd", "")
        assert page.versions[0].policy is None
        assert "unknown key 'nothing'" in page.versions[0].reason
        with pytest.raises(UnknownModel):
            await node.model_detail(VOICE, "odd", "")


class CountingDevice(FakeDevice):
    """Says whose SLO gives its bound, and counts how often it is asked; or says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def respond(self, life: FakeLife, frame: frames.AnyFrame) -> None:
        if not isinstance(frame, frames.AskStatistics):
            super().respond(life, frame)
            return
        self.asked += 1
        key = life.of(frames.LoadModel)[0].model
        life.send(frames.Statistics(*[0] * 10, 7, 2, 0, bound_origin="laxity", bound_model=key))


async def test_a_device_is_asked_once_for_all_versions_on_it(world: World) -> None:
    device = world.device = CountingDevice()
    for version in (2, 3):
        add_model(world.repository, "m", version, manifest='versions = "all"')
    async with world.started(startup_models=("m",)) as node:
        before = device.asked
        page = await node.model_detail(DEFAULT_TENANT, "m", "")
        bounds = [v.loaded.bound for v in page.versions if v.loaded]
        assert [(b.bound_ns, b.origin, b.model) for b in bounds] == [
            (7, BoundOrigin.LAXITY, "m")
        ] * 3
        # At most one more of the watcher, which asks each second.
        assert 1 <= device.asked - before <= 2


async def test_a_baseline_is_told_whatever_the_device_says(world: World) -> None:
    settings = SchedulerSettings(slicing=Slicing.NONE)
    device = DeviceSettings("cpu:0", arena_bytes=MIB, scheduler=settings)
    async with world.started(devices=(device,), startup_models=("m",)) as node:
        page = await node.model_detail(DEFAULT_TENANT, "m", "")
        loaded = page.versions[0].loaded
        assert loaded is not None
        assert loaded.bound.origin is BoundOrigin.NO_SLICING
        assert "a whole inference is launched at once on cpu:0" in loaded.verdict.sentence
