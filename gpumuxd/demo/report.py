"""What the demo tells people: one table, one picture, and whether the results were right."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.table import Table

from gpumuxd.demo.traffic import FRAME_S, Traffic

EMBEDDING_TOLERANCE = 1e-6
"""Equal bit for bit is usual: the same kernels run in the same order. Numbers are below 1, so this
is eight times float32's rounding step, room for a library that picks kernels by load."""

LIMIT_MS = FRAME_S * 1e3
"""When the next frame is due; an answer that comes later is late."""

COLOURS = ("#7f7f7f", "#d1642e", "#1b7fb5")
"""Of the phases, in their order; told apart also by the colour-blind."""
LATE_COLOUR = "#b03030"

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
        f"late (>{LIMIT_MS:.0f} ms)",
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
    figure = Figure(figsize=(11, 5), layout="constrained")
    figure.suptitle("A speech detector beside saturating sentence search, one CPU device")
    over_time, curve = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    took_ms = {}
    for (name, traffic), colour in zip(phases.items(), cycle(COLOURS), strict=False):
        sent, took = (np.array(column) for column in zip(*traffic.voice, strict=True))
        took_ms[name] = took * 1e3
        over_time.plot(sent, took_ms[name], ".", color=colour, markersize=3.5, alpha=0.8)
        percents = np.linspace(0, 100, len(took))
        label = f"{name}: p99 {percentile_ms(traffic, 99):.1f} ms"
        curve.plot(percents, np.sort(took_ms[name]), color=colour, linewidth=2, label=label)
    lowest, highest = (
        edge([edge(took) for took in took_ms.values()] + [LIMIT_MS]) for edge in (np.min, np.max)
    )
    for axes in (over_time, curve):
        axes.set_yscale("log")
        axes.set_ylim(lowest * 0.8, highest * 1.5)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.axhspan(LIMIT_MS, highest * 1.5, color=LATE_COLOUR, alpha=0.07, linewidth=0)
        axes.axhline(LIMIT_MS, color=LATE_COLOUR, linestyle="--", linewidth=1)
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
    over_time.set_title("every frame", fontsize=10)
    over_time.set_xlabel("time in the phase (s)")
    over_time.set_ylabel("answered after (ms)")
    over_time.annotate(
        f"late: the next frame is due after {LIMIT_MS:.0f} ms",
        (0.015, LIMIT_MS),
        (0, 4),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        fontsize=9,
        color=LATE_COLOUR,
    )
    curve.set_title("the same, sorted", fontsize=10)
    curve.set_xlabel("percent of frames")
    # Below both panels, where no curve can run into it.
    figure.legend(loc="outside lower center", ncols=len(phases), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


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
