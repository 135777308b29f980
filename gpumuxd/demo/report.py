"""What the demo tells people: one table, one picture, and whether the results were right."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from gpumuxd.demo.traffic import FRAME_S, Traffic

EMBEDDING_TOLERANCE = 1e-6
"""Equal bit for bit is usual: the same kernels run in the same order. Numbers are below 1, so this
is eight times float32's rounding step, room for a library that picks kernels by load."""

SPEECH_MIN = 0.8
SILENCE_MAX = 0.2

CLOSE_PAIR = (0, 1)
DISTANT_PAIR = (0, 2)
TEXTS = (
    "A man is eating food.",
    "A man eats a meal.",
    "The stock market fell by three percent.",
    "Two cats play on the carpet.",
    "The train to the coast leaves at noon.",
    "Edge devices have little memory.",
    "She is reading a book about rivers.",
    "Deadlines make some requests more urgent than others.",
)
"""What is searched; the first three make a close pair and a distant one."""


@dataclass(frozen=True, slots=True)
class Check:
    """One claim about the results."""

    claim: str
    is_true: bool


def percentile_ms(traffic: Traffic, percent: float) -> float:
    """Of the voice's answers."""
    return float(np.percentile([took for _, took in traffic.voice], percent)) * 1e3


def make_table(phases: Mapping[str, Traffic]) -> Table:
    """The voice's latency and the sentences a second, phase by phase."""
    table = Table(
        "",
        "voice p50",
        "voice p99",
        "late frames",
        "sentences/s",
        title="gpumuxd on the CPU device",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for name, traffic in phases.items():
        table.add_row(
            name,
            f"{percentile_ms(traffic, 50):.1f} ms",
            f"{percentile_ms(traffic, 99):.1f} ms",
            f"{traffic.late_frames / len(traffic.voice):.1%}",
            f"{traffic.sentences_per_s:.1f}" if traffic.sentences else "-",
        )
    return table


def write_picture(phases: Mapping[str, Traffic], path: Path) -> None:
    """Latency of every frame over time, and as a curve over the percentiles."""
    mpl.use("Agg")
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    over_time, curve = figure.subplots(1, 2, sharey=True)
    for name, traffic in phases.items():
        sent, took = (np.array(column) for column in zip(*traffic.voice, strict=True))
        over_time.plot(sent, took * 1e3, ".", markersize=3, label=name)
        percents = np.linspace(0, 100, len(took))
        curve.plot(percents, np.sort(took) * 1e3, label=name)
    for axes in (over_time, curve):
        axes.axhline(FRAME_S * 1e3, color="grey", linestyle=":", linewidth=1)
        axes.set_yscale("log")
        axes.grid(visible=True, which="both", alpha=0.2)
    over_time.set_title("speech detector, every frame")
    over_time.set_xlabel("time in the phase (s)")
    over_time.set_ylabel("answer after (ms)")
    over_time.annotate("next frame", (0, FRAME_S * 1e3), fontsize=8, color="grey", va="bottom")
    curve.set_title("the same, sorted")
    curve.set_xlabel("percent of frames")
    curve.legend(loc="center left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def check_results(phases: Mapping[str, Traffic]) -> Iterator[Check]:
    """Preempted or not, what came back is what the models say."""
    for name, traffic in phases.items():
        voice = np.mean([found for is_speech, found in traffic.speech if is_speech])
        silence = np.mean([found for is_speech, found in traffic.speech if not is_speech])
        yield Check(f"{name}: speech probability {voice:.2f} on voice", bool(voice > SPEECH_MIN))
        yield Check(
            f"{name}: speech probability {silence:.2f} on silence", bool(silence < SILENCE_MAX)
        )
        if not traffic.embeddings:
            continue
        error = traffic.embedding_error
        exactly = "bit for bit" if error == 0 else f"within {error:.1g}"
        yield Check(
            f"{name}: embeddings equal the unsplit model's {exactly}", error <= EMBEDDING_TOLERANCE
        )
        close, distant = (
            float(traffic.embeddings[a] @ traffic.embeddings[b])
            for a, b in (CLOSE_PAIR, DISTANT_PAIR)
        )
        yield Check(
            f"{name}: a close pair of sentences scores {close:.2f}, a distant one {distant:.2f}",
            close > distant + 0.3,
        )
