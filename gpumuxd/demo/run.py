"""`gpumuxd demo`: two tenants' real models on one device, with and without preemption.

Exports both models, serves them with a real daemon on the CPU device, and measures the speech
detector alone, beside saturating sentence embedding on a daemon that launches every inference
whole, and beside the same on one that cuts it into slices. Prints a table, draws a picture and
checks the results. Takes about a minute; exit status 1 if a result is wrong, 130 after Ctrl-C.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from gpumuxd_client import AsyncClient
from gpumuxd_client.errors import GpumuxdError
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from gpumuxd.demo.daemon import SEARCH, VOICE, DaemonFailed, running_daemon
from gpumuxd.demo.minilm import load_minilm
from gpumuxd.demo.report import TEXTS, check_results, make_table, write_picture
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

EXIT_WRONG = 1
EXIT_INTERRUPTED = 130

LOAD_S_MAX = 90.0
"""Reading, compiling and measuring a model; ten seconds are usual."""

TICK_S = 0.25

ALONE = "voice alone"
WITHOUT = "loaded, none preempted"
WITH = "loaded, preempting"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(prog="gpumuxd demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each phase")
    parser.add_argument(
        "--png", type=Path, default=Path("gpumuxd-demo.png"), help="where the picture goes"
    )
    options = parser.parse_args(argv)
    console = Console()
    # A reference that runs on more threads than the device would round in another order.
    torch.set_num_threads(1)
    steps = _Steps(console)
    try:
        # Sockets need a short path, and everything below is gone when the demo is.
        with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name, steps.progress:
            folder = Path(name)
            # Before the event loop: Ctrl-C ends it at once.
            with steps.step("exporting silero-vad and all-MiniLM-L6-v2"):
                recording, sentences = _prepare(folder / "models")
            phases = asyncio.run(_measure(folder, recording, sentences, options.seconds, steps))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; nothing is left running")
        return EXIT_INTERRUPTED
    except (DaemonFailed, GpumuxdError, ModuleNotFoundError) as error:
        console.print(f"the demo can't go on: {error}", style="bold red", markup=False)
        return EXIT_WRONG
    return _report(phases, options.png, console)


def _report(phases: dict[str, Traffic], png: Path, console: Console) -> int:
    console.print(make_table(phases))
    write_picture(phases, png)
    console.print(f"picture: {png}")
    checks = list(check_results(phases))
    for check in checks:
        mark = "[green]right[/]" if check.is_true else "[bold red]WRONG[/]"
        console.print(f"  {mark}  {check.claim}", highlight=False, soft_wrap=True)
    return 0 if all(check.is_true for check in checks) else EXIT_WRONG


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
    for slicing, names in (("none", (WITHOUT,)), ("bounded", (ALONE, WITH))):
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


if __name__ == "__main__":
    sys.exit(main())
