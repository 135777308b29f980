"""(2) Six pairs of real models on the CPU device: predicted beside measured.

The production scheduler and the CPU device in this process, without daemon and network, so that
what is measured is scheduling. A, best effort, loops; B, REALTIME, loaded in every case, arrives
open loop at random phases, or not at all while A's run time is measured. Rounds of all policies are
interleaved.

*Inflation* is what sync points add to A's run, of the run without them. It is measured twice: by
the throughput of the loop against that of whole inferences, round against round, which has all in
it and is known to a percent or so; and by the time in which the device idles in a run, beside that
of whole inferences, which is known much better because the pace of the machine is not in it. The
prediction is the scheduler's own (`DeviceScheduler.explain`), after it has corrected its estimates.
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

NONE, LEAST, WITH_SLO = "none", "adaptive", "adaptive, SLO"
VARIANTS = {NONE: "none", LEAST: "adaptive", WITH_SLO: "adaptive"}
"""By name, with the policy. B declares an SLO in the last one alone, which is another mode."""

SLO_RUNS, SLO_MARGIN_NS = 3, 2 * NS_PER_MS
"""That SLO: some runs of B, and a little, or nothing could ever be in flight beside a short one."""

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
QUICK = PAIRS[:1]

GAP_MS = 40
"""Mean time between requests of B, beside its own run."""

ROUNDS = 6

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
    def explained(self) -> Explanation:
        found = self.bed.scheduler.explain(self.a.key, self.a.bucket)
        assert found is not None, self.a
        return found


@dataclass(frozen=True, slots=True)
class Row:
    """What is reported of one pair in one adaptive variant, against whole inferences."""

    pair: str
    variant: str
    mode: str
    slices: int
    window: int
    delay_ms: Interval
    predicted_delay_ms: float
    none_delay_ms: Interval
    inflation: Interval
    predicted_inflation: float
    idle_inflation: Interval
    throughput: Interval

    @property
    def delay_error(self) -> float:
        return abs(self.predicted_delay_ms / self.delay_ms.mean - 1)

    @property
    def inflation_error(self) -> float:
        """Against what the device idled, see the module's docstring."""
        return abs(self.predicted_inflation / self.idle_inflation.mean - 1)


def measure_pairs(bench: Bench) -> dict[str, Mapping[str, Measured]]:
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
            return {
                f"{b} over {a}": _measure_pair(bench, models[b], models[a], costs.sync_costs)
                for b, a in pairs
            }
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

    def part(self, priority_class: PriorityClass, slo_ns: int | None = None) -> Part:
        """The model in its part."""
        profile, program = self.profile, self.program
        return Part(self.name, self.bucket, priority_class, profile, program, self.inputs, slo_ns)


def _measure_pair(
    bench: Bench, b: Model, a: Model, costs: Sequence[SyncCost]
) -> Mapping[str, Measured]:
    beds = {name: _bed(name, a, b, costs) for name in VARIANTS}
    seconds = bench.pick(6, 4) / 10
    try:
        for name, is_kept in bench.schedule(list(VARIANTS), bench.pick(ROUNDS, 3)):
            _one_round(beds[name], bench.rng, seconds, is_kept)
    finally:
        for each in beds.values():
            each.bed.executor.close()
    bench.console.print(f"measured {b.name} over {a.name}", style="dim")
    return beds


def _bed(name: str, a: Model, b: Model, costs: Sequence[SyncCost]) -> Measured:
    run_ns = b.profile.run_ns[b.bucket]
    slo_ns = SLO_RUNS * run_ns + SLO_MARGIN_NS if name == WITH_SLO else None
    parts = a.part(PriorityClass.BEST_EFFORT), b.part(PriorityClass.REALTIME, slo_ns)
    bed = Bed(settings_of(VARIANTS[name]), CpuExecutor(), monotonic_ns, costs, parts)
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
        bed.turn()
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


def row_of(pair: str, variant: str, beds: Mapping[str, Measured]) -> Row:
    """One pair's figures, each round of a variant beside the same round of the other."""
    ours, none = beds[variant], beds[NONE]
    rounds = list(zip(ours.period_ms, none.period_ms, strict=True))
    explained, whole = ours.explained, none.explained
    none_ms = statistics.fmean(none.period_ms)
    return Row(
        pair=pair,
        variant=variant,
        mode=explained.mode,
        slices=len(explained.slice_ends),
        window=explained.window,
        delay_ms=interval([statistics.fmean(each) for each in ours.delay_ms]),
        predicted_delay_ms=explained.preempt_expected_ns / NS_PER_MS,
        none_delay_ms=interval([statistics.fmean(each) for each in none.delay_ms]),
        inflation=interval([mine / theirs - 1 for mine, theirs in rounds]),
        predicted_inflation=(explained.exec_ns - whole.exec_ns) / sum(explained.group_ns),
        idle_inflation=interval(
            [
                (mine - theirs) / none_ms
                for mine, theirs in zip(ours.idle_ms, none.idle_ms, strict=True)
            ]
        ),
        throughput=interval([theirs / mine for mine, theirs in rounds]),
    )


def report(bench: Bench, found: Mapping[str, Mapping[str, Measured]]) -> None:
    """Figures with goals, and one row a pair and variant for people."""
    rows = [
        row_of(pair, variant, beds) for pair, beds in found.items() for variant in (LEAST, WITH_SLO)
    ]
    _print(bench, rows)
    bench.rows += [{"part": "live", **asdict(row)} for row in rows]
    goal = at_most(ERROR_PERCENT_MAX)
    for variant in (LEAST, WITH_SLO):
        those = [row for row in rows if row.variant == variant]
        delays = [100 * row.delay_error for row in those]
        name = f"{variant}: wait, predicted off measured, median"
        bench.figure(name, percentile(delays, 50), "%", goal)
        inflations = [100 * row.inflation_error for row in those]
        name = f"{variant}: inflation, predicted off measured, median"
        bench.figure(name, percentile(inflations, 50), "%", goal)
        bench.figure(
            f"{variant}: throughput / none, B idle, mean",
            statistics.fmean(row.throughput.mean for row in those),
            "x",
            at_least(THROUGHPUT_RATIO_MIN),
        )
        worst = min(those, key=lambda row: row.throughput.mean)
        bench.figure(f"{variant}: same, worst ({worst.pair})", worst.throughput.mean, "x")


def _print(bench: Bench, rows: Sequence[Row]) -> None:
    table = Table(
        "B over A", "variant", "mode, slices, window", "wait (ms)", "pre- dicted", "wait, none",
        "inflation (%)", "by idle time", "pre- dicted", "throughput / none",
        title="live: means and their 95 % intervals",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.pair,
            row.variant,
            f"{row.mode}, {row.slices}, {row.window}",
            str(row.delay_ms),
            f"{row.predicted_delay_ms:.3g}",
            str(row.none_delay_ms),
            str(row.inflation.times(100)),
            str(row.idle_inflation.times(100)),
            f"{100 * row.predicted_inflation:.3g}",
            str(row.throughput),
        )
    bench.console.print(table)
