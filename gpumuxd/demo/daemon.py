"""A daemon for the demo and the benches: a real process, two tenants, a socket for each.

Ends with the `with` that it was started in, whatever happens inside. It has a process group of its
own, so that Ctrl-C reaches us alone and we end it in order.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from gpumuxd_client import AsyncClient
from gpumuxd_client.errors import GpumuxdError

START_S_MAX = 60.0
STOP_S_MAX = 15.0
POLL_S = 0.05

VOICE = "voice"
SEARCH = "search"

BOUND_MS = 8
"""The bound that is stated for voice: a quarter of the time between two frames. It is twice the
longest kernel group of MiniLM on a slow core (3 to 4 ms, one linear layer): with less, often only
one group may be in flight, and the device idles at each sync point (11 % of the time at 4 ms)."""

_CONFIG = """\
[node]
state_dir = "{state}"

[repository]
paths = ["{repository}"]

[listen]
tcp = []

[[device]]
name = "cpu:0"
threads = 1
{device_lines}

[scheduler]
slicing = "{slicing}"
preemption_delay_ms_max = {BOUND_MS}

[tenants.voice]
socket = "{voice}"
priority_max = "REALTIME"
priority_default = 1

[tenants.search]
socket = "{search}"
priority_max = "BEST_EFFORT"
priority_default = 3

[tenants.operator]
socket = "{operator}"
admin = true
"""


class DaemonFailed(Exception):
    """It did not become ready, with the end of its log."""


class Daemon:
    """A running daemon. `client(tenant)` connects; close what you open."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self._folder = folder

    def client(self, tenant: str) -> AsyncClient:
        """A connection of one tenant: voice, search or operator."""
        return AsyncClient(f"unix:{socket_path(self._folder, tenant)}")

    def log_end(self) -> str:
        """The last lines it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def socket_path(folder: Path, tenant: str) -> Path:
    """Where a tenant's socket is. `folder` must be short: a path may have 107 bytes."""
    return folder / f"{tenant}.sock"


@contextlib.asynccontextmanager
async def running_daemon(
    folder: Path,
    repository: Path,
    slicing: str,
    state: Path | None = None,
    device_lines: str = "",
) -> AsyncIterator[Daemon]:
    """Start a daemon with its files in `folder`, wait until it is ready, end it on the way out.

    `state` may be shared by daemons that run one after the other: measured profiles are kept there.
    `device_lines` are more settings of the device, in TOML.
    Raises DaemonFailed when it does not become ready.
    """
    daemon = _start(folder, repository, slicing, state or folder / "state", device_lines)
    try:
        await _wait_until_ready(daemon)
        yield daemon
    finally:
        # Shielded: Ctrl-C must not leave a daemon behind that was just told to stop.
        await asyncio.shield(asyncio.to_thread(stop_group, daemon.process))


def _start(folder: Path, repository: Path, slicing: str, state: Path, device_lines: str) -> Daemon:
    folder.mkdir(exist_ok=True)
    config = folder / "gpumuxd.toml"
    tenants = (VOICE, SEARCH, "operator")
    config.write_text(
        _CONFIG.format(
            BOUND_MS=BOUND_MS,
            state=state,
            repository=repository,
            slicing=slicing,
            device_lines=device_lines,
            **{tenant: socket_path(folder, tenant) for tenant in tenants},
        )
    )
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpumuxd.daemon.main", "serve", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )
    return Daemon(folder, process, log)


async def _wait_until_ready(daemon: Daemon) -> None:
    async with daemon.client("operator") as client, asyncio.timeout(START_S_MAX):
        try:
            while True:
                with contextlib.suppress(GpumuxdError):
                    if await client.server_ready(deadline=1.0):
                        return
                if daemon.process.poll() is not None:
                    break
                await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise DaemonFailed(
                f"not ready within {START_S_MAX:.0f} s:\n{daemon.log_end()}"
            ) from error
    raise DaemonFailed(f"ended with {daemon.process.returncode}:\n{daemon.log_end()}")


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group of its own, in order where it does so by itself."""
    process.terminate()
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        # The whole group: its children would notice, but the demo should not outlive its daemon.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
