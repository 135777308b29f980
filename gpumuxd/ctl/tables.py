"""Answers for people. Takes the same plain values that `--json` prints.

On a pipe a row of a table is a line, however long, so that grep and awk can have it. On a terminal
that is too narrow for a table each row is a few lines, broken between its values.
"""

from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpumuxd.units import format_duration, mib_from_bytes, printable

PIPE_COLUMNS = 1_000_000
"""Wider than any row: nothing is folded or cut."""

VALUES_SHOWN = 8
"""Of an output; in full with --json."""

_STATE_STYLE = {"READY": "green", "ready": "green", "lost": "red", "UNAVAILABLE": "dim"}


class _Console(Console):
    """One that leaves it to its caller what to do when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console_of(stream: TextIO) -> Console:
    """As wide as the terminal, or without limits."""
    width = None if stream.isatty() else PIPE_COLUMNS
    return _Console(file=stream, width=width, highlight=False)


def plain(answer: Any) -> Any:
    """The answer with texts that do nothing on a terminal: names and reasons are other people's."""
    match answer:
        case str():
            return "\n".join(map(printable, answer.split("\n")))
        case dict():
            return {plain(key): plain(value) for key, value in answer.items()}
        case list() | tuple():
            return [plain(value) for value in answer]
    return answer


def show_status(console: Console, status: Any) -> None:
    """One line for the node, one row for each device."""
    ready = Text("ready", "green") if status["is_ready"] else Text("not ready", "yellow")
    uptime = format_duration(status["uptime_ns"])
    console.print(Text.assemble(f"gpumuxd {status['version']}, up {uptime}, ", ready))
    if status["reason"]:
        console.print(Padding.indent(Text(status["reason"], "yellow"), 2))
    table = Table("device", "state", "pid", "restarts", box=None, pad_edge=False)
    headings = ["queued", "in flight", "preemptions", "bound", "window", "memory", "busy"]
    has_grants = any(device["best_effort_grants"] for device in status["devices"])
    if has_grants:  # only with `best_effort_share_min`
        headings += ["best-effort grants", "granted"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for device in status["devices"]:
        busy = device["device_busy_ns"] / max(1, status["uptime_ns"])
        granted = (
            str(device["best_effort_grants"]),
            format_duration(device["best_effort_granted_ns"]),
        )
        table.add_row(
            Text(device["name"]),
            state_text(device["state"]),
            str(device["pid"]),
            str(device["restarts"]),
            str(device["queued"]),
            str(device["requests_in_flight"]),
            str(device["preemptions"]),
            format_duration(device["bound_ns"]) if device["bound_ns"] else "none",
            str(device["window"]),
            f"{mib_from_bytes(device['memory_bytes']):.1f} MiB",
            f"{busy:.1%}",
            *(granted if has_grants else ()),
        )
    print_rows(console, table)


def show_models(console: Console, models: Any) -> None:
    """One row for each version."""
    columns = ("model", "version", "state", "inputs (? varies)", "outputs", "reason")
    table = Table(*columns, box=None, pad_edge=False)
    between = "\n" if console.is_terminal else ", "
    for model in models:
        table.add_row(
            Text(model["name"]),
            Text(model["version"]),
            state_text(model["state"]),
            Text(between.join(_tensors(model.get("inputs", ())))),
            Text(between.join(_tensors(model.get("outputs", ())))),
            Text(" ".join(model["reason"].split())),
        )
    print_rows(console, table, own_line="reason")


def print_table(console: Console, table: Table, indent: int = 0) -> None:
    """A narrow terminal hides nothing: cells are folded there."""
    for column in table.columns:
        column.overflow = "fold"
    shown = Padding.indent(table, indent) if indent else table
    if console.is_terminal:
        console.print(shown)
        return
    with console.capture() as capture:
        console.print(shown)
    for line in capture.get().splitlines():  # a table fills its last column with blanks
        console.file.write(line.rstrip() + "\n")


def print_rows(console: Console, table: Table, own_line: str = "") -> None:
    """A table of many columns. What is in the column `own_line` may be long: it is a line below
    its row where the table is wider than the terminal."""
    unlimited = console.options.update(max_width=PIPE_COLUMNS)
    if (
        not console.is_terminal
        or console.measure(table, options=unlimited).maximum <= console.width
    ):
        print_table(console, table)
        return
    headings = [str(column.header) for column in table.columns]
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        first, *rest = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells]
        values = list(zip(headings[1:], rest, strict=True))
        _print_values(console, first, [each for each in values if each[0] != own_line])
        for heading, value in values:
            if heading == own_line and value:
                console.print(Padding.indent(value, 2))


def _print_values(console: Console, first: Text, values: list[tuple[str, Text]]) -> None:
    """As many on a line as there is room for. One that is longer than a line is broken at words."""
    line = Text.assemble((first.plain, "bold"))
    lines = [line]
    for heading, value in values:
        if not value:
            continue
        shown = Text.assemble((f"{heading} ", "dim"), Text(", ").join(value.split("\n")))
        if line.cell_len + 2 + shown.cell_len > console.width - 2:
            line = shown
            lines.append(line)
        else:
            line.append("  ").append_text(shown)
    console.print(lines[0])
    for line in lines[1:]:
        console.print(Padding.indent(line, 2))


def show_done(console: Console, answer: Any) -> None:
    """What was done to which model."""
    console.print(Text(f"{answer['model']} {answer['done']}"))


def show_unloaded(console: Console, answer: Any) -> None:
    """What was unloaded, and for each version what of its memory came back."""
    show_done(console, answer)
    if not answer["replicas"]:
        return
    table = Table("version", "device", box=None, pad_edge=False)
    for heading in ("weights", "process before", "after", "came back"):
        table.add_column(heading, justify="right")
    for replica in answer["replicas"]:
        before, after = replica["resident_bytes_before"], replica["resident_bytes_after"]
        sizes = (replica["weights_bytes"], before, after, before - after)
        table.add_row(
            Text(replica["version"]),
            Text(replica["device"]),
            *(f"{mib_from_bytes(size):.1f} MiB" for size in sizes),
        )
    print_rows(console, table)


def show_drained(console: Console, answer: Any) -> None:
    """What was drained or put back, and a row for each model that was concerned."""
    console.print(Text(f"{answer['device'] or 'the node'} {answer['done']}"))
    if answer["models"]:
        table = Table("model", "version", "", "where, or why not", box=None, pad_edge=False)
        for model in answer["models"]:
            values = (model["name"], model["version"], model["fate"], model["reason"])
            table.add_row(*map(Text, values))
        print_rows(console, table)


def show_result(console: Console, result: Any) -> None:
    """Each output, shortened, and what happened to the request."""
    for name, output in result["outputs"].items():
        heading = Text(f"{name} {output['dtype']}{output['shape']}", "bold")
        console.print(Text.assemble(heading, ": ", _values(output)))
    report = result["report"]
    predicted = "not predicted"  # sizes that were never measured
    if report["predicted_ns"]:
        predicted = f"predicted {format_duration(report['predicted_ns'])}"
    console.print(
        Text(
            f"queued {format_duration(report['queue_ns'])}, "
            f"computed {format_duration(report['compute_ns'])} "
            f"({predicted}), "
            f"preempted {report['preemptions']} times "
            f"for {format_duration(report['preemption_wait_ns'])}",
            "dim",
        )
    )


def state_text(state: str) -> Text:
    """A state in its colour."""
    return Text(state, _STATE_STYLE.get(state, "yellow"))


def _tensors(tensors: Any) -> Iterator[str]:
    for tensor in tensors:
        sizes = ", ".join("?" if size < 0 else str(size) for size in tensor["shape"])
        yield f"{tensor['name']} {tensor['datatype']}[{sizes}]"


def _values(output: Any) -> str:
    """The first ones in a row, and how many there are."""
    values = np.asarray(output["values"]).ravel()
    shown = " ".join(
        f"{value:.6g}" if values.dtype.kind == "f" else str(value)
        for value in values[:VALUES_SHOWN].tolist()
    )
    return shown if values.size <= VALUES_SHOWN else f"{shown} ... ({values.size} values)"
