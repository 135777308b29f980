"""A daemon whose children break when asked to, the tenants that it serves, and proofs about it.

Two tenants: `culprit` owns the models that break, `bystander` must not feel it. Whatever a test
does to the node, `is_whole` is true afterwards: everything came back and nothing was left behind.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import grpc
import numpy as np
import torch
from gpumuxd_client import AsyncClient
from gpumuxd_client.errors import GpumuxdError
from gpumuxd_client.types import DeviceStatus, InferResult
from grpc_health.v1 import health_pb2
from numpy.typing import NDArray

from gpumuxd.programs.exporter import export_model
from gpumuxd.units import MIB
from tests.daemon.harness import LIMIT_S, Daemon, Site
from tests.faults.ask import FOLDER_VARIABLE, GATE, MODEL_PREFIX, Fault, rows
from tests.node.artifacts import export_tiny

ARENA_MIB = 16  # of `Site`
MEMORY_MIB = 64

_LARGE_ROWS = ARENA_MIB * MIB // 4 >> 20
"""A dimension has at most 2**20 elements."""


class Large(torch.nn.Module):
    """y = the sum of all of an input, which may be as large as the arena."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=(1, 2))


_TABLES = """
memory_mib_max = {memory}
[tenants.operator]
socket = "{folder}/operator.sock"
admin = true
[tenants.culprit]
socket = "{folder}/culprit.sock"
[tenants.bystander]
socket = "{folder}/bystander.sock"
"""


class Rig:
    """A running daemon and a client for each of its tenants, none of which tries again."""

    def __init__(self, folder: Path, devices: int = 1, more_tables: str = "") -> None:
        self.folder = folder
        self.repository = folder / "models"
        self.artifact = folder / "model.pt2"
        export_tiny(self.artifact)
        self.publish("tiny")
        export_model(
            Large(),
            {"x": torch.zeros(2, _LARGE_ROWS, 8)},
            self.repository / "large" / "1" / "model.pt2",
            dynamic={"x": {0: "batch", 2: "length"}},
            sizes={"length": (1, 1 << 20)},
            output_names=("y",),
        )
        tables = _TABLES.format(folder=folder, memory=MEMORY_MIB) + more_tables
        self.site = Site(
            folder,
            self.repository,
            devices,
            startup_models=("tiny", "large"),
            more_tables=tables,
            module="tests.faults.daemon",
            environment={FOLDER_VARIABLE: str(folder), "TMPDIR": str(folder)},
        )
        self.operator = self._client("operator")
        self.culprit = self._client("culprit")
        self.bystander = self._client("bystander")
        self._numbers = itertools.count(1)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, folder: Path, devices: int = 1, more_tables: str = ""
    ) -> "AsyncIterator[Rig]":
        rig = cls(folder, devices, more_tables)
        with Daemon.running(rig.site) as rig.daemon:
            rig.daemon.wait_notified("READY=1")
            health = grpc.aio.insecure_channel(f"unix:{folder}/operator.sock")
            async with rig.operator, rig.culprit, rig.bystander, health as rig._health:
                await rig.warm_up()
                rig._files = open_files(rig.daemon.pid)
                yield rig

    daemon: Daemon
    _health: grpc.aio.Channel
    _files: Counter[str]

    def _client(self, tenant: str) -> AsyncClient:
        return AsyncClient(f"unix:{self.folder}/{tenant}.sock", retries=0)

    # Models

    def publish(self, model: str) -> None:
        path = self.repository / model / "1" / "model.pt2"
        path.parent.mkdir(parents=True)
        shutil.copy(self.artifact, path)

    @contextlib.asynccontextmanager
    async def faulty_model(self, manifest: str = "") -> AsyncIterator[str]:
        """The name of a model that breaks, loaded; one that nobody has seen before."""
        name = f"{MODEL_PREFIX}-{next(self._numbers)}"
        self.publish(name)
        (self.repository / name / "model.toml").write_text(f'tenants = ["culprit"]\n{manifest}')
        await self.culprit.load(name)
        try:
            yield name
        finally:
            await self.wait_ready()
            await self.culprit.unload(name)
            shutil.rmtree(self.repository / name)

    # Requests

    def ask(
        self, model: str, fault: Fault, at_gate: bool = False
    ) -> "asyncio.Task[InferResult | GpumuxdError]":
        """Send a request that breaks something. Only its first run stands at the gate."""
        if at_gate:
            os.mkfifo(self.folder / GATE)
        return asyncio.ensure_future(
            told(self.culprit.infer(model, {"x": rows(fault, at_gate)}, deadline=LIMIT_S))
        )

    def ask_bystanders(
        self, count: int, deadline: float = LIMIT_S
    ) -> "list[asyncio.Task[InferResult | GpumuxdError]]":
        """Send honest requests, each with an input of its own."""
        return [
            asyncio.ensure_future(
                told(self.bystander.infer("tiny", {"x": honest_rows(index)}, deadline=deadline))
            )
            for index in range(count)
        ]

    @contextlib.asynccontextmanager
    async def at_gate(self) -> AsyncIterator[None]:
        """A run stands at the gate inside of the block; the gate opens at its end."""
        async with asyncio.timeout(LIMIT_S):
            while (gate := _open_to_write(self.folder / GATE)) is None:
                await self.device()  # a round trip, in which the run may get there
        (self.folder / GATE).unlink()  # who is sent again finds none
        try:
            yield
        finally:
            os.close(gate)

    async def wait_in_flight(self, least: int, most: int | None = None) -> None:
        """Until so many requests have been taken and have not ended."""
        most = least if most is None else most
        async with asyncio.timeout(LIMIT_S):
            while not least <= (await self.device()).requests_in_flight <= most:
                pass

    # The node

    def starter_pid(self) -> int:
        """Of the process that forks loaders."""
        (pid,) = [p for p in children_of(self.daemon.pid) if "starter" in module_of(p)]
        return pid

    async def wait_loader(self) -> int:
        """Until there is a loader that has stopped itself; its process id."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for pid in children_of(self.starter_pid()):
                    if state_of(pid) == "T":
                        return pid
                await self.device()

    async def device(self, index: int = 0) -> DeviceStatus:
        return (await self.operator.node_status()).devices[index]

    async def warm_up(self) -> None:
        """Every connection is made, and what a first call leaves behind is there."""
        for client in (self.operator, self.culprit, self.bystander):
            await client.infer("tiny", {"x": honest_rows(0)})
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Until the daemon says to its health watchers that all serves."""
        watch: grpc.aio.UnaryStreamMultiCallable[
            health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        ] = self._health.unary_stream(
            "/grpc.health.v1.Health/Watch",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        stream = watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        async for state in stream:
            if state.status == health_pb2.HealthCheckResponse.SERVING:
                stream.cancel()
                return
        raise AssertionError("the daemon ended while it was watched")

    async def is_whole(self) -> None:
        """All of it serves again, and nothing is left of what happened."""
        await self.wait_ready()
        results = await asyncio.gather(*self.ask_bystanders(20))
        assert [is_right(result, index) for index, result in enumerate(results)] == [True] * 20
        status = await self.operator.node_status()
        assert [device.requests_in_flight for device in status.devices] == [0] * len(status.devices)
        await self._arena_is_empty()
        states = {module_of(pid): state_of(pid) for pid in children_of(self.daemon.pid)}
        assert len(states) == len(status.devices) + 1, f"devices and a starter, not {states}"
        assert "Z" not in states.values()
        assert open_files(self.daemon.pid) == self._files

    async def _arena_is_empty(self) -> None:
        """A request that needs nearly all of the arena finds room in it."""
        values = large_rows(ARENA_MIB * MIB - 4096)
        result = await self.bystander.infer("large", {"x": values})
        assert result["y"].tolist() == [0]


def honest_rows(index: int) -> NDArray[np.float32]:
    """The input of a bystander's request, which no other has."""
    return np.array([[index, 1, 2, 3], [4, 5, 6, index]], dtype=np.float32)


def large_rows(size_bytes: int) -> NDArray[np.float32]:
    """An input of the model `large`."""
    return np.zeros((1, _LARGE_ROWS, size_bytes // (4 * _LARGE_ROWS)), dtype=np.float32)


def is_right(result: InferResult | GpumuxdError, index: int) -> bool:
    """The answer to `honest_rows(index)`, to the last bit."""
    if isinstance(result, GpumuxdError):
        return False
    x = honest_rows(index)
    return np.array_equal(result["y"], x * 2 + 1) and np.array_equal(result["n"], x.sum(axis=1))


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def state_of(pid: int) -> str:
    """R, S, D, T (stopped), Z."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def module_of(pid: int) -> str:
    """The module that a Python process was started with."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return command[2].decode() if len(command) > 2 else ""


def open_files(pid: int) -> Counter[str]:
    """How many descriptors a process has of each kind: files by name, sockets together."""
    links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    return Counter(link.partition(":")[0] for link in links)


def _open_to_write(fifo: Path) -> int | None:
    """None while nobody reads."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


async def told(call: Coroutine[None, None, InferResult]) -> InferResult | GpumuxdError:
    """What a call ended with, as a value."""
    try:
        return await call
    except GpumuxdError as error:
        return error
