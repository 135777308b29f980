"""`make fuzz SECONDS=60 [TARGET=name]`: every target in a process of its own, one after the other.

A line a minute of each, a table at the end, status 1 if there was a finding: its input is in
`build/fuzz`, and belongs into `tests/fuzz/corpus/TARGET` once it is mended.
"""

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.fuzz.targets import TARGETS

FINDINGS = Path("build/fuzz")
LINE_S = 60.0
GRACE_S = 120.0
MEMORY_SLACK_MIB = 256
"""What a target's process may have grown by in the whole run: its corpus lies in memory too."""

_PULSE = re.compile(r"#(\d+)\s.*?cov: (\d+).*?rss: (\d+)Mb")


class Watched:
    """One target's process, and what it said."""

    def __init__(self, name: str, seconds: float, seed: int) -> None:
        command = [sys.executable, "-m", "tests.fuzz.one", name, "--findings", str(FINDINGS)]
        command += ["--seconds", str(seconds), "--seed", str(seed)]
        self.name = name
        self.pulses: list[tuple[int, int]] = []
        self.executions = 0
        self.last: list[str] = []
        self.rss_mib: list[int] = []
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last = [*self.last[-40:], line.rstrip()]
            if pulse := _PULSE.search(line):
                executions, coverage, _ = map(int, pulse.groups())
                self.pulses.append((executions, coverage))
                self.executions = executions
            if line.startswith("stat::number_of_executed_units:"):
                self.executions = int(line.split()[-1])

    def wait(self, seconds: float) -> int:
        """The exit status; tells what goes on once a minute."""
        began = time.monotonic()
        spoken = began
        while True:
            try:
                status = self._process.wait(timeout=5)
                self._reader.join()
                return status
            except subprocess.TimeoutExpired:
                pass
            self._look_at_memory()
            now = time.monotonic()
            if now - spoken >= LINE_S:
                spoken = now
                coverage = self.pulses[-1][1] if self.pulses else 0
                print(
                    f"{self.name}: {now - began:.0f} s, {self.executions} executions, "
                    f"coverage {coverage}, memory {self.rss_mib[-1:]} MiB",
                    flush=True,
                )
            if now - began > seconds + GRACE_S:
                self._process.kill()
                self.last.append("it did not end by itself and was killed")
                self._process.wait()
                return 124

    def _look_at_memory(self) -> None:
        try:
            statm = Path(f"/proc/{self._process.pid}/statm").read_text()
            self.rss_mib.append(int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20)
        except (OSError, IndexError):
            pass


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    FINDINGS.mkdir(parents=True, exist_ok=True)
    print(f"SEED={options.seed}", flush=True)
    rows, failed = [], False
    for name in options.target or TARGETS:
        watched = Watched(name, options.seconds, options.seed)
        status = watched.wait(options.seconds)
        # From the first look after all is imported, a fifth of the way in.
        rss = watched.rss_mib[len(watched.rss_mib) // 5 :] or [0]
        grown = rss[-1] - rss[0]
        is_bad = status != 0 or grown > MEMORY_SLACK_MIB
        failed |= is_bad
        first, last = (watched.pulses or [(0, 0)])[0], (watched.pulses or [(0, 0)])[-1]
        rows.append(
            f"{name:12} {watched.executions:10} {watched.executions / options.seconds:8.0f} "
            f"{last[1] - first[1]:10} {rss[0]:8} {rss[-1]:8}  {'FAILED' if is_bad else 'ok'}"
        )
        if is_bad:
            print("\n".join([f"{name}: status {status}, grew {grown} MiB", *watched.last]))
    print("target       executions   each s  new cover   MiB at  MiB end")
    print("\n".join(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
