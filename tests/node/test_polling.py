"""Poll mode: what serves is what is in the repositories, and nothing is read while it is copied."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from gpumuxd.errors import WrongMode
from gpumuxd.node.node import Node
from gpumuxd.node.polling import Polling
from gpumuxd.node.settings import RepositoryMode
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S, add_model, call, load_badly, load_never, load_well
from tests.node.world import World

POLL = RepositoryMode.POLL


@asynccontextmanager
async def polled(world: World, **changes: object) -> AsyncIterator[Node]:
    """A node that has looked once. It looks again when the test says so; its own next look is a day
    away."""
    day_ns = 24 * 3600 * 10**9
    async with world.started(repository_mode=POLL, poll_ns=day_ns, **changes) as node:
        async with asyncio.timeout(WAIT_S):
            while node._startup.is_trying:
                await poller(node).wait_settled()
                await asyncio.sleep(0)
        yield node


def poller(node: Node) -> Polling:
    assert node.polling is not None
    return node.polling


async def look(node: Node, times: int = 1) -> None:
    """Look at the repositories, and do what there is to do."""
    async with asyncio.timeout(WAIT_S):
        for _ in range(times):
            await poller(node).poll()
            await poller(node).wait_settled()


async def test_all_that_is_there_is_loaded_and_the_node_is_ready_when_each_was_tried(
    world: World,
) -> None:
    world.add("n")
    world.add("bad", manifest="slo = 1")
    (world.repository / "lost+found").mkdir()
    world.device.on_load = load_never
    async with world.started(repository_mode=POLL) as node:
        loads = await world.life.wait_for(frames.LoadModel, 2)
        assert not node.is_ready()
        for load in loads:
            load_well(world.life, load)
        await world.wait_ready()
        assert (await world.states("m"), await world.states("n")) == ({"1": "READY"},) * 2
        assert "expected letters" in (await world.states("lost+found"))[""]
        assert list(poller(node)._done) == ["bad", "m", "n"]


async def test_clients_may_not_load_or_unload(world: World) -> None:
    async with polled(world) as node:
        for attempt in (node.load(DEFAULT_TENANT, "m"), node.unload(DEFAULT_TENANT, "m")):
            with pytest.raises(WrongMode, match=r"\[repository\] mode is 'poll'"):
                await attempt
        assert node.is_model_ready(DEFAULT_TENANT, "m", "")


async def test_a_change_counts_when_two_looks_saw_the_same(world: World) -> None:
    async with polled(world) as node:
        for size in range(3):  # it is being copied
            world.add(version=2, data=b"x" * size)
            await look(node)
            assert world.loaded == ["m/1#1"]
        await look(node)
        assert world.loaded == ["m/1#1", "m/2#2"]
        assert await world.states() == {"1": "replaced by version 2", "2": "READY"}
        await look(node, 3)
        assert len(world.loaded) == 2


async def test_manifests_checksums_and_names_are_followed(world: World) -> None:
    async with polled(world) as node:
        world.add("new")
        await look(node)
        assert "new" not in " ".join(world.loaded)
        await look(node)
        assert await world.states("new") == {"1": "READY"}
        (world.repository / "m" / "model.toml").write_text("slo_ms = 3")
        await look(node, 2)
        assert [frame.slo_ns for frame in world.life.of(frames.LoadModel)] == [
            None,
            None,
            3_000_000,
        ]
        (world.repository / "m" / "1" / "model.pt2.sha256").write_text("nonsense")
        await look(node, 2)
        assert "it serves as it was loaded before" in (await world.states())["1"]
        (world.repository / "m" / "1" / "model.pt2.sha256").unlink()
        await look(node, 2)
        assert await world.states() == {"1": "READY"}
        assert len(world.loaded) == 3


async def test_what_is_gone_is_unloaded_at_the_second_look(world: World) -> None:
    async with polled(world) as node:
        away = world.repository.with_name("away")
        (world.repository / "m").rename(away)
        await look(node)
        assert node.is_model_ready(DEFAULT_TENANT, "m", "")
        away.rename(world.repository / "m")  # it was only replaced
        await look(node, 2)
        assert world.loaded == ["m/1#1"]
        shutil.rmtree(world.repository / "m")
        await look(node, 2)
        assert not node.is_model_ready(DEFAULT_TENANT, "m", "")
        assert await world.states() == {}
        world.add()
        await look(node, 2)
        assert await world.states() == {"1": "READY"}


async def test_a_version_that_is_gone_goes_and_the_next_one_answers(world: World) -> None:
    world.add(version=2)
    async with polled(world) as node:
        assert world.loaded == ["m/2#1"]
        shutil.rmtree(world.repository / "m" / "2")
        await look(node, 2)
        assert (await world.states())["1"] == "READY"
        assert node.is_model_ready(DEFAULT_TENANT, "m", "1")
        assert not node.is_model_ready(DEFAULT_TENANT, "m", "2")


async def test_what_failed_is_tried_again_when_it_changes_and_not_before(world: World) -> None:
    world.device.on_load = load_badly
    async with polled(world) as node:
        await look(node, 3)
        assert len(world.loaded) == 1
        world.add(version=2)
        world.device.on_load = load_well
        (world.repository / "m" / "model.toml").write_text('versions = "all"')
        await look(node, 2)
        # With another manifest version 1 might do better.
        assert sorted(key.split("#")[0] for key in world.loaded) == ["m/1", "m/1", "m/2"]


async def test_what_is_wrong_is_logged_once_and_not_at_every_look(world: World) -> None:
    world.add("manifest", manifest="slo = 1")
    world.add("listed", manifest="versions = [1, 7]")
    world.device.on_load = load_badly
    with capture_logs() as lines:
        async with polled(world) as node:
            await look(node, 3)
    told = sorted(line["model"] for line in lines if line["event"] == "model_not_followed")
    assert told == ["listed", "m", "manifest"]


async def test_a_failed_version_is_left_alone_when_another_one_comes(world: World) -> None:
    world.add(manifest='versions = "all"')
    world.device.on_load = load_badly
    async with polled(world) as node:
        world.device.on_load = load_well
        world.add(version=2)
        shutil.copystat(world.repository / "m" / "1", world.repository / "m" / "2")
        await look(node, 3)
        assert world.loaded == ["m/1#1", "m/2#2"]
        assert await world.states() == {"1": "it does not compile", "2": "READY"}


async def test_what_was_only_not_ready_is_tried_at_the_next_look(world: World) -> None:
    world.add("n")
    world.loader.refusals = 2
    async with polled(world) as node:
        assert "no process to read it with" in (await world.states())["1"]
        assert world.loaded == []
        await look(node)
        assert (await world.states(), await world.states("n")) == ({"1": "READY"},) * 2


async def test_a_load_that_takes_long_holds_up_no_other_model(world: World) -> None:
    async with polled(world) as node:
        world.device.on_load = load_never
        world.add("slow")
        await poller(node).poll()
        await poller(node).poll()
        slow = (await world.life.wait_for(frames.LoadModel, 2))[-1]
        world.device.on_load = load_well
        world.add("quick")
        for _ in range(3):
            await poller(node).poll()
        await world.life.wait_for(frames.LoadModel, 3)
        assert [key.split("/")[0] for key in world.loaded] == ["m", "slow", "quick"]
        world.add("slow", data=b"changed")
        begun = poller(node)._busy["slow"]
        for _ in range(3):
            await poller(node).poll()
        assert poller(node)._busy["slow"] is begun  # one load of a model at a time
        load_well(world.life, slow)
        await poller(node).wait_settled()
        await look(node, 2)
        assert [key.split("/")[0] for key in world.loaded] == ["m", "slow", "quick", "slow"]
        assert await world.states("slow") == {"1": "READY"}


async def test_a_repository_that_is_not_there_any_more_takes_no_model_with_it(
    world: World,
) -> None:
    other = world.repository.with_name("other")
    add_model(other, "m", data=b"another")
    async with polled(world, repository_paths=(world.repository, other)) as node:
        away = world.repository.with_name("away")
        world.repository.rename(away)
        with capture_logs() as lines:
            await look(node, 4)
        assert world.loaded == ["m/1#1"]
        assert await world.states() == {
            "1": "it serves; its repository can't be read: No such file or directory",
            "": "repository 2 in [repository].paths has this name too; the one in repository 1 "
            "counts",
        }
        assert [line["event"] for line in lines] == ["repository_silent"]
        away.rename(world.repository)
        await look(node, 3)
        assert world.loaded == ["m/1#1"]


async def test_a_drain_ends_the_polling(world: World) -> None:
    async with world.started(repository_mode=POLL, poll_ns=1) as node:
        await world.wait_ready()
        await node.drain()
        assert node._startup._rest is not None
        await asyncio.wait([node._startup._rest])
        assert node._startup._rest.cancelled()


async def test_it_looks_again_by_itself(world: World) -> None:
    async with world.started(repository_mode=POLL, poll_ns=1_000_000) as node:
        await world.wait_ready()
        world.add(version=2)
        await world.life.wait_for(frames.LoadModel, 2)
        task = asyncio.ensure_future(node.infer(call()))
        (submit,) = await world.life.wait_for(frames.Submit)
        world.life.finish(submit.request_id)
        assert (await task).version in ("1", "2")
