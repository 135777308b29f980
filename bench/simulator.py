"""How fast the simulator runs: events a second of one core, with and without checkers.

Worlds of `gpumuxd.testing.swarm` all of whose models have GROUPS_MIN kernel groups or more, so that
a request is several decisions and not mostly an arrival and a fate. Drawing a world is not counted,
building one is; time is processor time, so that other processes don't count. One sample is one
pass over all worlds. Without checkers it is the scheduler and the virtual device that are measured;
the report says whether the policy stack ran translated (`gpumuxd.compiled`), which is three times
as fast as interpreted.

    python -m bench.simulator [--quick] [--json FILE] [--strict]
"""

import gc
import time
from collections.abc import Iterable, Sequence
from itertools import count, islice

from bench.harness import Bench, at_least, run
from gpumuxd.testing.checkers import Invariant
from gpumuxd.testing.parameters import Parameters
from gpumuxd.testing.runner import run as play
from gpumuxd.testing.swarm import draw

GROUPS_MIN = 10

GOAL = 20_000
"""With the policy stack translated, checkers off: 10,000 seeds in three minutes."""


def worlds(wanted: int) -> list[Parameters]:
    """The first seeds that have nothing but long models."""
    fitting = (world for world in map(draw, count(1)) if has_long_models(world))
    return list(islice(fitting, wanted))


def has_long_models(world: Parameters) -> bool:
    models = (model for device in world.devices for model in device.models)
    return all(model.group_count >= GROUPS_MIN for model in models)


def events_per_s(drawn: Sequence[Parameters], check: Iterable[Invariant]) -> list[float]:
    """One pass over all worlds."""
    gc.collect()
    began_s = time.process_time()
    events = sum(play(world, check=check).events for world in drawn)
    return [events / (time.process_time() - began_s)]


def body(bench: Bench) -> None:
    drawn = worlds(bench.pick(60, 15))
    everything = tuple(Invariant)
    variants = {
        "checkers off": lambda: events_per_s(drawn, ()),
        "checkers on": lambda: events_per_s(drawn, everything),
    }
    with bench.measuring():
        samples = bench.interleave(variants, bench.pick(8, 4))
    goals = {"checkers off": at_least(GOAL)}
    for name, measured in samples.items():
        bench.figure(
            f"events a second of one core, {name}",
            measured.median,
            "1/s",
            goals.get(name),
            measured.spread,
        )


if __name__ == "__main__":
    raise SystemExit(run("simulator", "The simulator, worlds of long models.", body))
