"""Which rule holds, in columns."""

import pytest

from gpumuxd.core.slicing_mode import Mode, mode_of
from gpumuxd.settings import Slicing

LAXITY = "laxity of voice"


@pytest.mark.parametrize(
    ("slicing", "bound_ns", "longest_ns", "is_firm", "mode", "reason"),
    [
        # a baseline is what the setting says, whatever is asked
        (Slicing.NONE, 100, 10, True, Mode.NONE, "slicing = none"),
        (Slicing.EVERY, 100, 10, True, Mode.EVERY, "slicing = every"),
        (Slicing.LAYER, None, 10, True, Mode.LAYER, "slicing = layer"),
        (Slicing.WINDOW, None, 10, True, Mode.WINDOW, "slicing = window"),
        # stated, or nothing was measured: kept as well as groups allow
        (Slicing.ADAPTIVE, 100, 10, True, Mode.BOUNDED, LAXITY),
        (Slicing.ADAPTIVE, 100, 999, True, Mode.BOUNDED, LAXITY),
        (Slicing.ADAPTIVE, 0, 999, True, Mode.BOUNDED, LAXITY),
        (Slicing.ADAPTIVE, None, 999, True, Mode.BOUNDED, "nothing could be ordered ahead"),
        # derived: as long as one group fits
        (Slicing.ADAPTIVE, 100, 99, False, Mode.BOUNDED, LAXITY),
        (Slicing.ADAPTIVE, 100, 100, False, Mode.BOUNDED, LAXITY),
        (Slicing.ADAPTIVE, 100, 101, False, Mode.SLO, "no bound can be kept"),
        (Slicing.ADAPTIVE, 0, 1, False, Mode.SLO, "no bound can be kept"),
        # nobody who could be ordered ahead has an SLO
        (Slicing.ADAPTIVE, None, 1, False, Mode.LEAST_DELAY, "has an slo_ms"),
    ],
)
def test_the_rule(
    slicing: Slicing,
    bound_ns: int | None,
    longest_ns: int,
    is_firm: bool,
    mode: Mode,
    reason: str,
) -> None:
    found, why = mode_of(slicing, bound_ns, LAXITY, longest_ns, is_firm)
    assert found is mode
    assert reason in why


def test_every_baseline_is_a_mode() -> None:
    for slicing in Slicing:
        if slicing is not Slicing.ADAPTIVE:
            assert Mode(slicing.value).value == slicing.value
