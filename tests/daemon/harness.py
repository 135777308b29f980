"""A daemon in a process of its own. Readiness comes from its notify socket, so nothing polls."""

import contextlib
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

LIMIT_S = 90.0
"""A start takes about two seconds of torch's import, on a busy machine many times that."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Site:
    """What several daemons, one after the other, have in common: files, sockets, a port."""

    def __init__(
        self,
        directory: Path,
        repository: Path,
        devices: int = 1,
        startup_models: Sequence[str] = ("tiny", "busy"),
        repository_lines: str = "",
        more_tables: str = "",
        module: str = "gpumuxd.daemon.main",
        environment: Mapping[str, str] | None = None,
        spare_device_child: bool = False,
    ) -> None:
        """`module` is whose `serve` is run; `environment` is what it has more than the tests."""
        self.directory = directory
        self.module = module
        self.environment = environment or {}
        self.port = free_port()
        self.socket_path = directory / "gpumuxd.sock"
        self.config_path = directory / "gpumuxd.toml"
        device_tables = "\n".join(
            f'[[device]]\nname = "cpu:{index}"\narena_mib = 16' for index in range(devices)
        )
        self.config_path.write_text(
            f"""
[node]
state_dir = "{directory}/state"
startup_models = {list(startup_models)}
drain_timeout_s = 60
spare_device_child = {str(spare_device_child).lower()}
[repository]
paths = ["{repository}"]
{repository_lines}
[listen]
tcp = ["127.0.0.1:{self.port}"]
unix = ["{self.socket_path}"]
{device_tables}
{more_tables}
"""
        )

    @property
    def target(self) -> str:
        return f"unix:{self.socket_path}"


class Daemon:
    """A running `gpumuxd serve`. Always killed and reaped at the end of `running`."""

    def __init__(self, site: Site, *arguments: str) -> None:
        self._site = site
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify_path = site.directory / "notify"
        notify_path.unlink(missing_ok=True)
        self._notify.bind(str(notify_path))
        # Read at once: a socket has room for ten of them, and what waits keeps the daemon's end.
        self._notified: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read_notify, daemon=True).start()
        self._log = (site.directory / "log").open("wb")
        self.process = subprocess.Popen(
            [*serve_command(site.config_path, site.module), *arguments],
            env={**os.environ, **site.environment, "NOTIFY_SOCKET": str(notify_path)},
            stdin=subprocess.DEVNULL,
            stderr=self._log,
        )

    @classmethod
    @contextlib.contextmanager
    def running(cls, site: Site, *arguments: str) -> "Iterator[Daemon]":
        daemon = cls(site, *arguments)
        try:
            yield daemon
        finally:
            daemon.process.kill()
            daemon.process.wait()
            daemon._notify.shutdown(socket.SHUT_RD)  # ends its reader, which closes it
            daemon._log.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return (self._site.directory / "log").read_text()

    def wait_notified(self, line: str) -> dict[str, str]:
        """The fields of the first datagram with this line. Fails when the daemon says otherwise
        or nothing for too long."""
        while True:
            try:
                lines = self._notified.get(timeout=LIMIT_S).splitlines()
            except queue.Empty:
                raise AssertionError(f"never heard {line}; log:\n{self.log}") from None
            if line in lines:
                return dict(item.split("=", 1) for item in lines)
            if "STOPPING=1" in lines:
                self.wait_exit()
                raise AssertionError(f"it stopped; log:\n{self.log}")

    def _read_notify(self) -> None:
        with self._notify:
            while told := self._notify.recv(4096):
                self._notified.put(told.decode())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_exit(self) -> int:
        return self.process.wait(LIMIT_S)


def serve_command(config_path: Path, module: str = "gpumuxd.daemon.main") -> list[str]:
    return [sys.executable, "-m", module, "serve", "--config", str(config_path)]


def run_serve(config_path: Path) -> subprocess.CompletedProcess[str]:
    """A daemon that is expected to end by itself."""
    return subprocess.run(
        serve_command(config_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@contextlib.contextmanager
def watch_exit(pids: list[int]) -> Iterator[None]:
    """These processes, which need not be our children, end by the end of the block."""
    pidfds = [os.pidfd_open(pid) for pid in pids]
    try:
        yield
        for pidfd in pidfds:
            assert select.select([pidfd], [], [], LIMIT_S)[0], "a process was left behind"
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
