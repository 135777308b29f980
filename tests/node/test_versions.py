"""Versions: what a policy selects is brought up beside what serves, and nobody notices a reload."""

import asyncio
from collections.abc import Callable

import pytest

from gpumuxd.domain import COMPLETED, Outcome, OutcomeKind
from gpumuxd.errors import (
    GpumuxdError,
    InvalidModel,
    ModelNotReady,
    OutOfDeviceMemory,
    UnknownModel,
)
from gpumuxd.models.listing import ABSENT
from gpumuxd.node.api import ModelState
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.wire import frames
from tests.node.fakes import FakeLife, call, hash_of, load_badly, load_never, load_well
from tests.node.world import INDEX, TENANTS, VOICE, World

ALL = 'versions = "all"'


def load_all_but(*versions: int) -> Callable[[FakeLife, frames.LoadModel], None]:
    """A device that refuses these versions."""

    def load(life: FakeLife, frame: frames.LoadModel) -> None:
        number = int(frame.model.split("/")[1].split("#")[0])
        (load_badly if number in versions else load_well)(life, frame)

    return load


async def served(world: World, version: str = "") -> str:
    """The version that answers."""
    task = asyncio.ensure_future(world.node.infer(call(version=version)))
    submits = world.life.of(frames.Submit)
    submit = (await world.life.wait_for(frames.Submit, len(submits) + 1))[-1]
    world.life.finish(submit.request_id)
    return (await task).version


async def test_all_selected_versions_serve_and_the_highest_answers_who_names_none(
    world: World,
) -> None:
    for version in (2, 10, 9):
        world.add(version=version, manifest="versions = { latest = 2 }")
    async with world.started(startup_models=("m",)) as node:
        assert await world.states() == {
            "1": "not loaded: model.toml's versions do not select it",
            "2": "not loaded: model.toml's versions do not select it",
            "9": "READY",
            "10": "READY",
        }
        assert [await served(world, v) for v in ("", "9", "10")] == ["10", "9", "10"]
        with pytest.raises(ModelNotReady, match=r"version 2: not loaded: model.toml's versions do"):
            await node.infer(call(version="2"))
        with pytest.raises(UnknownModel, match="no version '3'"):
            await node.infer(call(version="3"))
        view = await node.model_view(DEFAULT_TENANT, "m", "")
        assert (view.version, view.versions) == ("10", ("9", "10"))
        assert node.is_model_ready(DEFAULT_TENANT, "m", "9")
        assert not node.is_model_ready(DEFAULT_TENANT, "m", "2")
        await node.unload(DEFAULT_TENANT, "m")
        states = await world.states()
        assert (states["9"], states["10"]) == ("unloaded", "unloaded")


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        ("", "the default policy (latest) selects version 10"),
        ("slo_ms = 5", "the default policy (latest) selects version 10"),
        ("versions = [10]", "model.toml's versions do not select it"),
    ],
)
async def test_what_is_not_selected_says_by_what(world: World, manifest: str, why: str) -> None:
    world.add(manifest=manifest)
    world.add(version=10, manifest=manifest)
    async with world.started():
        assert await world.states() == {"1": f"not loaded: {why}", "10": "not loaded"}


async def test_a_version_that_is_listed_and_not_there_has_a_row_before_any_load(
    world: World,
) -> None:
    world.add(manifest="versions = [1, 7]")
    async with world.started():
        assert await world.states() == {"1": "not loaded", "7": ABSENT}


async def test_what_serves_says_that_a_newer_copy_is_being_loaded(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        world.add(data=b"v2")
        world.device.on_load = load_never
        task = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
        frame = (await world.life.wait_for(frames.LoadModel, 2))[-1]
        copying = "it serves; a newer copy is being loaded"
        assert await world.state() == (ModelState.READY, copying)
        load_well(world.life, frame)
        await task
        assert await world.state() == (ModelState.READY, "")


async def test_a_new_version_comes_beside_the_others_and_what_did_not_change_is_left_alone(
    world: World,
) -> None:
    world.add(manifest=ALL)
    async with world.started(startup_models=("m",)) as node:
        world.add(version=2)
        await node.load(DEFAULT_TENANT, "m")
        assert world.loaded == ["m/1#1", "m/2#2"]
        world.add(version=1, data=b"other")
        await node.load(DEFAULT_TENANT, "m")
        assert world.loaded == ["m/1#1", "m/2#2", "m/1#3"]
        assert await world.states() == {"1": "READY", "2": "READY"}
        (unload,) = await world.life.wait_for(frames.UnloadModel)
        assert unload.model == "m/1#1"


@pytest.mark.parametrize("change", ["artifact", "manifest", "time"])
async def test_requests_never_fail_because_of_a_reload(world: World, change: str) -> None:
    artifact = world.add()
    async with world.started(startup_models=("m",)) as node:
        world.device.answers_unload = False
        before = asyncio.ensure_future(node.infer(call()))
        (old,) = await world.life.wait_for(frames.Submit)
        if change == "artifact":
            world.add(data=b"v2")
        elif change == "manifest":
            (world.repository / "m" / "model.toml").write_text("slo_ms = 5")
        else:
            artifact.touch()
        world.device.on_load = load_never
        load = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
        (_, frame) = await world.life.wait_for(frames.LoadModel, 2)
        during = asyncio.ensure_future(node.infer(call()))
        (_, middle) = await world.life.wait_for(frames.Submit, 2)
        assert (old.model, middle.model) == ("m/1#1", "m/1#1")
        load_well(world.life, frame)
        await load
        after = asyncio.ensure_future(node.infer(call()))
        (*_, new) = await world.life.wait_for(frames.Submit, 3)
        assert new.model == "m/1#2"
        for submit in (old, middle, new):
            world.life.finish(submit.request_id)
        await asyncio.gather(before, during, after)
        (unload,) = await world.life.wait_for(frames.UnloadModel)
        world.life.send(frames.ModelReleased(unload.model))


async def test_another_policy_alone_loads_nothing_anew(world: World) -> None:
    world.add(version=2, manifest=ALL)
    async with world.started(startup_models=("m",)) as node:
        assert await world.states() == {"1": "READY", "2": "READY"}
        (world.repository / "m" / "model.toml").write_text("versions = [1]")
        await node.load(DEFAULT_TENANT, "m")
        assert len(world.loaded) == 2
        assert (await world.states())["1"] == "READY"
        with pytest.raises(ModelNotReady, match=r"version 2: .*replaced by version 1"):
            await node.infer(call(version="2"))
        assert await served(world) == "1"


async def test_a_version_that_fails_leaves_the_others_and_its_own_older_copy(
    world: World,
) -> None:
    world.add(manifest=ALL)
    world.add(version=2)
    async with world.started(startup_models=("m",)) as node:
        for version in (2, 3, 4):
            world.add(version=version, data=b"new")
        world.device.on_load = load_all_but(2, 3)
        with pytest.raises(InvalidModel) as caught:
            await node.load(DEFAULT_TENANT, "m")
        assert caught.value.message == (
            "model 'm' version 2: it does not compile; version 3: it does not compile "
            "(version 1, 2, 4 serves)"
        )
        assert await world.states() == {
            "1": "READY",
            "2": "it serves as it was loaded before: it does not compile",
            "3": "it does not compile",
            "4": "READY",
        }
        assert [await served(world, v) for v in ("", "1", "2")] == ["4", "1", "2"]


async def test_what_is_wrong_with_its_newer_bits_is_still_so_after_its_device_was_lost(
    world: World,
) -> None:
    async with world.started(startup_models=("m",)) as node:
        world.add(data=b"new")
        world.device.on_load = load_badly
        with pytest.raises(InvalidModel):
            await node.load(DEFAULT_TENANT, "m")
        world.device.on_load = load_well
        world.life.end("signal SIGSEGV")
        await world.device.wait_lives(2)
        await world.wait_ready()
        note = {"1": "it serves as it was loaded before: it does not compile"}
        assert await world.states() == note
        await node.load(DEFAULT_TENANT, "m")
        assert await world.states() == {"1": "READY"}
        await node.unload(DEFAULT_TENANT, "m")
        assert await world.states() == {"1": "unloaded"}


async def test_a_newer_version_that_fails_replaces_nothing(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        world.add(version=2)
        world.device.on_load = load_badly
        with pytest.raises(InvalidModel, match=r"version 2: it does not compile \(version 1 serv"):
            await node.load(DEFAULT_TENANT, "m")
        assert await world.states() == {"1": "READY", "2": "it does not compile"}
        assert await served(world) == "1"
        assert node.is_ready()


@pytest.mark.parametrize(
    ("answers", "error", "is_retryable"),
    [
        ({2: "full"}, OutOfDeviceMemory, True),
        ({2: "full", 3: "bad"}, InvalidModel, False),
        ({2: "bad", 3: "full"}, InvalidModel, False),
    ],
)
async def test_only_when_nothing_else_is_wrong_is_a_failure_worth_another_try(
    world: World, answers: dict[int, str], error: type[GpumuxdError], is_retryable: bool
) -> None:
    world.add(manifest=ALL)
    for version in answers:
        world.add(version=version)

    def load(life: FakeLife, frame: frames.LoadModel) -> None:
        answer = answers.get(int(frame.model.split("/")[1].split("#")[0]))
        if answer is None:
            load_well(life, frame)
        else:
            life.send(frames.ModelFailed(frame.model, answer, is_out_of_memory=answer == "full"))

    world.device.on_load = load
    async with world.started() as node:
        with pytest.raises(error) as caught:
            await node.load(DEFAULT_TENANT, "m")
        assert type(caught.value) is error
        assert caught.value.retryable is is_retryable


async def test_a_broken_version_that_is_selected_is_named_and_the_others_load(
    world: World,
) -> None:
    world.add(manifest="versions = [1, 2, 7]")
    artifact = world.add(version=2)
    artifact.with_name("model.onnx").write_bytes(b"")
    async with world.started() as node:
        with pytest.raises(InvalidModel) as caught:
            await node.load(DEFAULT_TENANT, "m")
        both = "it has model.pt2 and model.onnx: expected one artifact"
        assert caught.value.message == (
            f"model 'm' version 2: {both}; version 7: model.toml lists it under versions, and it "
            "is not there (version 1 serves)"
        )
        assert await world.states() == {"1": "READY", "2": both, "7": ABSENT}


async def test_versions_of_two_formats_are_read_as_what_they_are(world: World) -> None:
    world.add(manifest=ALL)
    directory = world.add(version=2).parent
    (directory / "model.pt2").rename(directory / "model.onnx")
    async with world.started(startup_models=("m",)):
        assert sorted(world.loader.formats) == ["onnx", "pt2"]


async def test_a_tenant_sees_what_is_wrong_with_its_own_versions_alone(world: World) -> None:
    world.add("own", manifest='tenants = ["index"]')
    (world.repository / "own" / "2").mkdir()
    async with world.started(tenants=TENANTS) as node:
        own = [e for e in await node.index(INDEX) if e.name == "own"]
        assert [(e.version, e.state, e.reason) for e in own] == [
            ("1", ModelState.UNAVAILABLE, "not loaded"),
            ("2", ModelState.UNAVAILABLE, "model.pt2 or model.onnx is missing"),
        ]
        assert [e.name for e in await node.index(VOICE)] == ["m"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (hash_of(b"v1") + "  model.pt2\n", None),
        (hash_of(b"v2") + "  model.pt2\n", f"expected {hash_of(b'v2')}, got {hash_of(b'v1')}"),
        ("nonsense", "model.pt2.sha256: expected one line"),
    ],
)
async def test_an_artifact_is_what_its_checksum_says(
    world: World, text: str, message: str | None
) -> None:
    world.add().with_name("model.pt2.sha256").write_text(text)
    async with world.started() as node:
        if message is None:
            await node.load(DEFAULT_TENANT, "m")
            return
        with pytest.raises(InvalidModel, match=f"'m' version 1: .*{message}"):
            await node.load(DEFAULT_TENANT, "m")
        assert message in (await world.states())["1"]
        assert world.loaded == []


async def test_a_checksum_that_comes_later_is_checked_and_a_wrong_one_replaces_nothing(
    world: World,
) -> None:
    path = world.add().with_name("model.pt2.sha256")
    async with world.started(startup_models=("m",)) as node:
        path.write_text(f"{hash_of(b'v1')}  model.pt2")
        await node.load(DEFAULT_TENANT, "m")
        assert world.loaded == ["m/1#1"]  # it is known to be right
        path.write_text(f"{hash_of(b'v2')}  model.pt2")
        with pytest.raises(InvalidModel, match=r"got [0-9a-f]{64} \(version 1 serves\)"):
            await node.load(DEFAULT_TENANT, "m")
        assert "it serves as it was loaded before: model.pt2 is not" in (await world.states())["1"]


async def test_an_unload_with_many_in_flight_ends_each_of_them(world: World) -> None:
    world.add(manifest=ALL)
    world.add(version=2)
    async with world.started(startup_models=("m",)) as node:
        world.device.answers_unload = False
        tasks = [
            asyncio.ensure_future(node.infer(call(version=version))) for version in ("1", "2") * 16
        ]
        submits = await world.life.wait_for(frames.Submit, 32)
        unload = asyncio.ensure_future(node.unload(DEFAULT_TENANT, "m"))
        await world.life.wait_for(frames.UnloadModel, 2)
        with pytest.raises(ModelNotReady, match="being unloaded"):
            await node.infer(call())
        for number, submit in enumerate(submits):
            draining = Outcome(OutcomeKind.DRAINING, "it drains")
            outcome = draining if number % 2 else COMPLETED
            world.life.finish(submit.request_id, outcome=outcome)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(r, GpumuxdError) for r in results] == [False, True] * 16
        assert {r.status for r in results if isinstance(r, GpumuxdError)} == {"UNAVAILABLE"}
        for frame in world.life.of(frames.UnloadModel):
            world.life.send(frames.ModelReleased(frame.model))
        await unload
        assert await world.states() == {"1": "unloaded", "2": "unloaded"}
        assert node.requests_in_flight == 0


async def test_a_lost_device_takes_all_versions_and_they_come_back(world: World) -> None:
    world.add(manifest=ALL)
    world.add(version=2)
    async with world.started(startup_models=("m",)):
        world.life.end("signal SIGSEGV")
        life = await world.device.wait_lives(2)
        await life.wait_for(frames.LoadModel, 2)
        await world.wait_ready()
        await world.node.load(DEFAULT_TENANT, "m")  # behind what is loaded again
        assert await world.states() == {"1": "READY", "2": "READY"}
        assert len(life.of(frames.LoadModel)) == 2
