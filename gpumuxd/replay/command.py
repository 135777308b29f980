"""`gpumuxd replay FILE`: what happened, whether it happens again, and what would happen instead.

Needs no daemon, no torch and no device. Exit codes: 0 the same commands came out, 1 others did or
the scheduler failed, 2 the file or the arguments can't be used.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gpumuxd.replay.device_model import DeviceModel, device_model
from gpumuxd.replay.format import BadRecording, Contents, read
from gpumuxd.replay.same import Replayed, known_events, replay, restore
from gpumuxd.replay.summary import Row, rows, show_predicted, show_recorded, values
from gpumuxd.replay.what_if import inputs, predict
from gpumuxd.settings import Order, SchedulerSettings, Slicing, format_slicing, parse_slicing
from gpumuxd.units import NS_PER_MS, NS_PER_S, ns_from_ms, printable

EXIT_SAME = 0
EXIT_DIFFERS = 1
EXIT_UNUSABLE = 2

PIPE_COLUMNS = 1_000_000

MS_MAX = 3_600_000.0

RECORDED = "recorded"
MODEL_CHECK = "predicted, as recorded"

NO_REQUESTS = "No request both came and ended while this was recorded: there is nothing to compare."


class BadArguments(Exception):
    """What was asked for can't be: the message is for people."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One set of settings and what it would have brought."""

    name: str
    table: list[Row]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(argv)
    try:
        contents = _read(options)
        replayed = replay(contents)
        counted = frozenset(i for i, one in replayed.history.requests.items() if one.is_counted)
        recorded = rows(replayed.history, counted)
        device = device_model(replayed.history)
        wanted = _settings(options, contents.header.settings.scheduler)
        predictions = _predict(contents, device, wanted, counted) if wanted else []
    except BadArguments as error:
        print(f"gpumuxd replay: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except BadRecording as error:
        print(printable(f"gpumuxd replay: {options.file}: {error}"), file=sys.stderr)
        return EXIT_UNUSABLE
    told = [(RECORDED, recorded), *((one.name, one.table) for one in predictions)]
    if options.json:
        print(json.dumps(_values(contents, replayed, device, told), indent=2))
    else:
        _show(contents, replayed, device, told)
    return EXIT_DIFFERS if replayed.failure else EXIT_SAME


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpumuxd replay",
        description="Replay what `gpumuxctl record` wrote; with other settings, predict what they "
        "would have brought.",
        epilog="exit codes: 0 the same commands came out, 1 others did, 2 the file or the "
        "arguments can't be used",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--partial", action="store_true", help="replay a damaged file as far as it is good"
    )
    other = parser.add_argument_group("what if (what is not named stays as it was recorded)")
    other.add_argument(
        "--slicing",
        action="append",
        default=[],
        type=_slicing,
        metavar="POLICY",
        help="adaptive, none, layer, every(k), window(k) or window(k, D); several give several "
        "columns",
    )
    other.add_argument("--order", type=Order, choices=list(Order), metavar="policy|fifo")
    other.add_argument("--preemption-delay-ms", type=_ms, metavar="MS", help="the bound")
    other.add_argument("--slice-ms", type=_ms, metavar="MS", help="longest slice")
    other.add_argument("--window", type=int, metavar="N", help="most slices in flight")
    other.add_argument("--frames", type=int, metavar="N", help="most started requests")
    return parser


def _slicing(text: str) -> tuple[Slicing, int, int]:
    try:
        return parse_slicing(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected {error}, got {text!r}") from None


def _ms(text: str) -> int:
    value_ms = float(text)
    if not 0 < value_ms <= MS_MAX:
        raise argparse.ArgumentTypeError(f"expected a time above 0, got {text!r}")
    return ns_from_ms(value_ms)


def _read(options: argparse.Namespace) -> Contents:
    try:
        size_bytes = options.file.stat().st_size
        with options.file.open("rb") as file:
            contents = read(file, size_bytes)
    except OSError as error:
        raise BadRecording(error.strerror or str(error)) from None
    if contents.broken and not options.partial:
        raise BadRecording(f"{contents.broken}; --partial replays those")
    return contents


def _settings(
    options: argparse.Namespace, recorded: SchedulerSettings
) -> list[tuple[str, SchedulerSettings]]:
    """What is asked for, beside the recorded settings; empty if nothing is."""
    changes: dict[str, Any] = {}
    if options.order is not None:
        changes["order"] = options.order
    if options.preemption_delay_ms is not None:
        changes["preemption_delay_ns_max"] = options.preemption_delay_ms
    if options.slice_ms is not None:
        changes["slice_ns_max"] = options.slice_ms
    if options.window is not None:
        changes["window_max"] = options.window
    if options.frames is not None:
        changes["frames_max"] = options.frames
        changes["frames_reserved"] = min(recorded.frames_reserved, max(0, options.frames - 1) // 2)
    slicings = options.slicing or ([_slicing_of(recorded)] if changes else [])
    if not slicings:
        return []
    asked: list[tuple[str, SchedulerSettings]] = [(MODEL_CHECK, recorded)]
    for slicing, operators, window in slicings:
        settings = replace(
            recorded,
            slicing=slicing,
            slicing_operators=operators,
            slicing_window=window,
            **changes,
        )
        if settings.slicing_window > settings.window_max:
            raise BadArguments(
                f"--slicing {format_slicing(slicing, operators, window)!r}: expected at most "
                f"window_max ({settings.window_max}) slices in flight; --window states another"
            )
        asked.append((f"predicted, {_name(settings, recorded)}", settings))
    return asked


def _slicing_of(settings: SchedulerSettings) -> tuple[Slicing, int, int]:
    return settings.slicing, settings.slicing_operators, settings.slicing_window


def _name(settings: SchedulerSettings, recorded: SchedulerSettings) -> str:
    """The slicing, and what else differs."""
    parts = [format_slicing(*_slicing_of(settings))]
    if settings.order is not recorded.order:
        parts.append(settings.order.value)
    for text, now, before in (
        ("bound", settings.preemption_delay_ns_max, recorded.preemption_delay_ns_max),
        ("slice", settings.slice_ns_max, recorded.slice_ns_max),
    ):
        if now is not None and now != before:
            parts.append(f"{text} {now / NS_PER_MS:g} ms")
    if settings.window_max != recorded.window_max:
        parts.append(f"window {settings.window_max}")
    if settings.frames_max != recorded.frames_max:
        parts.append(f"{settings.frames_max} frames")
    return ", ".join(parts)


def _predict(
    contents: Contents,
    device: DeviceModel,
    wanted: Sequence[tuple[str, SchedulerSettings]],
    counted: frozenset[int],
) -> list[Prediction]:
    events = inputs(contents, known_events(restore(contents)))
    cost_ns = contents.header.settings.launch_cost_ns
    return [
        Prediction(name, rows(predict(settings, events, device, cost_ns), counted))
        for name, settings in wanted
    ]


def _values(
    contents: Contents,
    replayed: Replayed,
    device: DeviceModel,
    told: Sequence[tuple[str, Sequence[Row]]],
) -> dict[str, Any]:
    header, end = contents.header, contents.end
    return {
        "device": header.device,
        "gpumuxd_version": header.gpumuxd_version,
        "python_version": header.python_version,
        "torch_version": header.torch_version,
        "machine": header.machine,
        "began_unix_s": header.began_unix_s,
        "duration_ns": _duration_ns(contents),
        "ended": end.reason if end is not None else None,
        "records": replayed.records,
        "commands_hash": replayed.commands_hash,
        "is_same": not replayed.failure,
        "failure": replayed.failure,
        "damage": contents.broken,
        "heard_ns_p50": _middle(device.heard_ns),
        "turn_ns": device.turn_ns,
        "start_ns": device.start_ns,
        "gap_ns": device.gap_ns,
        "requests_left_out": device.unknown,
        "tables": [{"name": name, "rows": values(table)} for name, table in told],
    }


def _show(
    contents: Contents,
    replayed: Replayed,
    device: DeviceModel,
    told: Sequence[tuple[str, Sequence[Row]]],
) -> None:
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    console = Console(width=width, highlight=False, soft_wrap=True, markup=False)
    header, end = contents.header, contents.end
    settings = header.settings.scheduler
    lines = [
        f"{header.device}, gpumuxd {header.gpumuxd_version}, "
        f"{_duration_ns(contents) / NS_PER_S:.2f} s, {replayed.records} records, "
        f"slicing {format_slicing(*_slicing_of(settings))}, order {settings.order}"
    ]
    if contents.broken or end is None:
        lines.append(f"Not whole: {contents.broken or 'it broke off'}")
    lines.append(replayed.failure or f"The same commands came out ({replayed.commands_hash}).")
    for line in lines:
        console.print(printable(line))
    if not told[0][1]:
        console.print(NO_REQUESTS)
        return
    console.print()
    show_recorded(console, told[0][1])
    if len(told) > 1:
        console.print()
        show_predicted(console, told)
        console.print(
            f"Predicted on a device that is heard after {_middle(device.heard_ns) / 1000:.0f} us "
            f"(median), decides after {device.turn_ns / 1000:.0f} us, starts after "
            f"{device.start_ns / 1000:.0f} us and pauses {device.gap_ns / 1000:.0f} us between "
            f"slices. How far '{MODEL_CHECK}' is from '{RECORDED}' is the error of that."
        )
        if device.unknown:
            console.print(f"Left out: {device.unknown} requests of models that were never seen run")


def _middle(numbers: Sequence[int]) -> int:
    return sorted(numbers)[len(numbers) // 2]


def _duration_ns(contents: Contents) -> int:
    if contents.end is not None:
        return contents.end.ended_ns - contents.header.began_ns
    return contents.calls[-1][1] - contents.header.began_ns if contents.calls else 0


if __name__ == "__main__":
    sys.exit(main())
