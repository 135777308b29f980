"""What does the front door cost: a request of a model that does nothing, by size and by stage.

A daemon on the CPU device serves models that only scale sixteen numbers, whatever they are given.
A client in this process sends bytes that were made before, one request at a time and sixteen
outstanding, over a Unix socket: 64 B, 600 KB and 16 MB in the message, and 16 MB by shared memory.
What a small request takes beside one client that sends 16 MB without a pause shows how long the
event loop is held.

Stages are measured here, without a daemon: the same bytes read as they are served, and as protobuf
alone would read them.
"""

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from multiprocessing.synchronize import Event
from pathlib import Path

import grpc
import torch

from bench.harness import Bench, Samples, at_most, percentile, run
from gpumuxd.demo.daemon import VOICE, running_daemon, socket_path
from gpumuxd.domain import RunReport
from gpumuxd.models.spec import ModelSpec
from gpumuxd.node.api import InferReply, OutputTensor, Tenant
from gpumuxd.node.validation import CallChecker
from gpumuxd.programs.exporter import export_model
from gpumuxd.rpc.codec import decode_infer, encode_infer
from gpumuxd.rpc.generated import inference_pb2 as pb
from gpumuxd.rpc.raw_request import read_request
from gpumuxd.units import NS_PER_MS, NS_PER_US

KEPT = 16
SIZES = {"64 B": 64, "600 KB": 600_000, "16 MB": 16_000_000}
SMALL, LARGE = "64 B", "16 MB"
SHARED = "16 MB by shared memory"
OUTSTANDING = 16
SHARED_RATIO_MAX = 0.1
LOAD_S_MAX = 120.0

_SERVICE = "/inference.GRPCInferenceService/"
_DEVICE_LINES = "\n[shared_memory]\nallow = true\n"
Method = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
_CHANNEL = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Idle(torch.nn.Module):
    """Looks at sixteen numbers of a row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :KEPT] * 2


def request_of(name: str, region: str = "") -> pb.ModelInferRequest:
    """A request of this size, its tensor in the message or in a region."""
    width = SIZES[name] // 4
    request = pb.ModelInferRequest(model_name=_model(name))
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, width])
    if region:
        tensor.parameters["shared_memory_region"].string_param = region
        tensor.parameters["shared_memory_byte_size"].int64_param = width * 4
    else:
        request.raw_input_contents.append(bytes(width * 4))
    return request


def _model(name: str) -> str:
    return name.replace(" ", "_")


def body(bench: Bench) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name, asyncio.Runner() as runner:
        folder = Path(name)
        specs = {
            size: export_model(
                Idle(),
                {"x": torch.zeros(2, bytes_ // 4)},
                folder / "models" / _model(size) / "1" / "model.pt2",
                batch_max=2,
            )
            for size, bytes_ in SIZES.items()
        }
        for size in SIZES:
            (folder / "models" / _model(size) / "model.toml").write_text("batch_max = 1\n")
        _measure_stages(bench, specs)
        runner.run(_measure(bench, folder))


# Stages


def _measure_stages(bench: Bench, specs: dict[str, ModelSpec]) -> None:
    rounds = bench.pick(20, 5)
    for size, spec in specs.items():
        data = request_of(size).SerializeToString()
        tenant, checker = Tenant("bench"), CallChecker(spec)
        call = decode_infer(read_request(data), tenant, 1, None)
        reply = InferReply(
            call.model,
            "1",
            (OutputTensor("y", "FP32", call.inputs[0].shape, memoryview(call.inputs[0].data)),),
            RunReport(1, 2, 3, 4, 5),
        )
        stages: dict[str, Callable[[], object]] = {
            "decode": lambda data=data, tenant=tenant: decode_infer(  # type: ignore[misc]  # bound
                read_request(data), tenant, 1, None
            ),
            "read by protobuf alone": lambda data=data: list(  # type: ignore[misc]  # bound
                pb.ModelInferRequest.FromString(data).raw_input_contents
            ),
            "validate": lambda checker=checker, call=call: checker.check(  # type: ignore[misc]  # bound
                call
            ),
            "encode, an answer as large": lambda reply=reply: encode_infer(  # type: ignore[misc]  # bound
                reply, "1"
            ),
        }
        count = 20 if size == LARGE else 200
        variants = {name: _timed(stage, count) for name, stage in stages.items()}
        with bench.measuring():
            samples = bench.interleave(variants, rounds)
        for name, found in samples.items():
            bench.figure(
                f"{name}, {size}", found.median / NS_PER_US, "us", spread=found.spread / 1e3
            )


def _timed(stage: Callable[[], object], count: int) -> Callable[[], list[float]]:
    def one_round() -> list[float]:
        times = []
        for _ in range(count):
            began_ns = time.monotonic_ns()
            stage()
            times.append(float(time.monotonic_ns() - began_ns))
        return times

    return one_round


# End to end


async def _measure(bench: Bench, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        bench.console.print("starting the daemon, loading the models")
        home = folder / "daemon"
        daemon = await stack.enter_async_context(
            running_daemon(home, folder / "models", "adaptive", device_lines=_DEVICE_LINES)
        )
        operator = await stack.enter_async_context(daemon.client("operator"))
        for size in SIZES:
            await operator.load(_model(size), deadline=LOAD_S_MAX)
        address = f"unix:{socket_path(home, VOICE)}"
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, _CHANNEL))
        await _register(channel, stack)
        messages = {size: request_of(size).SerializeToString() for size in SIZES}
        messages[SHARED] = request_of(LARGE, "region").SerializeToString()
        with bench.measuring():
            alone = await _alone(bench, channel, messages)
            rates = await _outstanding(bench, channel, messages)
            beside = await _beside(bench, address, channel, messages)
    for name, found in alone.items():
        bench.figure(f"{name}, one at a time, p50", found.median / NS_PER_MS, "ms")
        bench.figure(f"{name}, one at a time, p99", found.p99 / NS_PER_MS, "ms")
    for name, per_s in rates.items():
        bench.figure(f"{name}, {OUTSTANDING} outstanding", per_s, "1/s")
    bench.figure(f"{SMALL} beside {LARGE}, p50", percentile(beside, 50) / NS_PER_MS, "ms")
    bench.figure(f"{SMALL} beside {LARGE}, p99", percentile(beside, 99) / NS_PER_MS, "ms")
    ratio = alone[SHARED].median / alone[LARGE].median
    bench.figure("16 MB, shared memory / message, p50", ratio, "", at_most(SHARED_RATIO_MAX))


async def _register(channel: grpc.aio.Channel, stack: AsyncExitStack) -> None:
    key = f"/gpumuxd-bench-{os.getpid()}"
    path = Path("/dev/shm") / key[1:]
    stack.callback(path.unlink)
    path.write_bytes(bytes(SIZES[LARGE]))
    request = pb.SystemSharedMemoryRegisterRequest(name="region", key=key, byte_size=SIZES[LARGE])
    register: Method = channel.unary_unary(f"{_SERVICE}SystemSharedMemoryRegister")
    await register(request.SerializeToString())


def _infer_method(channel: grpc.aio.Channel) -> Method:
    infer: Method = channel.unary_unary(f"{_SERVICE}ModelInfer")
    return infer


def _counts(bench: Bench, name: str) -> int:
    return bench.pick(30, 10) if name == LARGE else bench.pick(200, 50)


async def _alone(
    bench: Bench, channel: grpc.aio.Channel, messages: dict[str, bytes]
) -> dict[str, Samples]:
    infer = _infer_method(channel)
    kept: dict[str, list[tuple[float, ...]]] = {name: [] for name in messages}
    for name, is_kept in bench.schedule(list(messages), bench.pick(6, 2)):
        times = []
        for _ in range(_counts(bench, name)):
            began_ns = time.monotonic_ns()
            await infer(messages[name])
            times.append(float(time.monotonic_ns() - began_ns))
        if is_kept:
            kept[name].append(tuple(times))
    return {name: Samples(tuple(rounds)) for name, rounds in kept.items()}


async def _outstanding(
    bench: Bench, channel: grpc.aio.Channel, messages: dict[str, bytes]
) -> dict[str, float]:
    infer = _infer_method(channel)

    async def client(data: bytes, count: int) -> None:
        for _ in range(count):
            await infer(data)

    rates: dict[str, list[float]] = {name: [] for name in SIZES if name != LARGE}
    for name, is_kept in bench.schedule(list(rates), bench.pick(6, 2)):
        count = bench.pick(60, 20)
        began_ns = time.monotonic_ns()
        await asyncio.gather(*[client(messages[name], count) for _ in range(OUTSTANDING)])
        if is_kept:
            rates[name].append(count * OUTSTANDING * 1e9 / (time.monotonic_ns() - began_ns))
    return {name: percentile(found, 50) for name, found in rates.items()}


async def _beside(
    bench: Bench, address: str, channel: grpc.aio.Channel, messages: dict[str, bytes]
) -> list[float]:
    """Small requests while another process sends large ones without a pause."""
    context = multiprocessing.get_context("spawn")
    has_begun = context.Event()
    sender = context.Process(target=_send, args=(address, messages[LARGE], has_begun), daemon=True)
    sender.start()
    try:
        await asyncio.to_thread(has_begun.wait, LOAD_S_MAX)
        infer = _infer_method(channel)
        times = []
        for _ in range(bench.pick(600, 100)):
            began_ns = time.monotonic_ns()
            await infer(messages[SMALL])
            times.append(float(time.monotonic_ns() - began_ns))
        return times
    finally:
        sender.kill()
        sender.join()


def _send(address: str, data: bytes, has_begun: Event) -> None:
    """The other process."""
    with grpc.insecure_channel(address, _CHANNEL) as channel:
        infer: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"{_SERVICE}ModelInfer"
        )
        while True:
            infer(data)
            has_begun.set()


if __name__ == "__main__":
    raise SystemExit(run("front_door", "What the front door costs, by size and stage.", body))
