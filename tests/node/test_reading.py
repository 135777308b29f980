"""An artifact that changes while it is read, or is gone while it serves."""

import asyncio
import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gpumuxd.errors import GpumuxdError, InvalidModel, ModelNotReady, UnknownModel
from gpumuxd.node import artifact_file
from gpumuxd.node.loading import Loading
from gpumuxd.node.settings import LoaderSettings
from gpumuxd.node.tenants import DEFAULT_TENANT
from gpumuxd.wire.channel import Channel
from tests.node.fakes import WAIT_S, FakeLoader, add_model
from tests.node.world import World

CHANGED = "its artifact changed while it was being read; retry"
GONE = "its artifact went away while it was being read"


def set_back(path: Path) -> None:
    """Other bytes of the same length, and a time as before."""
    status = path.stat()
    path.write_bytes(b"V1")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_file(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"v1")
    other.replace(path)


def replace_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name(".old"))
    path.parent.mkdir()
    path.write_bytes(b"v1")


def make_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: path.write_bytes(b""), CHANGED),
    (lambda path: os.truncate(path, 1), CHANGED),
    (lambda path: path.write_bytes(b"v1 and more"), CHANGED),
    (set_back, CHANGED),
    (replace_file, CHANGED),
    (replace_directory, CHANGED),
    (make_link, CHANGED),
    (Path.unlink, GONE),
    (lambda path: shutil.rmtree(path.parents[1]), GONE),
]


@pytest.mark.parametrize("answer", ["read_well", "refuse", "crash"])
@pytest.mark.parametrize(("change", "message"), CHANGES)
async def test_what_changes_while_it_is_read_is_no_model_and_no_fault_of_it(
    world: World, change: Callable[[Path], object], message: str, answer: str
) -> None:
    path = world.repository / "m" / "1" / "model.pt2"
    world.loader.answer = getattr(world.loader, answer)
    world.loader.on_read = lambda: change(path)  # type: ignore[assignment]  # what it returns
    async with world.started() as node:
        with pytest.raises(ModelNotReady, match=f"^model 'm' version 1: {message}$"):
            await node.load(DEFAULT_TENANT, "m")
        assert world.loaded == []


async def test_a_file_that_is_only_looked_at_did_not_change(world: World) -> None:
    path = world.repository / "m" / "1" / "model.pt2"
    world.loader.on_read = lambda: os.utime(path.parent)
    async with world.started() as node:
        await node.load(DEFAULT_TENANT, "m")
        path.read_bytes()
        os.utime(path, ns=(1, path.stat().st_mtime_ns))  # a backup that sets the time of access
        os.link(path, path.with_name("backup"))
        await node.load(DEFAULT_TENANT, "m")
        assert world.loaded == ["m/1#1"]


async def test_what_changed_serves_after_another_try(world: World) -> None:
    async with world.started() as node:
        world.loader.on_read = lambda: world.add(data=b"v2")  # type: ignore[assignment]  # as above
        with pytest.raises(ModelNotReady):
            await node.load(DEFAULT_TENANT, "m")
        world.loader.on_read = lambda: None
        await node.load(DEFAULT_TENANT, "m")
        assert await world.states() == {"1": "READY"}


@pytest.mark.parametrize(
    ("path", "note", "error", "message"),
    [
        ("m", "its files are gone from the repository", UnknownModel, "no model 'm'"),
        ("m/1", "its files are gone from the repository", InvalidModel, "no version"),
        ("m/1/model.pt2", "model.pt2 or model.onnx is missing", InvalidModel, "is missing"),
    ],
)
async def test_a_model_whose_files_are_gone_serves_until_it_is_unloaded(
    world: World, path: str, note: str, error: type[GpumuxdError], message: str
) -> None:
    async with world.started(startup_models=("m",)) as node:
        gone = world.repository / path
        gone.unlink() if gone.is_file() else shutil.rmtree(gone)
        if path == "m/1":
            note = "no version: expected a directory named by a number"
        assert (await world.states())["1"] == f"it serves until it is unloaded; {note}"
        assert node.is_model_ready(DEFAULT_TENANT, "m", "1")
        with pytest.raises(error, match=message):
            await node.load(DEFAULT_TENANT, "m")
        assert node.is_model_ready(DEFAULT_TENANT, "m", "1")
        # Its bits are kept: a device that is started again needs no file.
        world.life.end("signal SIGSEGV")
        await world.device.wait_lives(2)
        await world.wait_ready()
        await node.unload(DEFAULT_TENANT, "m")
        assert not node.is_model_ready(DEFAULT_TENANT, "m", "")
        assert "serves" not in (await world.states()).get("1", "")


async def test_a_disk_that_hangs_costs_this_load_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    begun: list[str] = []
    real = artifact_file.open_regular

    def hang(path: Path) -> int:
        if path.is_relative_to(hanging):
            begun.append(path.parents[1].name)
            assert goes_on.wait(WAIT_S)
        return real(path)

    monkeypatch.setattr(artifact_file, "open_regular", hang)
    monkeypatch.setattr(artifact_file, "DISK_S_MAX", 0.02)
    names = [f"slow{i}" for i in range(20)]
    hanging = world.repository.with_name("hanging")
    for name in names:
        add_model(hanging, name)
    changes = {
        "loader": LoaderSettings(loaders_max=1),
        "repository_paths": (hanging, world.repository),
    }
    async with world.started(**changes) as node:
        slow = [asyncio.ensure_future(node.load(DEFAULT_TENANT, name)) for name in names]
        results = await asyncio.gather(*slow, return_exceptions=True)
        monkeypatch.setattr(
            artifact_file, "DISK_S_MAX", WAIT_S
        )  # a busy machine is no hanging disk
        await node.load(DEFAULT_TENANT, "m")
        told = Counter(str(result).split(": ")[-1] for result in results)
        assert told == {
            "its disk did not answer in 0 s; retry": 1,
            "its disk does not answer; retry": 19,
        }
        assert begun == ["slow0"]  # one thread, and not twenty
        goes_on.set()
        monkeypatch.undo()
        async with asyncio.timeout(WAIT_S):
            while not node.is_model_ready(DEFAULT_TENANT, "slow0", ""):
                with contextlib.suppress(ModelNotReady):  # until its disk has answered
                    await node.load(DEFAULT_TENANT, "slow0")


async def test_nothing_is_written_where_models_are(world: World) -> None:
    world.add(manifest='versions = "all"')
    world.add(version=2)
    paths = [world.repository, *world.repository.rglob("*")]
    before = {path: path.lstat().st_mtime_ns for path in paths}
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    state = world.repository.with_name("state")
    state.mkdir()
    async with world.started(startup_models=("m",), journal_path=state / "loads.json") as node:
        await node.load(DEFAULT_TENANT, "m")
        await node.index(DEFAULT_TENANT)
        await node.unload(DEFAULT_TENANT, "m")
    for path in paths:
        path.chmod(0o755)
    # As root it could have written all the same.
    after = {p: p.lstat().st_mtime_ns for p in (world.repository, *world.repository.rglob("*"))}
    assert after == before
    shutil.rmtree(state)


async def test_an_artifact_that_became_a_pipe_is_refused_before_a_loader_starts(
    tmp_path: Path,
) -> None:
    loader = FakeLoader()
    os.mkfifo(tmp_path / "model.pt2")
    with pytest.raises(InvalidModel, match=r"^its artifact is not a regular file$"):
        await Loading(LoaderSettings(), loader.spawn).read(tmp_path / "model.pt2")
    assert loader.children == []


async def test_a_read_that_is_given_up_at_its_very_end_leaves_nothing_open(world: World) -> None:
    async with world.started() as node:
        loads = node._registry.loads

        def kill_and_give_up(channel: Channel, data: bytes) -> None:
            world.loader.read_well(channel, data)
            child = world.loader.children[-1]
            kill = child.kill

            def kill_late() -> None:
                kill()
                (task,) = loads._tasks
                task.cancel()

            child.kill = kill_late  # type: ignore[method-assign]  # this one child alone

        world.loader.answer = kill_and_give_up
        with pytest.raises(asyncio.CancelledError):
            await node.load(DEFAULT_TENANT, "m")
        assert await world.states() == {"1": "load stopped"}
