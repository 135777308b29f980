"""Mutated requests in great number, and a good one in between that must be answered right.

    python -m tests.fuzz.mutated_requests [--in-process 1000000] [--wire 50000] [--seed N]

In process: through the methods of the front door to a real node with a real device child, without
gRPC. Over the wire: bytes as gRPC messages, with mutated metadata and deadlines, to a daemon of its
own; and now and then bytes that are no HTTP/2. A finding is: a bug behind a status, a status or
reason that docs/errors.md does not have, a good request that is not answered right, a process that
ended, or memory that grows.
"""

import argparse
import asyncio
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import structlog
import torch

from gpumuxd import errors
from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import PriorityClass
from gpumuxd.errors import GpumuxdError
from gpumuxd.node.api import Tenant
from gpumuxd.node.node import Node
from gpumuxd.node.settings import NodeSettings, TenantSettings
from gpumuxd.programs.exporter import export_model
from gpumuxd.rpc import control, inference
from gpumuxd.rpc.call import Arrival
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.status import REASON_KEY, failure_of
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB
from tests.daemon.harness import Daemon, Site
from tests.fuzz.end_to_end import rss_bytes
from tests.fuzz.requests import GOOD, INFER, Asked, draw_call
from tests.node.artifacts import export_tiny

ERRORS = {
    each.__name__: each.status
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, GpumuxdError) and each is not GpumuxdError
}
"""Status by reason, as docs/errors.md has them (a test compares the two)."""

OF_GRPC = {"CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "UNAVAILABLE"}
"""Statuses that gRPC itself gives, without a reason; docs/errors.md has them as well."""

BATCH = 32
"""Calls at a time, and a good one for each of the models."""

MEMORY_SLACK_BYTES = 64 * MIB
TOKEN = "a token of the camera"

ADMIN = Tenant("default", priority_max=PriorityClass.REALTIME, is_admin=True)
CAMERA = Tenant("camera")


class Finding(Exception):
    """What must not happen."""


class Mixed(torch.nn.Module):
    """The sum of the ids that are not masked, beside an input of another type."""

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return (ids * mask.to(torch.int64)).sum(1), scale * 2


def make_repository(folder: Path) -> Path:
    """Two models that a daemon loads within seconds."""
    export_tiny(folder / "tiny" / "1" / "model.pt2")
    path = folder / "mixed" / "1" / "model.pt2"
    path.parent.mkdir(parents=True)
    examples = {
        "ids": torch.ones(2, 3, dtype=torch.int64),
        "mask": torch.ones(2, 3, dtype=torch.bool),
        "scale": torch.ones(2),
    }
    export_model(Mixed(), examples, path, batch_max=4, output_names=("total", "scaled"))
    return folder


class Tally:
    """How calls ended, and the memory of a process meanwhile."""

    def __init__(self, name: str, pid: int) -> None:
        self.ends: Counter[str] = Counter()
        self.good = 0
        self._name = name
        self._pid = pid
        self._began = self._spoken = time.monotonic()
        self._warm_bytes = 0

    def look(self, total: int) -> None:
        """After a batch: memory from a tenth of the way on, and a line a minute."""
        done, now = self.ends.total(), time.monotonic()
        memory_bytes = rss_bytes(self._pid)
        if done >= total // 10 and not self._warm_bytes:
            self._warm_bytes = memory_bytes
        if self._warm_bytes and memory_bytes - self._warm_bytes > MEMORY_SLACK_BYTES:
            raise Finding(f"memory grew from {self._warm_bytes} to {memory_bytes} bytes")
        if now - self._spoken >= 60 or done >= total:
            self._spoken = now
            print(
                f"{self._name}: {done} of {total} in {now - self._began:.0f} s, {self.good} good "
                f"ones right, memory {self._warm_bytes >> 20} to {memory_bytes >> 20} MiB",
                flush=True,
            )

    def tell(self) -> None:
        for end, count in self.ends.most_common():
            print(f"{count:10}  {end}")


# In process


async def in_process(total: int, seed: int, repository: Path) -> Tally:
    settings = NodeSettings(
        repository_paths=(repository,),
        devices=(DeviceSettings("cpu:0", arena_bytes=16 * MIB),),
        tenants=(TenantSettings(ADMIN), TenantSettings(CAMERA)),
        startup_models=("tiny", "mixed"),
    )
    node = Node(settings)
    services = {
        inference.SERVICE: inference.InferenceService(node).methods(),
        control.SERVICE: control.ControlService(node).methods(),
    }
    tally = Tally("in process", os.getpid())
    draw = random.Random(seed)

    async def call(asked: Asked, tenant: Tenant) -> bytes:
        _, service, method = asked.path.split("/")
        arrival = Arrival(lambda metadata: tenant, (), monotonic_ns(), asked.remaining_s)
        return await services[service][method].answer(asked.data, arrival)

    async def mutated(asked: Asked, tenant: Tenant) -> None:
        try:
            await call(asked, tenant)
            tally.ends["OK"] += 1
        except Exception as error:
            failure = failure_of(error, asked.path)
            end = judge(failure.code.name, failure.reason, asked)
            tally.ends[end] += 1

    try:
        await node.start()
        problems = await node.load_startup_models()
        assert not problems, problems
        pid = node.view().devices[0].pid
        while tally.ends.total() < total:
            calls = [draw_call(draw) for _ in range(min(BATCH, total - tally.ends.total()))]
            tenants = [CAMERA if "Model" in each.path else ADMIN for each in calls]
            await asyncio.gather(*map(mutated, calls, tenants))
            await check_good(lambda data: call(Asked(INFER, data, None), CAMERA), draw)
            tally.good += len(GOOD)
            tally.look(total)
        if node.view().devices[0].pid != pid:
            raise Finding("the device child was restarted")
    finally:
        await node.stop()
    return tally


def judge(status: str, reason: str | None, asked: Asked) -> str:
    """The end of a call as it is counted. Raises Finding for one that is not documented, or that
    says that something of ours failed."""
    is_known = ERRORS.get(reason) == status if reason is not None else status in OF_GRPC
    if not is_known or status == "INTERNAL" or reason == "DeviceLost":
        path = save(asked.data)
        raise Finding(f"{asked.path} ended with {status} ({reason}); the message: {path}")
    return f"{status} ({reason or 'of gRPC itself'})"


def save(data: bytes) -> Path:
    folder = Path("build/fuzz")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "request-found"
    path.write_bytes(data)
    return path


async def check_good(ask: Callable[[bytes], Awaitable[bytes]], draw: random.Random) -> None:
    """One of each model."""
    for make in GOOD:
        request, expected = make(draw)
        response = pb.ModelInferResponse.FromString(await ask(request.SerializeToString()))
        if list(response.raw_output_contents) != [expected]:
            raise Finding(f"a good request was answered with {response.raw_output_contents}")


# Over the wire


CONFIG = """
[node]
state_dir = "{folder}/state"
startup_models = ["tiny", "mixed"]
[repository]
paths = ["{repository}"]
[listen]
tcp = ["127.0.0.1:{port}"]
message_mib_max = 1
[[device]]
name = "cpu:0"
arena_mib = 16
[tenants.camera]
token = "{token}"
socket = "{folder}/camera.sock"
"""

Metadata = list[tuple[str, str | bytes]]


def draw_metadata(draw: random.Random) -> Metadata:
    """Mostly who we are."""
    match draw.randrange(24):
        case 0:
            return []
        case 1:
            return [("authorization", draw.choice(("", "Bearer", "Basic x", "Bearer " + "x" * 99)))]
        case 2:
            return [("authorization", f"Bearer {TOKEN}")] * 2
        case 3:
            more = ("x-bin", draw.randbytes(draw.choice((0, 9, 9000))))
            return [("authorization", f"Bearer {TOKEN}"), more]
        case 4:
            return [("authorization", f"bearer  {TOKEN} "), ("grpc-x", "y" * 3000)]
    return [("authorization", f"Bearer {TOKEN}")]


async def over_the_wire(total: int, seed: int, folder: Path, repository: Path) -> Tally:
    site = Site(folder, repository)
    site.config_path.write_text(
        CONFIG.format(folder=folder, repository=repository, port=site.port, token=TOKEN)
    )
    draw = random.Random(seed)
    with Daemon.running(site) as daemon:
        await asyncio.to_thread(daemon.wait_notified, "READY=1")
        tally = Tally("over the wire", daemon.pid)
        async with (
            grpc.aio.insecure_channel(f"127.0.0.1:{site.port}") as channel,
            grpc.aio.insecure_channel(f"unix:{folder}/camera.sock") as own,
        ):
            while tally.ends.total() < total:
                count = min(BATCH, total - tally.ends.total())
                calls = [(draw_call(draw), draw_metadata(draw)) for _ in range(count)]
                tally.ends.update(
                    await asyncio.gather(*(_mutated(channel, *each, draw) for each in calls))
                )
                if draw.randrange(10) == 0:
                    await asyncio.to_thread(_no_http, site.port, draw)
                await check_good(lambda data: _ask(own, INFER, data, 60.0), draw)
                tally.good += len(GOOD)
                if daemon.process.poll() is not None:
                    raise Finding(f"the daemon ended: {daemon.log}")
                tally.look(total)
        if "a call failed by a bug" in daemon.log or "device_lost" in daemon.log:
            raise Finding(f"the log tells of a bug: {daemon.log}")
    return tally


async def _ask(
    channel: grpc.aio.Channel,
    path: str,
    data: bytes,
    timeout_s: float,
    metadata: Metadata | None = None,
) -> bytes:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    return await call(data, timeout=timeout_s, metadata=metadata)


async def _mutated(
    channel: grpc.aio.Channel, asked: Asked, metadata: Metadata, draw: random.Random
) -> str:
    path, data = asked.path, asked.data
    match draw.randrange(100):
        case 0:
            path = draw.choice(("/x/y", "/inference.GRPCInferenceService/x", path.lower()))
        case 1:
            data += bytes(MIB)  # more than a message may have
    timeout_s = draw.choice((60.0,) * 9 + (0.002,))
    try:
        await _ask(channel, path, data, timeout_s, metadata)
    except grpc.aio.AioRpcError as error:
        reason = dict(error.trailing_metadata() or ()).get(REASON_KEY)
        assert reason is None or isinstance(reason, str), "it is text"
        return judge(error.code().name, reason, asked)
    return "OK"


def _no_http(port: int, draw: random.Random) -> None:
    """A connection that begins with HTTP/2, or not even that, and goes on with anything."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
        try:
            connection.sendall(draw.choice((b"", preface)) + draw.randbytes(draw.randint(1, 2000)))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except OSError:
            pass  # it was closed under us


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz.mutated_requests", description=__doc__)
    parser.add_argument("--in-process", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--wire", type=int, default=50_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    print(f"SEED={options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name:
        folder = Path(name)
        repository = make_repository(folder / "models")
        try:
            if options.in_process:
                work = in_process(options.in_process, options.seed, repository)
                asyncio.run(work).tell()
            if options.wire:
                asyncio.run(over_the_wire(options.wire, options.seed, folder, repository)).tell()
        except Finding as finding:
            print(f"FINDING: {finding}")
            return 1
    print("nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
