"""Mutated archives through a real loader and a real device child, beside a model that must go on.

    python -m tests.fuzz.end_to_end --seconds 3600 [--seed N]

Half the archives are drawn programs (`programs.py`), half are mutations of them. A finding is: a
loader that ends without an answer, a device child that ends, an answer that does not come, a wrong
result of the healthy model, or memory of the child that is not flat. The archive is left in
`build/fuzz`. A line a minute.
"""

import argparse
import os
import random
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from gpumuxd.domain import OutcomeKind
from gpumuxd.errors import GpumuxdError
from gpumuxd.models.spec import ModelSpec
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB
from gpumuxd.wire.channel import ChannelClosed
from gpumuxd.wire.frames import ModelFailed, ModelLoaded, ModelReleased, Ping, Pong, ReadDone, Stop
from tests.device import support
from tests.device.support import SETTINGS, DeviceChild, LoadedArtifact
from tests.fuzz.mutate import mutate_archive
from tests.fuzz.programs import draw_archive, inputs
from tests.loader import harness
from tests.loader.harness import one_loader
from tests.models import archives

FINDINGS = Path("build/fuzz")
MEMORY_SLACK_BYTES = 64 * MIB
"""Between the child's memory after the first hundred archives and at the end, both collected."""

WARM_ROUNDS = 100
COLLECT_TURNS = 20_001
"""The child collects garbage after as many turns of its loop."""

LOG_BYTES_MAX = 4096

ANSWER_S_MAX = 300.0
"""Of a loader or the child, on a machine that others use too: a kernel is not stopped."""

HEALTHY = "healthy/1"


class Finding(Exception):
    """What must not happen."""


@dataclass
class Counts:
    """How far archives came."""

    read: int = 0
    loaded: int = 0
    completed: int = 0
    failed: int = 0


class EndToEnd:
    """One device child, and a loader for each archive."""

    def __init__(self, seed: int, settings: DeviceSettings) -> None:
        self.draw = random.Random(seed)
        self.counts = Counts()
        self.rounds = 0
        self.log = b""
        self._data = b""
        self._settings = settings
        self._path = FINDINGS / f"end-to-end-{os.getpid()}.pt2"
        self._warm_bytes = 0

    def run(self, seconds: float) -> None:
        began = spoken = time.monotonic()
        with DeviceChild(self._settings) as child:
            drain = threading.Thread(target=self._drain, args=(child,), daemon=True)
            drain.start()
            child.wait_started()
            healthy = self._read(archives.archive(archives.members()).getvalue())
            assert healthy is not None
            child.load(healthy, HEALTHY)
            while time.monotonic() - began < seconds:
                self._round(child)
                if self.rounds == WARM_ROUNDS:
                    self._warm_bytes = self._collected_bytes(child)
                if time.monotonic() - spoken >= 60:
                    spoken = time.monotonic()
                    self._speak(child, spoken - began)
            self._speak(child, time.monotonic() - began)
            self._check_memory(self._collected_bytes(child))
            child.send(Stop())
            status = child.process.wait(ANSWER_S_MAX)
            drain.join()
            if status != 0:
                raise Finding(f"the child ended with status {status} when it was told to stop")
        self._path.unlink(missing_ok=True)

    def _drain(self, child: DeviceChild) -> None:
        """Read what the child logs, or it would stand still in the end; keep the last of it."""
        assert child.process.stderr is not None
        number = child.process.stderr.fileno()
        while data := os.read(number, 1 << 16):
            self.log = (self.log + data)[-LOG_BYTES_MAX:]

    def _round(self, child: DeviceChild) -> None:
        self.rounds += 1
        self._data = draw_archive(self.draw)
        if self.draw.randrange(2):
            self._data = mutate_archive(self._data, self.draw)
        try:
            artifact = self._read(self._data)
            if artifact is not None:
                try:
                    self._serve(child, artifact)
                finally:
                    os.close(artifact.plan_fd)
                    os.close(artifact.weights_fd)
            self._check_healthy(child)
        except (ChannelClosed, AssertionError) as error:
            status = child.process.poll()
            raise Finding(f"{type(error).__name__}: {error} (child: {status})") from error

    def _read(self, data: bytes) -> LoadedArtifact | None:
        """Through a real loader; None if it was refused."""
        self._path.write_bytes(data)
        with self._path.open("rb") as file, one_loader() as loader:
            try:
                answer, fds = loader.ask(file.fileno(), 64 * MIB)
            except ChannelClosed as error:
                raise Finding(f"the loader gave no answer ({loader.how_ended()})") from error
        if not isinstance(answer, ReadDone):
            return None
        self.counts.read += 1
        spec = msgspec.msgpack.decode(answer.spec, type=ModelSpec)
        return LoadedArtifact(answer.artifact_hash, spec, *fds)

    def _serve(self, child: DeviceChild, artifact: LoadedArtifact) -> None:
        key = f"m/{self.rounds}"
        child.send_load(artifact, key)
        answer = child.expect_either(ModelLoaded, ModelFailed)
        if isinstance(answer, ModelFailed):
            return
        self.counts.loaded += 1
        for batch in (1, 2, 5, 33):
            try:
                submit = child.submit(key, inputs(batch))
            except (GpumuxdError, KeyError):  # a spec that these inputs do not fit
                continue
            if child.finish(submit).outcome.kind is OutcomeKind.COMPLETED:
                self.counts.completed += 1
            else:
                self.counts.failed += 1
            child.free(submit)
        child.unload(key)
        child.expect(ModelReleased)
        child.frames.clear()

    def _check_healthy(self, child: DeviceChild) -> None:
        (y,) = child.infer(HEALTHY, {"x": torch.ones(2, 4)})
        if not torch.equal(y, torch.tensor([[6.5, 23.5, 40.5]] * 2)):
            raise Finding(f"the healthy model says {y.tolist()}")
        child.frames.clear()

    def _collected_bytes(self, child: DeviceChild) -> int:
        for count in range(COLLECT_TURNS):
            child.send(Ping(count))
            child.expect(Pong)
        child.frames.clear()
        return rss_bytes(child.process.pid)

    def _check_memory(self, end_bytes: int) -> None:
        if self._warm_bytes and end_bytes - self._warm_bytes > MEMORY_SLACK_BYTES:
            raise Finding(f"memory grew from {self._warm_bytes} to {end_bytes} bytes")
        print(f"memory, collected: {self._warm_bytes >> 20} MiB to {end_bytes >> 20} MiB")

    def _speak(self, child: DeviceChild, seconds: float) -> None:
        counts = self.counts
        print(
            f"{seconds:.0f} s: {self.rounds} archives, {counts.read} read, {counts.loaded} loaded, "
            f"{counts.completed} requests completed, {counts.failed} failed, "
            f"child {rss_bytes(child.process.pid) >> 20} MiB",
            flush=True,
        )

    def save(self) -> Path:
        path = FINDINGS / f"end-to-end-{self.rounds}.pt2"
        path.write_bytes(self._data)
        return path


def rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def settings() -> DeviceSettings:
    """Little memory, so that what takes all of it takes little time."""
    limit = SETTINGS.arena_bytes + 64 * MIB
    return replace(
        SETTINGS, scheduler=replace(SETTINGS.scheduler, memory_bytes_max=limit), profile_passes=1
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz.end_to_end", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    FINDINGS.mkdir(parents=True, exist_ok=True)
    support.WAIT_S = ANSWER_S_MAX
    harness.TIMEOUT_S = int(ANSWER_S_MAX)
    print(f"SEED={options.seed}", flush=True)
    fuzz = EndToEnd(options.seed, settings())
    try:
        fuzz.run(options.seconds)
    except Finding as finding:
        print(fuzz.log.decode("utf-8", "replace"))
        print(f"FINDING in round {fuzz.rounds}: {finding}; the archive: {fuzz.save()}")
        return 1
    print("nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
