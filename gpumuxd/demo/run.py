"""`gpumuxd demo`: two tenants' real models on one device, with and without preemption.

Exports both models, serves them with a real daemon on the CPU device, and measures the speech
detector alone, beside saturating sentence embedding on a daemon that launches every inference
whole, and beside the same on one that cuts it into slices. Prints a table, draws a picture and
checks the results. Takes about a minute; exit status 1 if a result is wrong, 130 after Ctrl-C.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

EXIT_WRONG = 1
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="gpumuxd demo", description="Two models, one preempting the other."
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each phase")
    parser.add_argument(
        "--png", type=Path, default=Path("gpumuxd-demo.png"), help="where the picture goes"
    )
    options = parser.parse_args(argv)
    console = Console()
    # As Ctrl-C: whoever ends us with SIGTERM must not leave a daemon or files behind either.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _play_and_tell(options.seconds, options.png, console)
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; nothing is left running")
        return EXIT_INTERRUPTED


def _play_and_tell(seconds: float, png: Path, console: Console) -> int:
    console.print("importing torch and transformers")
    # Here, since it takes seconds: an interruption should end as quietly then as later.
    from gpumuxd_client.errors import GpumuxdError

    from gpumuxd.demo.daemon import DaemonFailed
    from gpumuxd.demo.report import check_results, make_table, write_picture
    from gpumuxd.demo.scenario import play

    try:
        # Sockets need a short path, and everything below is gone when the demo is.
        with tempfile.TemporaryDirectory(prefix="gpumuxd-") as folder:
            phases = play(Path(folder), seconds, console)
    except (DaemonFailed, GpumuxdError, ModuleNotFoundError) as error:
        console.print(f"the demo can't go on: {error}", style="bold red", markup=False)
        return EXIT_WRONG
    console.print(make_table(phases))
    write_picture(phases, png)
    console.print(f"picture: {png}")
    checks = list(check_results(phases))
    for check in checks:
        mark = "[green]right[/]" if check.is_true else "[bold red]WRONG[/]"
        console.print(f"  {mark}  {check.claim}", highlight=False, soft_wrap=True)
    return 0 if all(check.is_true for check in checks) else EXIT_WRONG


if __name__ == "__main__":
    sys.exit(main())
