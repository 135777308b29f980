"""What the virtual half says: figures with goals, and tables for people."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from bench.deft.pairs import Difference
from bench.deft.virtual import (
    ADAPTIVE,
    NONE,
    POLICIES,
    RIVALS,
    SLOS,
    Cost,
    Looped,
    Misses,
)
from bench.deft.world import Role
from bench.harness import Bench, at_least, at_most, percentile

WITHIN, WITHIN_PERCENT_MIN = 1.05, 90
SUM_SAVED_MIN = 28
MISSES_SAVED_MIN = 14


def report_sums(bench: Bench, looped: Sequence[Looped]) -> None:
    """The delay sum: against the sweep, and against fixed sync points."""
    figure, rivals = bench.figure, ", ".join(RIVALS)
    within = 100 * statistics.fmean(each.over_best <= WITHIN for each in looped)
    figure("sum within 5 % of the sweep's best", within, "%", at_least(WITHIN_PERCENT_MIN))
    worst = max(looped, key=lambda each: each.over_best)
    figure(f"sum / sweep's best, worst (A {named(worst.role)})", worst.over_best, "x")
    figure("sum / sweep's best, median", percentile([e.over_best for e in looped], 50), "x")
    figure(
        "same of the sum with the mean wait, median",
        percentile([each.mean_over_best for each in looped], 50),
        "x",
    )
    figure(
        f"mean sum, below the average of {rivals}",
        saved_percent(looped, lambda cost: cost.sum_ms),
        "%",
        at_least(SUM_SAVED_MIN),
    )
    figure(
        "same of the sum with the mean wait",
        saved_percent(looped, lambda cost: cost.mean_sum_ms),
        "%",
    )
    figure(
        "same of the sum with A's whole run",
        saved_percent(looped, lambda cost: cost.run_ms + cost.worst_ms),
        "%",
    )
    saved = [saved_percent([each], lambda cost: cost.sum_ms) for each in looped]
    figure("sum, below that average, median of pairs", percentile(saved, 50), "%")
    rival = max(looped, key=lambda each: each.over_rival)
    name = f"sum / best of {rivals}, worst (A {named(rival.role)})"
    figure(name, rival.over_rival, "x", at_most(WITHIN))


def report_misses(bench: Bench, misses: Sequence[Misses]) -> None:
    """B's late answers, against the average of fixed sync points, relative to it."""
    for slo in (*SLOS, None):
        share = late_percent([each for each in misses if slo in (each.slo, None)])
        average = statistics.fmean(share[rival] for rival in RIVALS)
        saved = 100 * (1 - share[ADAPTIVE] / average) if average else 0.0
        what = f"SLO {slo}x" if slo else "both SLOs"
        goal = None if slo else at_least(MISSES_SAVED_MIN)
        bench.figure(f"SLO misses, {ADAPTIVE}, {what}", share[ADAPTIVE], "%")
        bench.figure(f"same, average of {', '.join(RIVALS)}", average, "%")
        bench.figure(f"fewer misses than that, {what}", saved, "% of them", goal)
    over = [
        (each.share[ADAPTIVE] - min(each.share[rival] for rival in RIVALS), each) for each in misses
    ]
    most, worst = max(over, key=lambda each: each[0])
    bench.figure(
        f"misses beyond the best of them, worst ({named(worst.b)} over {named(worst.a)}, "
        f"{worst.slo}x)",
        100 * most,
        "points",
    )


def report_differences(bench: Bench, found: Sequence[Difference]) -> None:
    """How far whole simulations of pairs are from what was computed."""
    delays = [100 * each.of_delay for each in found]
    late = [100 * abs(each.simulated_late - each.computed_late) for each in found]
    bench.figure("mean wait, simulated against computed, median", percentile(delays, 50), "%")
    worst = max(found, key=lambda each: each.of_delay)
    bench.figure(f"same, worst ({worst.pair}, {worst.policy})", 100 * worst.of_delay, "%")
    bench.figure("late share, simulated against computed, p90", percentile(late, 90), "points")


def saved_percent(looped: Sequence[Looped], value: Callable[[Cost], float]) -> float:
    """How far the adaptive policy's mean is below the average of its rivals'."""
    mean = {
        policy: statistics.fmean(value(each.policies[policy]) for each in looped)
        for policy in POLICIES
    }
    return 100 * (1 - mean[ADAPTIVE] / statistics.fmean(mean[rival] for rival in RIVALS))


def late_percent(misses: Sequence[Misses]) -> Mapping[str, float]:
    """Of all pairs' requests, every pair counting as much."""
    return {
        policy: 100 * statistics.fmean(each.share[policy] for each in misses) for policy in POLICIES
    }


def named(role: Role) -> str:
    return f"{role.model.name} x{role.batch}"


def print_policies(bench: Bench, looped: Sequence[Looped], misses: Sequence[Misses]) -> None:
    """One row a policy: means over all pairs, and the median of A's inflation."""
    late = {slo: late_percent([each for each in misses if each.slo == slo]) for slo in SLOS}
    table = Table(
        "policy", "A's inflation", "median", "wait mean", "wait p99", "sum", "sum / best, median",
        *(f"late at {slo}x" for slo in SLOS),
        title="virtual: all ordered pairs (ms, % of A's run, % of B's requests)",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for policy in POLICIES:
        costs = [each.policies[policy] for each in looped]
        over = [each.policies[policy].sum_ms / each.sweep[each.best].sum_ms for each in looped]
        table.add_row(
            policy,
            f"{100 * statistics.fmean(cost.inflation for cost in costs):.2f} %",
            f"{100 * percentile([cost.inflation for cost in costs], 50):.2f} %",
            *(
                f"{statistics.fmean(values):.2f}"
                for values in (
                    [cost.mean_ms for cost in costs],
                    [cost.worst_ms for cost in costs],
                    [cost.sum_ms for cost in costs],
                )
            ),
            f"{percentile(over, 50):.2f}",
            *(f"{late[slo][policy]:.1f} %" for slo in SLOS),
        )
    bench.console.print(table)


def print_models(bench: Bench, looped: Sequence[Looped]) -> None:
    """One row an A: what was best, what was chosen, and what that costs."""
    table = Table(
        "A", "operators", "run", "sweep's best", "its sum", "chosen", "its sum", "ratio",
        *RIVALS, NONE,
    )  # fmt: skip
    for column in (1, 2, 4, *range(6, 12)):
        table.columns[column].justify = "right"
    for each in looped:
        k, window = each.best
        ours = each.policies[ADAPTIVE]
        table.add_row(
            named(each.role),
            str(each.role.model.operators),
            f"{each.role.times.run_ns / 1e6:.1f}",
            f"k {k}, D {window}",
            f"{each.sweep[each.best].sum_ms:.2f}",
            each.chosen,
            f"{ours.sum_ms:.2f}",
            f"{each.over_best:.2f}",
            *(f"{each.policies[policy].sum_ms:.2f}" for policy in (*RIVALS, NONE)),
        )
    bench.console.print(table)


def rows_of(looped: Sequence[Looped], misses: Sequence[Misses]) -> list[dict[str, object]]:
    """For `--json`: one row an A, and one a pair."""
    rows: list[dict[str, object]] = []
    for each in looped:
        costs = {
            policy: {
                "inflation": cost.inflation, "added_ms": cost.added_ms, "run_ms": cost.run_ms,
                "wait_mean_ms": cost.mean_ms, "wait_p99_ms": cost.worst_ms, "slices": cost.slices,
            }
            for policy, cost in each.policies.items()
        }  # fmt: skip
        sweep = [
            [k, window, cost.added_ms, cost.worst_ms, cost.mean_ms]
            for (k, window), cost in each.sweep.items()
        ]
        rows.append(
            {
                "part": "virtual", "a": each.role.model.name, "batch_a": each.role.batch,
                "best": each.best, "chosen": each.chosen, "policies": costs, "sweep": sweep,
            }
        )  # fmt: skip
    rows += [
        {
            "part": "misses", "a": each.a.model.name, "batch_a": each.a.batch,
            "b": each.b.model.name, "batch_b": each.b.batch, "slo": each.slo,
            "late": [round(each.share[policy], 4) for policy in POLICIES],
        }
        for each in misses
    ]  # fmt: skip
    return rows
