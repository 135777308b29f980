"""What is left of a gRPC deadline, while somebody sets the wall clock."""

from collections.abc import Callable

import pytest

from gpumuxd.rpc.call import remaining_s

HOUR_S = 3600.0


def readings(*values: float | None) -> Callable[[], float | None]:
    return iter(values).__next__


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # what gRPC says in turn      what is left
        ((None, None, None), None),
        ((0.5, 0.499_999, 0.499_998), 0.499_999),
        ((0.0, 0.0, 0.0), 0.0),
        # The clock was set between gRPC's two looks at it: for one reading, whichever.
        ((0.5 + HOUR_S, 0.5, 0.5), 0.5),
        ((0.5, 0.5 + HOUR_S, 0.5), 0.5),
        ((0.5, 0.5, 0.5 + HOUR_S), 0.5),
        ((0.0, 0.5, 0.5), 0.5),
        ((0.5, 0.0, 0.5), 0.5),
        ((0.5, 0.5, 0.0), 0.5),
    ],
)
def test_a_clock_that_is_set_spoils_no_deadline(
    said: tuple[float | None, ...], expected: float | None
) -> None:
    assert remaining_s(readings(*said)) == expected
