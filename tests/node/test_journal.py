"""The journal: what clients loaded serves again after a restart, and no file of it is fatal."""

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpumuxd.errors import InvalidModel, ModelNotReady, UnknownModel
from gpumuxd.node import journal as journals
from gpumuxd.node.journal import JOURNAL_NAME, MODELS_MAX, Journal
from gpumuxd.node.settings import RepositoryMode
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.wire import frames
from tests.node.fakes import WAIT_S, call, load_badly, load_never, load_well
from tests.node.world import ADMIN, INDEX, TENANTS, World


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state") / JOURNAL_NAME


def put(path: Path, *names: str) -> None:
    path.write_bytes(json.dumps({"version": 1, "models": names}).encode())


def is_there(path: Path) -> bool:
    return path.exists()


def put_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def read(path: Path) -> bytes:
    return path.read_bytes()


def kept(path: Path) -> list[str]:
    data = json.loads(path.read_text())
    assert data.pop("version") == 1
    (names,) = data.values()
    return list(names)


async def reopened(path: Path) -> tuple[str, ...]:
    journal = Journal(path)
    await journal.open()
    return journal.models


# The file


async def test_what_is_added_and_not_removed_is_there_after_a_restart(path: Path) -> None:
    journal = Journal(path)
    await journal.open()
    for name in ("b", "a", "c", "a"):
        await journal.add(name)
    await journal.remove("c")
    await journal.remove("never")
    assert await reopened(path) == ("b", "a") == journal.models
    assert os.listdir(path.parent) == [JOURNAL_NAME]


async def test_many_at_once_are_all_on_disk_when_their_calls_return(path: Path) -> None:
    journal = Journal(path)
    names = [f"m{i}" for i in range(50)]

    async def add(name: str) -> None:
        await journal.add(name)
        assert name in kept(path)

    await asyncio.gather(*(add(name) for name in names))
    assert list(await reopened(path)) == names


BROKEN: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"\xff",
    b'{"models": []}',
    b'{"version": 2, "models": []}',
    b'{"version": "1", "models": []}',
    b'{"version": 1}',
    b'{"version": 1, "models": "m"}',
    b'{"version": 1, "models": [1]}',
    b'{"version": 1, "models": ["../m"]}',
    b'{"version": 1, "models": ["m"], "more": 1}',
    b'{"version": 1, "models": [], "more": ' + b"[" * 100_000,
    json.dumps({"version": 1, "models": [f"m{i}" for i in range(MODELS_MAX + 1)]}).encode(),
    b" " * (journals.FILE_BYTES_MAX + 1),
]


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
async def test_one_that_can_not_be_understood_is_moved_aside_and_begun_anew(
    path: Path, data: bytes
) -> None:
    put_bytes(path, data)
    with capture_logs() as lines:
        assert await reopened(path) == ()
    ((event, level),) = [(line["event"], line["log_level"]) for line in lines]
    assert (event, level) == ("journal_unusable", "error")
    assert read(path.with_name("loads.json.bad")) == data
    assert not is_there(path)
    journal = Journal(path)
    await journal.open()
    await journal.add("m")
    assert await reopened(path) == ("m",)


async def test_a_pipe_in_its_place_is_moved_aside_and_nobody_waits_for_it(path: Path) -> None:
    os.mkfifo(path)
    with capture_logs() as lines:
        assert await reopened(path) == ()
    assert [line["reason"] for line in lines] == ["is not a regular file"]
    assert os.listdir(path.parent) == ["loads.json.bad"]


async def test_a_crash_while_it_is_written_leaves_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(path)
    await journal.add("m")

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journals.os, "fsync", fail)
    with capture_logs() as lines:
        await journal.add("n")
        await journal.add("o")  # told once
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("journal_not_written", "No space left on device")
    ]
    assert await reopened(path) == ("m",)
    assert os.listdir(path.parent) == [JOURNAL_NAME]
    monkeypatch.undo()
    await journal.add("p")
    assert await reopened(path) == ("m", "n", "o", "p")


async def test_it_is_never_written_in_place(path: Path) -> None:
    journal = Journal(path)
    await journal.add("m")
    before = read(path)
    opened = os.open(path, os.O_RDONLY)
    try:
        await journal.add("n")
        assert os.read(opened, 1000) == before
        assert kept(path) == ["m", "n"]
    finally:
        os.close(opened)


async def test_a_disk_that_hangs_keeps_nobody_who_loads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    real = os.fsync

    def hang(fd: int) -> None:
        assert goes_on.wait(WAIT_S)
        real(fd)

    monkeypatch.setattr(journals.os, "fsync", hang)
    monkeypatch.setattr(journals, "WRITE_S_MAX", 0.02)
    journal = Journal(path)
    with capture_logs() as lines:
        for name in ("m", "n", "o"):
            await journal.add(name)
    assert [line["reason"] for line in lines] == ["its disk did not answer in 0 s"]
    goes_on.set()
    monkeypatch.undo()
    await journal.add("p")
    assert await reopened(path) == ("m", "n", "o", "p")


async def test_more_models_than_it_may_keep(path: Path) -> None:
    put(path, *(f"m{i}" for i in range(MODELS_MAX)))
    journal = Journal(path)
    await journal.open()
    with capture_logs() as lines:
        await journal.add("one more")
    assert [line["event"] for line in lines] == ["journal_not_written"]
    assert len(journal.models) == MODELS_MAX
    await journal.remove("m0")
    await journal.add("m")
    assert kept(path)[-1] == "m"


# The node


async def test_loads_of_clients_are_kept_and_others_are_not(world: World, path: Path) -> None:
    for name in ("asked", "gone", "start"):
        world.add(name)
    async with world.started(startup_models=("start",), journal_path=path) as node:
        await asyncio.gather(*(node.load(DEFAULT_TENANT, name) for name in ("asked", "gone", "m")))
        await node.unload(DEFAULT_TENANT, "gone")
        await node.unload(DEFAULT_TENANT, "start")
        with pytest.raises(UnknownModel):
            await node.load(DEFAULT_TENANT, "absent")
        assert sorted(kept(path)) == ["asked", "m"]
    async with world.started() as node:
        await world.wait_ready()
        for name in ("asked", "m", "start"):
            assert node.is_model_ready(DEFAULT_TENANT, name, ""), name
        assert not node.is_model_ready(DEFAULT_TENANT, "gone", "")


async def test_a_load_that_joins_the_one_of_the_start_is_kept(world: World, path: Path) -> None:
    world.device.on_load = load_never
    async with world.started(journal_path=path) as node:
        start = asyncio.ensure_future(node._registry.loads.load("m"))
        asked = asyncio.ensure_future(node._registry.loads.load("m", is_asked_for=True))
        (load,) = await world.life.wait_for(frames.LoadModel)
        load_well(world.life, load)
        await asyncio.gather(start, asked)
        assert kept(path) == ["m"]
        assert len(world.loaded) == 1


@pytest.mark.parametrize(("serves", "is_kept"), [(True, True), (False, False)])
async def test_a_load_that_fails_is_kept_if_something_serves(
    world: World, path: Path, serves: bool, is_kept: bool
) -> None:
    startup_models = ("m",) if serves else ()
    async with world.started(journal_path=path, startup_models=startup_models) as node:
        world.add(version=2)
        world.device.on_load = load_badly
        with pytest.raises(InvalidModel):
            await node.load(DEFAULT_TENANT, "m")
        assert is_there(path) is is_kept


async def test_a_kept_model_that_can_not_be_loaded_says_why_and_stays_until_it_is_unloaded(
    world: World, path: Path
) -> None:
    put(path, "gone", "bad", "m")
    world.add("bad", manifest="slo = 1")
    with capture_logs() as lines:
        async with world.started(journal_path=path, tenants=TENANTS) as node:
            await world.wait_ready()  # each was tried once
            assert node.is_model_ready(INDEX, "m", "")
            assert await world.states("gone") == {"": "no model 'gone' in the repository"}
            assert (await world.states("bad"))[""].startswith("model.toml: unknown key 'slo'")
            assert [e.name for e in await node.index(INDEX)] == ["m"]
            assert kept(path) == ["gone", "bad", "m"]
            with pytest.raises(UnknownModel):
                await node.unload(INDEX, "gone")
            for name in ("gone", "bad"):
                await node.unload(ADMIN, name)
            assert kept(path) == ["m"]
            assert await world.states("gone") == {}
            with pytest.raises(UnknownModel):
                await node.unload(ADMIN, "gone")
    failed = {x["model"] for x in lines if x["event"] == "journalled_model_failed"}
    assert failed == {"gone", "bad"}


async def test_a_repository_that_is_missing_at_a_restart_is_named_and_its_models_come_back(
    world: World, path: Path
) -> None:
    put(path, "m", "mine")
    away = world.repository.with_name("away")
    world.repository.rename(away)
    silent = "its repository can't be read: No such file or directory"
    with capture_logs() as lines:
        async with world.started(journal_path=path, tenants=TENANTS) as node:
            await world.wait_ready()
            assert await world.states("m") == {"": f"model 'm': {silent}; retry"}
            for name in ("m", "other"):
                with pytest.raises(ModelNotReady, match=silent):
                    await node.infer(call(model=name, tenant=INDEX))
            assert node.view().reason == (
                f"repository {world.repository} can't be read: No such file or directory"
            )
            await node.unload(ADMIN, "mine")  # nobody wants it back
            await node._startup.retry()
            assert world.loaded == []
            away.rename(world.repository)
            world.add("mine")
            await node._startup.retry()
            assert await world.states("m") == {"1": "READY"}
            assert await world.states("mine") == {"1": "not loaded"}
            assert node.view().reason == ""
            await node.unload(ADMIN, "m")
            await node._startup.retry()
            assert await world.states("m") == {"1": "unloaded"}
    events = [x["event"] for x in lines if x["event"].startswith("repository")]
    assert events == ["repository_silent", "repository_answers_again"]


async def test_what_is_tried_again_is_so_by_itself_also_startup_models(
    world: World, path: Path
) -> None:
    away = world.repository.with_name("away")
    world.repository.rename(away)
    async with world.started(journal_path=path, startup_models=("m",), poll_ns=1_000_000):
        away.rename(world.repository)
        await world.wait_ready()


async def test_a_missing_repository_is_logged_at_the_start_though_nobody_asks(
    world: World,
) -> None:
    world.repository.rename(world.repository.with_name("away"))
    with capture_logs() as lines:
        async with world.started() as node:
            while not node._registry.catalogue.silent:
                await asyncio.to_thread(os.sched_yield)
    assert "repository_silent" in [x["event"] for x in lines]


async def test_the_node_serves_while_it_restores_and_is_ready_when_each_was_tried(
    world: World, path: Path
) -> None:
    put(path, "m", "slow")
    world.add("slow")

    def load(life: object, frame: frames.LoadModel) -> None:
        if not frame.model.startswith("slow/"):
            load_well(world.life, frame)

    world.device.on_load = load
    async with world.started(journal_path=path) as node:
        (first, second) = await world.life.wait_for(frames.LoadModel, 2)
        slow = first if first.model.startswith("slow/") else second
        task = asyncio.ensure_future(node.load(DEFAULT_TENANT, "m"))
        async with asyncio.timeout(WAIT_S):
            await task
        assert not node.is_ready()
        assert node.view().reason == "models are being loaded"
        assert world.readiness == []
        load_well(world.life, slow)
        await world.wait_ready()
        assert world.readiness == [True]


async def test_a_stop_while_it_restores_forgets_nothing(world: World, path: Path) -> None:
    put(path, "m")
    world.device.on_load = load_never
    async with world.started(journal_path=path) as node:
        await world.life.wait_for(frames.LoadModel)
        await node.drain()
    assert kept(path) == ["m"]


@pytest.mark.parametrize("mode", RepositoryMode)
async def test_only_explicit_mode_keeps_a_journal(
    world: World, path: Path, mode: RepositoryMode
) -> None:
    put(path, "absent")
    before = read(path)
    with capture_logs() as lines:
        async with world.started(journal_path=path, repository_mode=mode):
            await world.wait_ready()
    assert read(path) == before
    told = [line for line in lines if line["event"] == "journalled_model_failed"]
    assert len(told) == (mode is RepositoryMode.EXPLICIT)


async def test_a_state_directory_that_can_not_be_written_costs_one_warning(
    world: World, path: Path
) -> None:
    world.add("n")
    with capture_logs() as lines:
        # As root a directory's mode forbids nothing; that there is none does.
        missing = path.parent / "missing" / JOURNAL_NAME
        async with world.started(journal_path=missing) as node:
            for name in ("m", "n"):
                await node.load(DEFAULT_TENANT, name)
                assert node.is_model_ready(DEFAULT_TENANT, name, "")
    (warning,) = [line for line in lines if line["event"] == "journal_not_written"]
    assert warning["reason"] == "No such file or directory"


# Startup models


async def test_a_star_is_every_model_that_is_there(world: World) -> None:
    world.add("n")
    world.add("bad", manifest="slo = 1")
    (world.repository / "lost+found").mkdir()
    async with world.started(startup_models=("*",)) as node:
        assert node.is_model_ready(DEFAULT_TENANT, "m", "")
        assert node.is_model_ready(DEFAULT_TENANT, "n", "")
        assert "model 'bad': model 'bad': model.toml: unknown key" in node.view().reason
        assert not node.is_ready()
        world.add("later")
        (world.repository / "bad" / "model.toml").unlink()
        await node.load(DEFAULT_TENANT, "bad")
        assert node.is_ready()
