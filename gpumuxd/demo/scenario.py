"""The demo itself: export, serve, measure three phases. What is said of it is in `report.py`.

Every step shows up in a progress display. Daemons and files end with the step that needs them,
whatever happens inside.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from gpumuxd_client import AsyncClient
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from gpumuxd.demo.daemon import SEARCH, VOICE, running_daemon
from gpumuxd.demo.minilm import load_minilm
from gpumuxd.demo.report import TEXTS
from gpumuxd.demo.repository import MINILM, VAD, write_repository
from gpumuxd.demo.silero import load_silero
from gpumuxd.demo.speech import utterances
from gpumuxd.demo.traffic import (
    WARM_UP_S,
    Recording,
    Sentences,
    Traffic,
    recording_of,
    run_phase,
    sentences_of,
)

LOAD_S_MAX = 90.0
"""Reading, compiling and measuring a model; ten seconds are usual."""

TICK_S = 0.25

ALONE = "voice alone"
WITHOUT = "loaded, none preempted"
WITH = "loaded, preempting"


def play(folder: Path, seconds: float, console: Console) -> dict[str, Traffic]:
    """All three phases, in the order of the table. `folder` is short and empty."""
    # A reference that runs on more threads than the device would round in another order.
    torch.set_num_threads(1)
    steps = _Steps(console)
    with steps.progress:
        # Before the event loop: Ctrl-C ends it at once.
        with steps.step("exporting silero-vad and all-MiniLM-L6-v2"):
            recording, sentences = _prepare(folder / "models")
        return asyncio.run(_measure(folder, recording, sentences, seconds, steps))


class _Steps:
    """The progress display: one line a step."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
        )

    @contextmanager
    def step(self, description: str, seconds: float | None = None) -> Iterator[None]:
        """A bar that fills in `seconds`, or moves to and fro where nobody knows how long."""
        task = self.progress.add_task(description, total=seconds)
        ticking = asyncio.create_task(self._tick(task)) if seconds else None
        try:
            yield
        finally:
            if ticking is not None:
                ticking.cancel()
        self.progress.update(task, total=seconds or 1, completed=seconds or 1)

    async def _tick(self, task: TaskID) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.progress.advance(task, TICK_S)


async def _measure(
    folder: Path, recording: Recording, sentences: Sentences, seconds: float, steps: _Steps
) -> dict[str, Traffic]:
    """All three phases, in the order of the table."""
    current = asyncio.current_task()
    assert current is not None, "runs as a task"
    # As Ctrl-C: whoever ends us with SIGTERM must not leave a daemon behind either.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, current.cancel)
    phases: dict[str, Traffic] = {}
    for slicing, names in (("none", (WITHOUT,)), ("adaptive", (ALONE, WITH))):
        async with _served(folder, slicing, steps) as (voice, search):
            for name in names:
                load = None if name == ALONE else sentences
                with steps.step(f"measuring: {name}", seconds + WARM_UP_S):
                    phases[name] = await run_phase(voice, search, recording, load, seconds)
    return {name: phases[name] for name in (ALONE, WITHOUT, WITH)}


def _prepare(repository: Path) -> tuple[Recording, Sentences]:
    """Both artifacts, what is said, what is searched, and what the unsplit model makes of it."""
    vad, minilm = load_silero(), load_minilm()
    write_repository(repository, vad, minilm)
    sentences = sentences_of(TEXTS)
    with torch.inference_mode():
        expected = tuple(
            minilm(torch.from_numpy(token_ids), torch.from_numpy(mask)).numpy()
            for token_ids, mask in sentences.inputs
        )
    return recording_of(utterances()), replace(sentences, expected=expected)


@asynccontextmanager
async def _served(
    folder: Path, slicing: str, steps: _Steps
) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """A daemon with both models loaded, and a client of each tenant."""
    async with AsyncExitStack() as stack:
        with steps.step(f"starting a daemon, slicing {slicing!r}"):
            daemon = await stack.enter_async_context(
                running_daemon(folder / slicing, folder / "models", slicing, folder / "state")
            )
        voice = await stack.enter_async_context(daemon.client(VOICE))
        search = await stack.enter_async_context(daemon.client(SEARCH))
        with steps.step(f"loading both models, slicing {slicing!r}"):
            await voice.load(VAD, deadline=LOAD_S_MAX)
            await search.load(MINILM, deadline=LOAD_S_MAX)
        yield voice, search
