"""Frames by class, and bytes."""

import pytest

from gpumuxd.core.ledger import Ledger
from gpumuxd.domain import Bucket, PriorityClass
from tests.core.conversation import BEST_EFFORT, REALTIME, STANDARD
from tests.core.objects import make_model

MIB = 1 << 20


@pytest.mark.parametrize(
    ("frames_max", "reserved", "best_effort", "standard", "realtime"),
    [
        (8, 2, 4, 6, 8),
        (8, 0, 8, 8, 8),
        (3, 1, 1, 2, 3),
        (2, 2, 1, 1, 2),  # a share of nothing would never run: one, when none is held
        (1, 5, 1, 1, 1),
    ],
)
def test_how_many_frames_each_class_may_see_held(
    frames_max: int, reserved: int, best_effort: int, standard: int, realtime: int
) -> None:
    limits = {BEST_EFFORT: best_effort, STANDARD: standard, REALTIME: realtime}
    ledger, size = Ledger(0, frames_max, reserved), make_model().frame_size((1,))
    for held in range(frames_max + 1):
        assert ledger.frames_held == held
        for priority_class, limit in limits.items():
            assert ledger.has_frame(priority_class) == (held < limit), (held, priority_class)
            assert ledger.frame_limit(priority_class) == limit
        if held < frames_max:
            assert ledger.take_frame(size) == held


def test_the_lowest_frame_is_reused_first() -> None:
    ledger, size = Ledger(0, 4, 0), make_model().frame_size((1,))
    for _ in range(4):
        ledger.take_frame(size)
    for frame in (2, 0, 3):
        ledger.return_frame(size, frame)
    assert [ledger.take_frame(size) for _ in range(3)] == [0, 2, 3]


def test_bytes_are_the_sum_of_weights_and_held_frames() -> None:
    ledger = Ledger(100, 8, 0)
    big, small = make_model(weights_bytes=50, frame_bytes=30), make_model(frame_bytes=20)
    large, little = big.frame_size((1,)), small.frame_size((1,))
    ledger.book_weights(big)
    assert ledger.bytes_used == 50
    frame = ledger.take_frame(large)
    assert ledger.bytes_used == 80
    assert not ledger.fits(large)
    assert ledger.fits(little)  # to the last byte
    ledger.take_frame(little)
    assert ledger.bytes_used == 100
    assert not ledger.fits(little)
    ledger.return_frame(large, frame)
    assert ledger.bytes_used == 70
    assert (big.frame_bytes_held, small.frame_bytes_held) == (0, 20)
    ledger.return_weights(big)
    assert ledger.bytes_used == 20


def test_what_can_never_fit_says_why() -> None:
    ledger = Ledger(3 << 20, 8, 0)
    model = make_model(key="big/1", weights_bytes=2 << 20, frame_bytes=1 << 20)
    ledger.book_weights(model)
    size = model.frame_size((1,))
    ledger.take_frame(size)
    assert ledger.why_never(size) == ""  # a held frame is no reason: it will be returned
    other = make_model(weights_bytes=1)
    ledger.book_weights(other)
    assert ledger.why_never(size) == (
        "a frame of model 'big/1' needs 1.0 MiB; weights take 2.0 of 3.0 MiB"
    )


@pytest.mark.parametrize(
    ("measured", "bucket", "expected"),
    [
        ({}, (4,), 7),  # measured nowhere: what was told of it as a whole
        ({(1,): 10, (8,): 50}, (1,), 10),
        ({(1,): 10, (8,): 50}, (2,), 50),  # between two: what the larger takes
        ({(1,): 10, (8,): 50}, (9,), 100),  # beyond them all it is doubled
        ({(1,): 10, (8,): 50}, (32,), 200),
        ({(1, 64): 10, (8, 64): 50, (1, 512): 40}, (1, 100), 40),  # the least that covers it
        ({(1, 64): 10, (8, 64): 50, (1, 512): 40}, (2, 100), 50),  # 200 is less than 512
        ({(1, 64): 10, (8, 64): 50, (1, 512): 40}, (8, 512), 400),
        ({(): 10}, (), 10),
    ],
)
def test_what_a_run_is_taken_to_hold(
    measured: dict[Bucket, int], bucket: Bucket, expected: int
) -> None:
    model = make_model(frame_bytes=7, frame_bytes_measured=measured)
    size = model.frame_size(bucket)
    assert size.bytes == expected
    assert size is model.frame_size(bucket), "cursors are queued by it"


def test_a_tenants_own_models_are_booked_twice() -> None:
    ledger = Ledger(100, 8, 0)
    account = ledger.account("a")
    assert account is not None
    account.bytes_max = 60
    own = make_model(weights_bytes=30, frame_bytes=20, account=account)
    shared = make_model(weights_bytes=10, frame_bytes=20, account=ledger.account(""))
    ledger.book_weights(own)
    ledger.book_weights(shared)
    assert (account.bytes_used, ledger.bytes_used) == (30, 40)
    frame = ledger.take_frame(own.frame_size((1,)))
    assert (account.bytes_used, ledger.bytes_used) == (50, 60)
    assert not ledger.fits(own.frame_size((1,)))  # for its tenant
    assert ledger.fits(shared.frame_size((1,)))
    assert (ledger.free_bytes(account), ledger.free_bytes(None)) == (10, 40)
    ledger.return_frame(own.frame_size((1,)), frame)
    ledger.return_weights(own)
    assert (account.bytes_used, ledger.bytes_used) == (0, 10)


@pytest.mark.parametrize(
    ("size_mib", "tenant", "expected"),
    [
        (6, "", ""),
        (7, "", "6.0 of 10.0 MiB are free"),
        (2, "a", ""),
        (3, "a", "tenant 'a' has 2.0 of its 6.0 MiB free (memory_mib_max)"),
        (7, "a", "6.0 of 10.0 MiB are free"),
        (6, "unlimited", ""),
    ],
)
def test_who_has_no_room_left(size_mib: int, tenant: str, expected: str) -> None:
    ledger = Ledger(10 * MIB, 8, 0)
    account = ledger.account("a")
    assert account is not None
    account.bytes_max = 6 * MIB
    ledger.book_weights(make_model(weights_bytes=4 * MIB, account=account))
    assert ledger.why_no_room(size_mib * MIB, ledger.account(tenant)) == expected


def test_a_frame_that_a_tenants_limit_never_allows_says_so() -> None:
    ledger = Ledger(100 * MIB, 8, 0)
    account = ledger.account("a")
    assert account is not None
    account.bytes_max = 6 * MIB
    model = make_model(
        key="m/1",
        weights_bytes=4 * MIB,
        frame_bytes_measured={(1,): MIB, (8,): 3 * MIB},
        account=account,
    )
    ledger.book_weights(model)
    assert ledger.why_never(model.frame_size((1,))) == ""
    assert ledger.why_never(model.frame_size((8,))) == (
        "a frame of model 'm/1' needs 3.0 MiB; weights of tenant 'a' take 4.0 of its 6.0 MiB "
        "(memory_mib_max)"
    )


def test_taking_what_does_not_fit_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Ledger(10, 1, 0).take_frame(make_model(frame_bytes=11).frame_size((1,)))


def test_returning_more_than_was_booked_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Ledger(10, 1, 0).return_weights(make_model(weights_bytes=1))


def test_no_frames_at_all_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Ledger(10, 0, 0)


def test_classes_are_what_the_limits_are_made_for() -> None:
    assert list(PriorityClass) == [0, 1, 2]  # `frames_reserved` counts the classes above
