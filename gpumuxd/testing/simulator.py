"""Seeds from the command line: worlds drawn, run and checked.

    python -m gpumuxd.testing.simulator --seed 1 --seeds 200

Prints the seed and every drawn parameter first, one line per run when there are several, and ends
with PASSED, or with FAILED and the command that shows it again. Speeds are of processor time, so
that a busy machine does not count.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

from gpumuxd.testing.checkers import Invariant
from gpumuxd.testing.runner import Result, run
from gpumuxd.testing.swarm import draw
from gpumuxd.units import ms_from_ns

_FAILED_SHOWN = 20


def report(result: Result, cpu_s: float) -> str:
    """One line per run."""
    fates = " ".join(f"{kind}={count}" for kind, count in result.fates.items())
    return (
        f"seed {result.seed}: {result.events} events, {result.commands} commands, "
        f"{ms_from_ns(result.virtual_ns):.1f} ms, {result.events / cpu_s:,.0f} events/s, "
        f"{result.trace_hash[:16]}  {fates}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds and say PASSED, or FAILED with the command that shows it again."""
    parser = argparse.ArgumentParser(
        prog="python -m gpumuxd.testing.simulator", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from there on")
    parser.add_argument("--no-checkers", action="store_true", help="to measure speed")
    parser.add_argument("--trace", action="store_true", help="print every event and command")
    parser.add_argument("--keep-going", action="store_true", help="run the other seeds too")
    arguments = parser.parse_args(argv)
    check = () if arguments.no_checkers else tuple(Invariant)
    failed: list[int] = []
    events = 0
    cpu_s = 0.0
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        parameters = draw(seed)
        lines: list[str] | None = [] if arguments.trace else None
        if arguments.seeds == 1 or arguments.trace:
            print("\n".join(parameters.lines()))
        began_s = time.process_time()
        try:
            result = run(parameters, check=check, lines=lines)
        except Exception as error:  # a broken invariant or a failed assertion of the scheduler
            failed.append(seed)
            _explain(seed, error, lines, is_alone=arguments.seeds == 1)
            if arguments.keep_going:
                continue
            break
        finally:
            print("\n".join(lines or ()), end="\n" if lines else "")
        took_s = time.process_time() - began_s
        events += result.events
        cpu_s += took_s
        print(report(result, took_s))
    if cpu_s:
        checked = "off" if arguments.no_checkers else "on"
        print(f"{events} events, {events / cpu_s:,.0f} a second of one core, checkers {checked}")
    return _verdict(failed, arguments)


def _explain(seed: int, error: Exception, lines: list[str] | None, *, is_alone: bool) -> None:
    if not is_alone and lines is None:
        print(f"SEED {seed}: {type(error).__name__}: {error}")
        return
    traceback.print_exception(error, file=sys.stdout)


def _verdict(failed: list[int], arguments: argparse.Namespace) -> int:
    if not failed:
        print("PASSED")
        return 0
    off = " --no-checkers" if arguments.no_checkers else ""
    shown = ", ".join(map(str, failed[:_FAILED_SHOWN]))
    more = ", ..." if len(failed) > _FAILED_SHOWN else ""
    print(f"FAILED {len(failed)} of {arguments.seeds} seeds: {shown}{more}")
    print(f"reproduce: python -m gpumuxd.testing.simulator --seed {failed[0]}{off} --trace")
    return 1


if __name__ == "__main__":
    sys.exit(main())
