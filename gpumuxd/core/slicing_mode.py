"""Which rule cuts the work of a model: the one place that says so, with a sentence for people.

Asked for work of a class, at one shape bucket. A baseline is what the setting says. Else, from top
to bottom, the first that is true:

    1 a bound is stated                                            bounded, by that
    2 the device's sync points were not measured, or fifo          bounded, by `slice_ns_max`
    3 some model that could be ordered ahead has an SLO, and the
      smallest laxity is at least the longest group of this work   bounded, by that laxity
    4 some such model has an SLO                                   slo
    5                                                              least_delay

Why laxity is compared with the groups of this work, and not with the longest of all that is loaded:
a bound that one model can't keep would else be given up for all of them, and a model that comes or
learns a new size would switch everybody's mode. So one long model is in `slo` and the others
keep the bound. A stated bound is kept as well as groups allow (one of them alone), because
somebody asked for it. "Could be ordered ahead" means: its class is not lower, so its own model
counts.
"""

import enum

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


def is_bounded(bound_ns: int, longest_group_ns: int, is_firm: bool) -> bool:
    """Rules 1 to 3. `bound_ns`: the tightest that covers the work. `is_firm`: it is kept even
    where one group is longer. Written out in `slicing.choose`, which has no time for a call."""
    return is_firm or longest_group_ns <= bound_ns


def mode_of(
    slicing: Slicing,
    bound_ns: int | None,
    origin: str,
    longest_group_ns: int,
    is_firm: bool,
) -> tuple[Mode, str]:
    """The mode of work whose longest group this is, and why. `bound_ns` and `origin`: the tightest
    bound that covers it, None if nothing does."""
    if slicing is not Slicing.ADAPTIVE:
        return Mode(slicing.value), f"the baseline slicing = {slicing.value} is configured"
    if bound_ns is None:
        if is_firm:
            return Mode.BOUNDED, f"nothing could be ordered ahead of it; slices are cut by {origin}"
        return Mode.LEAST_DELAY, (
            "no model that could be ordered ahead of it has an slo_ms, and no bound is configured"
        )
    bound = f"{ms_from_ns(bound_ns):.3f} ms"
    if is_bounded(bound_ns, longest_group_ns, is_firm):
        return Mode.BOUNDED, f"at most {bound} may be in flight: {origin}"
    return Mode.SLO, (
        f"no bound can be kept: its longest group takes {ms_from_ns(longest_group_ns):.3f} ms, "
        f"more than the {bound} of the {origin}"
    )
