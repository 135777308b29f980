"""A stock Triton Inference Server on this machine's CPU.

The server is the binary inside PyPI's `nvidia-pytriton`, unmodified and fetched on demand into
`build/`; of pytriton itself nothing is used, its Python glue does not run on every Python 3.11. The
models are served by Triton's Python backend: one process each, the module of the demo, in
inference mode and on one thread. So they compute what the device of gpumuxd computes.

*Its own priority settings*: across models Triton knows those of its rate limiter. Both instances
need the one resource `device`, so one inference runs at a time, and whose turn it is goes by their
priorities. Without the limiter both processes run whenever they like, on as many cores as there
are.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import tritonclient.grpc.aio as triton_client  # type: ignore[import-untyped]  # it has no types
from tritonclient.utils import (  # type: ignore[import-untyped]  # it has no types
    InferenceServerException,
)

from bench.harness import ROOT
from gpumuxd.demo.daemon import stop_group

REQUIREMENTS = ("nvidia-pytriton==0.7.0", "numpy==1.26.4")
"""Its Python backend was built before numpy 2, whose arrays look empty to it."""

FOLDER = ROOT / "build" / "triton"

START_S_MAX = 90.0
POLL_S = 0.1

_MODEL_PY = """\
import sys

sys.path[:0] = {paths!r}

import torch
import triton_python_backend_utils as pb_utils
from {module} import {function}


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads(1)
        self.module = {function}()

    def execute(self, requests):
        return [self._one(request) for request in requests]

    def _one(self, request):
        inputs = [
            torch.from_numpy(pb_utils.get_input_tensor_by_name(request, name).as_numpy())
            for name in {inputs!r}
        ]
        with torch.inference_mode():
            given = self.module(*inputs)
        given = given if isinstance(given, tuple) else (given,)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(name, tensor.numpy())
                for name, tensor in zip({outputs!r}, given, strict=True)
            ]
        )
"""


class Tensor:
    """Of a model: its name, Triton's name of its type, its sizes without the batch."""

    def __init__(self, name: str, data_type: str, *dims: int) -> None:
        self.name = name
        self.config = (
            f'{{ name: "{name}" data_type: {data_type} dims: [ {", ".join(map(str, dims))} ] }}'
        )


class Model:
    """One model of the repository: the function that makes its module, and what that takes."""

    def __init__(
        self, function: str, inputs: list[Tensor], outputs: list[Tensor], priority: int
    ) -> None:
        self.module, _, self.function = function.rpartition(".")
        self.inputs, self.outputs, self.priority = inputs, outputs, priority

    def write(self, folder: Path) -> None:
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(
            _MODEL_PY.format(
                paths=[
                    str(path)
                    for path in (FOLDER, ROOT, *sys.path)
                    if path in (FOLDER, ROOT) or "site-packages" in str(path)
                ],
                module=self.module,
                function=self.function,
                inputs=[tensor.name for tensor in self.inputs],
                outputs=[tensor.name for tensor in self.outputs],
            )
        )
        (folder / "config.pbtxt").write_text(
            textwrap.dedent(
                f"""\
                backend: "python"
                max_batch_size: 1
                input [ {", ".join(tensor.config for tensor in self.inputs)} ]
                output [ {", ".join(tensor.config for tensor in self.outputs)} ]
                instance_group [ {{
                  kind: KIND_CPU
                  count: 1
                  rate_limiter {{
                    resources [ {{ name: "device" global: true count: 1 }} ]
                    priority: {self.priority}
                  }}
                }} ]
                """
            )
        )


def installed() -> Path:
    """The folder of the server, fetched if it is not there. Raises CalledProcessError."""
    server = FOLDER / "pytriton" / "tritonserver"
    if not server.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(FOLDER), *REQUIREMENTS], check=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "backends" / "python" / "triton_python_backend_stub"
    if not stub.exists():
        stub.symlink_to(server / "python_backend_stubs" / version / stub.name)
    for path in (server / "bin" / "tritonserver", stub):
        path.chmod(0o755)
    return server


@contextlib.asynccontextmanager
async def running_triton(
    folder: Path, models: Mapping[str, Model], port: int, *, is_limited: bool
) -> AsyncIterator[str]:
    """Start a server with these models, wait until it is ready, end it on the way out. Gives its
    address."""
    process = _start(folder, models, port, is_limited=is_limited)
    address = f"127.0.0.1:{port}"
    try:
        await _wait_until_ready(process, address)
        yield address
    finally:
        await asyncio.shield(asyncio.to_thread(stop_group, process))


def _start(
    folder: Path, models: Mapping[str, Model], port: int, *, is_limited: bool
) -> "subprocess.Popen[bytes]":
    server = installed()
    for name, model in models.items():
        model.write(folder / "models" / name)
    with (folder / "log").open("wb") as output:
        return subprocess.Popen(
            [
                str(server / "bin" / "tritonserver"),
                f"--model-repository={folder / 'models'}",
                f"--backend-directory={server / 'backends'}",
                f"--rate-limit={'execution_count' if is_limited else 'off'}",
                f"--grpc-port={port}",
                "--grpc-address=127.0.0.1",
                "--allow-http=false",
                "--allow-metrics=false",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            process_group=0,
        )


async def _wait_until_ready(process: "subprocess.Popen[bytes]", address: str) -> None:
    async with triton_client.InferenceServerClient(address) as client, asyncio.timeout(START_S_MAX):
        while process.poll() is None:
            with contextlib.suppress(InferenceServerException):
                if await client.is_server_ready():
                    return
            await asyncio.sleep(POLL_S)
    raise RuntimeError(f"Triton ended with {process.returncode}: its log is in its folder")
