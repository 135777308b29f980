"""Who holds the memory of a node's devices, for people: a page for each device."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpumuxd.ctl.tables import print_rows
from gpumuxd.units import mib_from_bytes


def show_memory(console: Console, devices: Any) -> None:
    """Of each device all together, where one may know it, then its models and tenants."""
    if not devices:
        console.print(Text("no device is up", "yellow"))
    for device in devices:
        console.print(Text(device["name"], "bold"))
        if device["totals"] is not None:
            _show_totals(console, device["totals"])
        _show_rows(console, "model", _models(device))
        _show_rows(console, "tenant", _tenants(device))


def _show_totals(console: Console, totals: Any) -> None:
    booked = totals["arena_bytes"] + totals["weights_bytes"] + totals["frame_bytes_held"]
    for line in (
        f"booked {_mib(booked)} of {_mib(totals['bytes_max'])}: weights "
        f"{_mib(totals['weights_bytes'])}, frames {_mib(totals['frame_bytes_held'])} "
        f"({totals['frames_held']} of {totals['frames_max']} held), arena "
        f"{_mib(totals['arena_bytes'])} ({_mib(totals['arena_bytes_used'])} taken)",
        f"its process holds {_mib(totals['resident_bytes'])}, of which "
        f"{_mib(totals['workspace_bytes'])} beyond weights and frames",
    ):
        console.print(Text(f"  {line}"))


def _models(device: Any) -> list[tuple[str, ...]]:
    models = sorted(device["models"], key=lambda m: -m["weights_bytes"] - m["frame_bytes_held"])
    rows: list[tuple[str, ...]] = [
        (
            f"{model['name']}/{model['version']}",
            model["tenant"],
            _mib(model["weights_bytes"]),
            _mib(model["frame_bytes_held"]),
            f"{_mib(model['frame_bytes_max'])} a run",
        )
        for model in models
    ]
    totals = device["totals"]
    if totals is not None and totals["models_untold"]:
        others = f"{totals['models_untold']} others"
        rows.append((others, "", f"{_mib(totals['untold_bytes'])} together", "", ""))
    return rows


def _tenants(device: Any) -> list[tuple[str, ...]]:
    return [
        (
            tenant["name"],
            "",
            _mib(tenant["weights_bytes"]),
            _mib(tenant["frame_bytes_held"]),
            "" if tenant["bytes_max"] is None else f"{_mib(tenant['bytes_max'])} allowed",
        )
        for tenant in device["tenants"]
    ]


def _show_rows(console: Console, what: str, rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    table = Table(what, "of" if what == "model" else "", box=None, pad_edge=False)
    for heading in ("weights", "frames held", "at most"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    print_rows(console, table)


def _mib(size_bytes: int) -> str:
    return f"{mib_from_bytes(size_bytes):.1f} MiB"
