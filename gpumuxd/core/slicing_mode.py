"""Which rule cuts the work of a model: the one place that says so, with a sentence for people.

Asked for work of a class, at one shape bucket. A baseline is what the setting says. Else, from top
to bottom, the first that is true:

    1 a bound is stated                                            bounded, by that
    2 the device's sync points were not measured, or fifo          bounded, by `slice_ns_max`
    3 some models that could be ordered ahead have an SLO, and in
      the highest class of these the smallest laxity is at least
      the longest group of this work                               bounded, by that laxity
    4 some such models have an SLO                                 slo
    5                                                              least_delay

In 3 the laxities of lower classes are bounds as well where they are at least the longest group;
where not they decide nothing, or a lower class could lift what holds for a higher one. An SLO that
no request could meet, not even one that waits for nothing, counts as none.

A bound by laxity is at most `slice_ns_max`, and as with a stated bound one group may be in flight
alone where it is longer. So in 3 what is promised is the larger of bound and longest group, which
that laxity allows. In 4 nothing can be promised, and the best is made of it.

Why laxity is compared with the groups of this work, and not with the longest of all that is loaded:
a bound that one model can't keep would else be given up for all of them, and a model that comes or
learns a new size would switch everybody's mode. So one long model is in `slo` and the others
keep the bound. A stated bound is kept as well as groups allow, because somebody asked for it.
"Could be ordered ahead" means: its class is not lower, so its own model counts.
"""

import enum
from collections.abc import Iterable

from gpumuxd.settings import Slicing
from gpumuxd.units import ms_from_ns


class Mode(enum.StrEnum):
    """How work is cut. The baselines have the names of their settings."""

    BOUNDED = "bounded"
    SLO = "slo"
    LEAST_DELAY = "least_delay"
    NONE = "none"
    EVERY = "every"
    LAYER = "layer"
    WINDOW = "window"


def mode_of(
    slicing: Slicing,
    longest_group_ns: int,
    bound_ns: int | None,
    origin: str,
    laxity_ns: int | None = None,
    whose: str = "",
    baseline: str = "",
    notes: Iterable[str] = (),
) -> tuple[Mode, str]:
    """The mode of work whose longest group this is, and why.

    `bound_ns` and `origin` are of the tightest bound that covers it, None where nothing does.
    `laxity_ns` is the smallest one of the highest class, and `whose`; None where a bound holds
    whatever it is (1, 2). `Bounds.tier_of` compares the same. `baseline` is the setting in full,
    and `notes` are sentences on what does not decide though somebody may expect that it does.
    """
    if slicing is not Slicing.ADAPTIVE:
        return Mode(slicing.value), f"the baseline slicing = {baseline} is configured"
    mode, reason = _adaptive(longest_group_ns, bound_ns, origin, laxity_ns, whose)
    return mode, "; ".join((reason, *notes))


def _adaptive(
    longest_group_ns: int, bound_ns: int | None, origin: str, laxity_ns: int | None, whose: str
) -> tuple[Mode, str]:
    if bound_ns is None:
        if laxity_ns is None:
            return Mode.BOUNDED, f"nothing could be ordered ahead of it; slices are cut by {origin}"
        return Mode.LEAST_DELAY, (
            "no model that could be ordered ahead of it has an slo_ms that can be met, and no "
            "bound is configured"
        )
    longest = f"{ms_from_ns(longest_group_ns):.3f} ms"
    if laxity_ns is not None and longest_group_ns > laxity_ns:
        return Mode.SLO, (
            f"no bound can be kept: its longest group takes {longest}, more than the laxity of "
            f"{whose}, {ms_from_ns(laxity_ns):.3f} ms"
        )
    alone = f", or one group alone: the longest takes {longest}"
    return Mode.BOUNDED, (
        f"at most {ms_from_ns(bound_ns):.3f} ms may be in flight: {origin}"
        f"{alone if longest_group_ns > bound_ns else ''}"
    )
