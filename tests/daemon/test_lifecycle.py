"""A daemon whose device dies, whose models come and go, and which is told to stop meanwhile."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
from pathlib import Path

import grpc
import numpy as np
import pytest
from gpumuxd_client import AsyncClient
from gpumuxd_client.errors import GpumuxdError
from gpumuxd_client.types import InferResult
from grpc_health.v1 import health_pb2

from tests.daemon.harness import LIMIT_S, Daemon, Site

X = np.arange(8, dtype=np.float32).reshape(2, 4)
BUSY_X = np.ones((1, 384), dtype=np.float32)

POLL_S = 0.01
REFUSALS = {"UNAVAILABLE", "RESOURCE_EXHAUSTED"}
"""What may be said of a model that comes and goes. Each of them may be asked for again."""

SEED = 5


@pytest.fixture
def site(socket_dir: Path, repository: Path) -> Site:
    """With a repository of its own, since models in it change."""
    shutil.copytree(repository, socket_dir / "models")
    return Site(socket_dir, socket_dir / "models")


async def tick(nobody: asyncio.Event) -> None:
    """The time between two polls: nobody sets this event."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(nobody.wait(), POLL_S)


async def is_healthy(channel: grpc.aio.Channel) -> bool:
    """As grpc.health.v1 says, which asks for no name of a model."""
    check: grpc.aio.UnaryUnaryMultiCallable[
        health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    ] = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    answer = await check(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def losses(daemon: Daemon) -> int:
    return daemon.log.count('"device_lost"')


async def test_readiness_is_true_at_every_moment_of_a_device_that_dies_and_comes_back(
    site: Site,
) -> None:
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        nobody = asyncio.Event()
        async with (
            AsyncClient(site.target, retries=0) as client,
            grpc.aio.insecure_channel(site.target) as health,
            asyncio.timeout(LIMIT_S),
        ):
            assert await client.server_ready()
            assert await is_healthy(health)
            (device,) = (await client.node_status()).devices
            os.kill(device.pid, signal.SIGKILL)
            was_ready = [True]
            healthy: set[bool] = set()
            polls: list[tuple[bool, int]] = []
            asked: list[tuple[bool, int, asyncio.Task[object]]] = []
            # Until it was seen to be away and back, and ten polls more.
            while False not in was_ready or len(was_ready) < 10 or not all(was_ready[-10:]):
                was_lost = losses(daemon)
                # One after the other: the node is ready after its models are.
                was_healthy = await is_healthy(health)
                is_ready = await client.server_ready()
                if was_healthy == await is_healthy(health):
                    assert is_ready == was_healthy, "it was not away and back in between"
                    healthy.add(was_healthy)
                is_model_ready = await client.model_ready("tiny")
                polls.append((is_model_ready or not is_ready, was_lost))
                # Nobody waits for the answer here: who is sent while the device is away may get
                # it when that is back.
                task = asyncio.ensure_future(ask_tiny(client))
                asked.append((is_model_ready, was_lost, task))
                was_ready.append(is_ready)
                await tick(nobody)
            for is_model_ready, was_lost, task in asked:
                refused = await task
                if refused is not None and is_model_ready:
                    assert losses(daemon) > was_lost, refused  # the loss came in between
            # The loss came in between, where the node was ready without its model.
            assert all(agree or losses(daemon) > was_lost for agree, was_lost in polls)
            assert losses(daemon) == 1
            assert healthy == {True, False}


async def test_models_that_come_and_go_under_many_hands_answer_right_or_say_why(
    site: Site,
) -> None:
    print(f"seed {SEED}")
    with Daemon.running(site) as daemon:
        daemon.wait_notified("READY=1")
        async with AsyncClient(site.target, retries=0) as client, asyncio.timeout(LIMIT_S):
            told = await hammer(client, site)
            assert told["tiny"] > 0, "no request was ever answered"
            # Whatever it was at the end, all of it can be had again, and given back.
            for name in ("tiny", "busy"):
                await client.load(name)
            np.testing.assert_array_equal((await client.infer("tiny", {"x": X}))["y"], X * 2 + 1)
            await settle(client)
            before = descriptors(daemon.pid)
            await fail_to_load(client, site)
            for name in ("tiny", "busy"):
                await client.unload(name)
                await client.load(name)
            await settle(client)
            assert descriptors(daemon.pid) <= before
            assert len(children(daemon.pid)) == 2, "a device child and the starter of loaders"
        journal = json.loads((site.directory / "state" / "loads.json").read_text())
        assert sorted(journal["models"]) == ["busy", "tiny"]
        daemon.signal(signal.SIGTERM)
        assert daemon.wait_exit() == 0


def is_right(name: str, result: object) -> bool:
    """An answer that is right, or a refusal that says that it may be asked for again."""
    if isinstance(result, GpumuxdError):
        assert result.status in REFUSALS, result
        assert result.is_retryable
        return False
    assert isinstance(result, InferResult), result
    if name == "tiny":
        np.testing.assert_array_equal(result["y"], X * 2 + 1)
    return True


async def ask_tiny(client: AsyncClient) -> object:
    """Why it was refused, None if it was answered, and right."""
    (result,) = await asyncio.gather(client.infer("tiny", {"x": X}), return_exceptions=True)
    return None if is_right("tiny", result) else result


async def hammer(client: AsyncClient, site: Site) -> dict[str, int]:
    """Four clients change two models at random, while a fifth asks both; answers by model."""
    answered = dict.fromkeys(("tiny", "busy"), 0)
    is_over = asyncio.Event()

    async def change(number: int) -> None:
        rng = random.Random(f"{SEED} {number}")
        async with AsyncClient(site.target, retries=0) as mine:
            for _ in range(6):
                name = rng.choice(("tiny", "busy"))
                what = rng.choice(("load", "load", "unload", "reload"))
                if what == "reload":  # what is on the disk is new, and the same
                    (site.directory / "models" / name / "1" / "model.pt2").touch()
                with contextlib.suppress(GpumuxdError):
                    await (mine.unload(name) if what == "unload" else mine.load(name))

    async def ask() -> None:
        while not is_over.is_set():
            for name, x in (("tiny", X), ("busy", BUSY_X)):
                result = await asyncio.gather(client.infer(name, {"x": x}), return_exceptions=True)
                answered[name] += is_right(name, result[0])

    asking = asyncio.ensure_future(ask())
    try:
        await asyncio.gather(*(change(number) for number in range(4)))
    finally:
        is_over.set()
        await asking
    return answered


async def fail_to_load(client: AsyncClient, site: Site) -> None:
    """Some that are no artifacts, one after the other and at once."""
    for index in range(3):
        path = site.directory / "models" / f"bad{index}" / "1" / "model.pt2"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"PK\x03\x04 no archive")
    names = [f"bad{index}" for index in range(3)] * 2
    results = await asyncio.gather(*(client.load(name) for name in names), return_exceptions=True)
    assert {getattr(result, "status", "") for result in results} == {"INVALID_ARGUMENT"}
    index = {entry.name: entry for entry in await client.index()}
    for name in names:
        assert index[name].state == "UNAVAILABLE"


async def settle(client: AsyncClient) -> None:
    """What was asked for before has been seen to its end: the index looks at everything."""
    while any("ING" in entry.state for entry in await client.index()):
        pass


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
