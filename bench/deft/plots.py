"""Two pictures: what a sync point trades, with the chosen point; and latencies of B, live."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.deft.report import named
from bench.deft.virtual import ADAPTIVE, RIVALS, Looped
from gpumuxd.units import NS_PER_MS

COLOURS = ("#1b7fb5", "#d1642e", "#4d9a4d", "#7a5ba6")
"""Told apart also by the colour-blind."""
CHOSEN, GREY = "#b03030", "#7f7f7f"

TRADEOFFS = 6
"""Panels: more are too small to read."""


def _style(axes: Axes) -> None:
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def write_tradeoffs(looped: Sequence[Looped], path: Path) -> None:
    """A's loss against B's wait: a curve over k for each window, fixed policies, the choice."""
    mpl.use("Agg")
    # Spread over the models in the order of their run times.
    ordered = sorted(looped, key=lambda each: each.role.times.run_ns)
    picks = np.linspace(0, len(ordered) - 1, min(TRADEOFFS, len(ordered))).round().astype(int)
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    figure.suptitle("Sync points: the loss of who is cut against the wait of who preempts")
    panels = figure.subplots(2, 3).flat
    for axes, pick in zip(panels, picks, strict=False):
        _tradeoff(axes, ordered[pick])
    handles, labels = next(iter(figure.axes)).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _tradeoff(axes: Axes, looped: Looped) -> None:
    windows = sorted({window for _, window in looped.sweep})
    for window, colour in zip(windows, cycle(COLOURS), strict=False):
        points = [cost for (_, d), cost in looped.sweep.items() if d == window]
        axes.plot(
            [100 * cost.inflation for cost in points],
            [cost.worst_ms for cost in points],
            ".-", color=colour, alpha=0.7, label=f"every k, window {window}",
        )  # fmt: skip
    for policy, marker in zip(RIVALS, "s^v", strict=True):
        cost = looped.policies[policy]
        axes.plot(
            100 * cost.inflation, cost.worst_ms, marker, color=GREY, markersize=8, label=policy
        )
    chosen = looped.policies[ADAPTIVE]
    axes.plot(
        100 * chosen.inflation, chosen.worst_ms, "*", color=CHOSEN, markersize=16, label="chosen"
    )
    axes.set_yscale("log")
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlim(left=-0.01)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=7)
    run_ms = looped.role.times.run_ns / NS_PER_MS
    axes.set_title(f"{named(looped.role)}, run {run_ms:.3g} ms", fontsize=10)
    axes.set_xlabel("A's inflation (%)")
    axes.set_ylabel("B's wait, p99 (ms)")
    _style(axes)


def write_latencies(pairs: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Per pair the latency of B: how many of a hundred are below."""
    mpl.use("Agg")
    columns = min(3, len(pairs))
    rows = -(-len(pairs) // columns)
    figure = Figure(figsize=(4.3 * columns, 3.7 * rows), layout="constrained")
    figure.suptitle("Latency of the REALTIME model beside a saturating best-effort one, CPU device")
    panels = np.atleast_1d(figure.subplots(rows, columns)).flat
    for axes, (pair, by_policy) in zip(panels, pairs.items(), strict=False):
        for (policy, latency_ms), colour in zip(by_policy.items(), cycle(COLOURS), strict=False):
            percents = np.linspace(0, 100, len(latency_ms))
            axes.plot(np.sort(latency_ms), percents, color=colour, label=policy)
        axes.set_xscale("log")
        axes.set_title(pair, fontsize=10)
        axes.set_xlabel("latency (ms)")
        axes.set_ylabel("% of requests below")
        _style(axes)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
