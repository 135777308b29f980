"""`gpumuxctl record`: a recording of a device's scheduler, from the daemon into a file.

The file appears under its name when it is complete, or as complete as it will ever be: a recording
that breaks off is kept, because that is when one is wanted most. It must not know what is in it.
Invariant: a file that was there before is not touched without `--force`, and then replaced whole.
"""

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gpumuxd_client import Client, RecordingEnd
from gpumuxd_client.errors import DeviceLost, GpumuxdError
from rich.console import Console

from gpumuxd.ctl.inputs import UsageError
from gpumuxd.units import MIB, mib_from_bytes

SECONDS_DEFAULT = 10.0
MIB_DEFAULT = 64

NUMBER_MAX = 1e6
"""What is sensible below that is the daemon's to say."""


def add_options(record: argparse.ArgumentParser) -> None:
    """What `record` takes."""
    record.epilog = (
        "Ctrl-C ends it early and keeps what there is. The file holds names of models and tenants "
        "and times, never tensors. `gpumuxd replay FILE` shows what is in it."
    )
    record.add_argument("--output", required=True, type=Path, metavar="FILE")
    record.add_argument("--force", action="store_true", help="replace FILE if it is there")
    record.add_argument("--device", default="", help="default: the only one")
    record.add_argument(
        "--seconds", type=float, default=SECONDS_DEFAULT, help=f"default: {SECONDS_DEFAULT:g}"
    )
    record.add_argument(
        "--mib-max",
        type=float,
        default=MIB_DEFAULT,
        help=f"it ends when the file would be larger, default: {MIB_DEFAULT}",
    )
    record.set_defaults(command=run, show=show)


def run(client: Client, options: argparse.Namespace) -> Any:
    """Record, and put the file where it was asked for."""
    if not (0 < options.seconds < NUMBER_MAX and 0 < options.mib_max < NUMBER_MAX):
        raise UsageError("--seconds and --mib-max: expected numbers above 0")
    bytes_max = round(options.mib_max * MIB)
    if options.output.exists() and not options.force:
        raise UsageError(f"{options.output} is there already; --force replaces it")
    with _new_file(options.output, is_forced=options.force) as file:
        end = _receive(client, options, bytes_max, file)
        size_bytes = file.tell()
    if not end.is_whole:
        raise DeviceLost(
            f"{end.reason}; what was recorded until then is in {options.output}", "UNAVAILABLE"
        )
    return {
        "file": str(options.output),
        "size_bytes": size_bytes,
        "records": end.records,
        "commands": end.commands,
        "reason": end.reason,
    }


def _receive(
    client: Client, options: argparse.Namespace, bytes_max: int, file: BinaryIO
) -> RecordingEnd:
    parts = client.record(options.seconds, device=options.device, bytes_max=bytes_max)
    try:
        for part in parts:
            if isinstance(part, RecordingEnd):
                return part
            file.write(part)
    except KeyboardInterrupt:
        if not file.tell():
            raise
        return RecordingEnd("it was interrupted", 0, 0, is_whole=True)
    except GpumuxdError as error:
        if not file.tell():
            raise
        return RecordingEnd(str(error), 0, 0, is_whole=False)
    return RecordingEnd("the daemon broke it off", 0, 0, is_whole=False)


@contextlib.contextmanager
def _new_file(path: Path, *, is_forced: bool) -> Iterator[BinaryIO]:
    """A file beside this one, that takes its name in the end. Raises UsageError."""
    try:
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UsageError(f"{path.parent}: {error.strerror}") from None
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            if not is_forced:
                path.open("xb").close()  # whoever made one meanwhile keeps it
        Path(name).replace(path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise UsageError(f"{path}: {error.strerror}") from None
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def show(console: Console, answer: Any) -> None:
    """Two lines."""
    size = f"{mib_from_bytes(answer['size_bytes']):.2f} MiB"
    console.print(f"{answer['file']}: {size}, {answer['records']} records; {answer['reason']}")
    console.print(f"look at it with: gpumuxd replay {answer['file']}", markup=False)
