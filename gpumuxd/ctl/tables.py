"""Answers for people. Takes the same plain values that `--json` prints."""

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

_STATE_STYLE = {"READY": "green", "ready": "green", "lost": "red", "UNAVAILABLE": "dim"}


def show_status(console: Console, status: Any) -> None:
    """One line for the node, one row for each device."""
    ready = Text("ready", "green") if status["is_ready"] else Text("not ready", "yellow")
    uptime = _duration(status["uptime_ns"])
    console.print(Text.assemble(f"gpumuxd {status['version']}, up {uptime}, ", ready))
    if not status["is_ready"] and status["reason"]:
        console.print(Text(f"  {status['reason']}", "yellow"))
    table = Table("device", "state", "pid", "restarts", box=None, pad_edge=False)
    for heading in ("queued", "in flight", "preemptions", "bound", "window", "memory", "busy"):
        table.add_column(heading, justify="right")
    for device in status["devices"]:
        busy = device["device_busy_ns"] / max(1, status["uptime_ns"])
        table.add_row(
            Text(device["name"]),
            _state(device["state"]),
            str(device["pid"]),
            str(device["restarts"]),
            str(device["queued"]),
            str(device["requests_in_flight"]),
            str(device["preemptions"]),
            _duration(device["bound_ns"]),
            str(device["window"]),
            f"{device['memory_bytes'] / 2**20:.1f} MiB",
            f"{busy:.1%}",
        )
    console.print(table)


def show_models(console: Console, models: Any) -> None:
    """One row for each version."""
    table = Table("model", "version", "state", "inputs", "outputs", "reason", box=None)
    for model in models:
        table.add_row(
            Text(model["name"]),
            Text(model["version"]),
            _state(model["state"]),
            _tensors(model.get("inputs", ())),
            _tensors(model.get("outputs", ())),
            Text(model["reason"]),
        )
    console.print(table)


def show_done(console: Console, answer: Any) -> None:
    """What was done to which model."""
    console.print(Text(f"{answer['model']} {answer['done']}"))


def show_result(console: Console, result: Any) -> None:
    """Each output, shortened, and what happened to the request."""
    for name, output in result["outputs"].items():
        console.print(Text(f"{name} {output['dtype']}{output['shape']}", "bold"))
        console.print(Text(np.array2string(np.asarray(output["values"]), threshold=64)))
    report = result["report"]
    console.print(
        Text(
            f"queued {_duration(report['queue_ns'])}, computed {_duration(report['compute_ns'])} "
            f"(predicted {_duration(report['predicted_ns'])}), "
            f"preempted {report['preemptions']} times "
            f"for {_duration(report['preemption_wait_ns'])}",
            "dim",
        )
    )


def _state(state: str) -> Text:
    return Text(state, _STATE_STYLE.get(state, "yellow"))


def _tensors(tensors: Any) -> Text:
    return Text(
        "\n".join(
            f"{tensor['name']} {tensor['datatype']}{list(tensor['shape'])}" for tensor in tensors
        )
    )


def _duration(duration_ns: int) -> str:
    if duration_ns < 1_000_000:
        return f"{duration_ns / 1e3:.0f} us"
    if duration_ns < 1_000_000_000:
        return f"{duration_ns / 1e6:.2f} ms"
    seconds = duration_ns // 1_000_000_000
    if seconds < 60:
        return f"{duration_ns / 1e9:.1f} s"
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"
