"""Why a model is cut as it is, for people, from the plain values that `--json` prints.

First what decides, then what follows from it, then every slice with its groups. It must not know
the client.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpumuxd.ctl.model_page import bound_text, nodes_text, print_facts, print_sentence
from gpumuxd.ctl.tables import print_table
from gpumuxd.units import format_duration

SLICES_SHOWN = 40
GROUPS_SHOWN = 8
"""Of slices, and of the groups in one; all with --json."""


def show_explanation(console: Console, told: Any) -> None:
    """One page."""
    sizes = ", ".join(f"{name} {size}" for name, size in told["sizes"].items())
    heading = f"  at {sizes}" if sizes else ""
    console.print(Text.assemble((f"{told['name']} version {told['version']}", "bold"), heading))
    print_facts(console, _rules(told))
    console.print()
    print_facts(console, _figures(told))
    if told["is_floor_over_bound"]:
        floor, bound = told["floor"], told["bound"]
        print_sentence(
            console,
            f"One group takes {format_duration(floor['device_ns'])}, more than the bound of "
            f"{format_duration(bound['bound_ns'])}: whoever comes when it begins waits that long.",
            "yellow",
        )
    if told["is_guess"] and told["run_ns"]:
        print_sentence(
            console,
            "The times are a guess, from other sizes or one first run; requests will correct them.",
            "yellow",
        )
    if told["slices"]:
        console.print()
        _print_slices(console, told)


def _rules(told: Any) -> Iterator[tuple[str, str]]:
    yield "device", told["device"]
    for tensor in told["inputs"]:
        yield "input", f"{tensor['name']}  {tensor['datatype']}{list(tensor['shape'])}"
    yield "class", told["priority_class"]
    yield "mode", f"{told['mode']}: {told['reason']}"
    is_promised = told["bound"]["origin"] != "least_delay"  # else the mode's sentence says why
    yield "bound", bound_text(told["name"], told["bound"]) if is_promised else "none is promised"


def _figures(told: Any) -> Iterator[tuple[str, str]]:
    run_ns, exec_ns, floor = told["run_ns"], told["exec_ns"], told["floor"]
    if not run_ns:
        yield "run alone", f"not known: no run of {told['group_count']} groups was measured yet"
        return
    groups = f"{told['group_count']} groups, as learnt so far"
    yield "run alone", f"{format_duration(run_ns)} in {groups}"
    cut_to = f", cut to {format_duration(told['slice_ns'])}" if told["slice_ns"] else ""
    yield "slices", f"{told['slice_count']}{cut_to}; {told['window']} in flight"
    if exec_ns:
        doubt = ", doubtful: the machine was busy at start" if told["is_cost_doubtful"] else ""
        share = f"{exec_ns / run_ns:.1%}"
        yield "sync points", f"add {format_duration(exec_ns)} to a run ({share}){doubt}"
    else:
        yield "sync points", "what they cost on this device is not known"
    worst, mean = told["preempt_ns"], told["preempt_expected_ns"]
    yield (
        "delay",
        f"up to {format_duration(worst)} for an arrival, {format_duration(mean)} on average",
    )
    if floor is not None:
        nodes = f" ({nodes_text(floor)})" if floor["end_node"] else ""
        time = format_duration(floor["device_ns"])
        yield "floor", f"{time}, the longest group: number {floor['group']}{nodes}"


def _print_slices(console: Console, told: Any) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("slice", justify="right")
    table.add_column("groups")
    for heading in ("predicted", "ends at"):
        table.add_column(heading, justify="right")
    table.add_column("each group")
    shown = told["slices"][:SLICES_SHOWN]
    ends_ns = accumulate(each["predicted_ns"] for each in shown)
    for number, (each, end_ns) in enumerate(zip(shown, ends_ns, strict=True)):
        first, end = each["first_group"], each["end_group"]
        table.add_row(
            str(number),
            str(first) if end - first == 1 else f"{first} .. {end - 1}",
            format_duration(each["predicted_ns"]),
            format_duration(end_ns),
            _groups(told["group_ns"][first:end], end - first),
        )
    print_table(console, table, indent=2)
    left_out = told["slice_count"] - len(shown)
    if left_out:
        all_told = len(told["slices"]) == told["slice_count"]
        where = " (all with --json)" if all_told else ""
        print_sentence(console, f"and {left_out} more slices{where}")


def _groups(times_ns: Any, count: int) -> str:
    """The times of the groups in a slice; "..." for those that are not shown."""
    shown = [format_duration(time_ns) for time_ns in times_ns[:GROUPS_SHOWN]]
    return " + ".join([*shown, *(["..."] if count > len(shown) else [])])
