"""Which rule holds, in columns."""

import pytest

from gpumuxd.core.slicing_mode import Mode, mode_of
from gpumuxd.settings import Slicing


@pytest.mark.parametrize(
    ("slicing", "longest_ns", "bound_ns", "laxity_ns", "mode", "reason"),
    [
        # a baseline is what the setting says, whatever is asked
        (Slicing.NONE, 10, 100, None, Mode.NONE, "slicing = none"),
        (Slicing.EVERY, 10, 100, None, Mode.EVERY, "slicing = every"),
        (Slicing.LAYER, 10, None, None, Mode.LAYER, "slicing = layer"),
        (Slicing.WINDOW, 10, None, 5, Mode.WINDOW, "slicing = window"),
        # stated, or nothing was measured: kept as well as groups allow
        (Slicing.ADAPTIVE, 10, 100, None, Mode.BOUNDED, "in flight: what gave it"),
        (Slicing.ADAPTIVE, 999, 100, None, Mode.BOUNDED, "or one group alone"),
        (Slicing.ADAPTIVE, 999, 0, None, Mode.BOUNDED, "or one group alone"),
        (Slicing.ADAPTIVE, 999, None, None, Mode.BOUNDED, "nothing could be ordered ahead"),
        # derived: as long as the laxity has room for one group, however it was clipped
        (Slicing.ADAPTIVE, 100, 100, 100, Mode.BOUNDED, "in flight: what gave it"),
        (Slicing.ADAPTIVE, 101, 100, 101, Mode.BOUNDED, "or one group alone"),
        (Slicing.ADAPTIVE, 101, 100, 100, Mode.SLO, "more than the laxity of voice"),
        # nobody who could be ordered ahead has an SLO
        (Slicing.ADAPTIVE, 1, None, -1, Mode.LEAST_DELAY, "has an slo_ms"),
    ],
)
def test_the_rule(
    slicing: Slicing,
    longest_ns: int,
    bound_ns: int | None,
    laxity_ns: int | None,
    mode: Mode,
    reason: str,
) -> None:
    found, why = mode_of(
        slicing, longest_ns, bound_ns, "what gave it", laxity_ns, "voice", slicing.value
    )
    assert found is mode
    assert reason in why


def test_notes_follow_and_a_baseline_is_named_in_full() -> None:
    _, why = mode_of(Slicing.ADAPTIVE, 10, 100, "it", notes=("this is not", "nor that"))
    assert why == "at most 0.000 ms may be in flight: it; this is not; nor that"
    _, why = mode_of(Slicing.EVERY, 10, None, "", baseline="every(20)")
    assert why == "the baseline slicing = every(20) is configured"


def test_a_bounded_reason_names_the_group_only_where_it_is_longer() -> None:
    why = [mode_of(Slicing.ADAPTIVE, longest, 100, "it")[1] for longest in (100, 101)]
    assert ["alone" in each for each in why] == [False, True]


def test_every_baseline_is_a_mode() -> None:
    for slicing in Slicing:
        if slicing is not Slicing.ADAPTIVE:
            assert Mode(slicing.value).value == slicing.value
