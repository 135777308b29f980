"""Times at sizes that were never run, in columns; and whatever is affine, exactly."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumuxd.core import interpolation
from gpumuxd.core.interpolation import LINES_MAX, Times
from gpumuxd.domain import Bucket


def times_at(bucket: Bucket, known: dict[Bucket, Times]) -> Times:
    return interpolation.times_at(bucket, known, known.__getitem__)


ONE = {(4,): (400,)}
TWO = {(4,): (140,), (8,): (180,)}  # 100 + 10 n
CURVED = {(4,): (40,), (8,): (120,)}  # less than nothing at 0
FALLING = {(4,): (120,), (8,): (100,)}
MORE = {(1,): (10,), (2,): (20,), (8,): (200,), (16,): (900,)}
CROSS = {(1, 16): (10,), (1, 32): (20,), (4, 16): (44,)}


@pytest.mark.parametrize(
    ("known", "bucket", "expected"),
    [
        # one alone: in proportion
        (ONE, (1,), 100),
        (ONE, (8,), 800),
        (ONE, (0,), 100),  # nothing counts as one
        # between, and beyond on both sides
        (TWO, (4,), 140),
        (TWO, (6,), 160),
        (TWO, (1,), 110),
        (TWO, (100,), 1_100),
        # never faster than in proportion towards small sizes
        (CURVED, (6,), 80),
        (CURVED, (2,), 20),
        (CURVED, (1,), 10),
        (CURVED, (16,), 280),
        # never less for larger sizes
        (FALLING, (6,), 110),
        (FALLING, (2,), 120),
        (FALLING, (9,), 100),
        # the two around it, or the two nearest
        (MORE, (5,), 110),
        (MORE, (12,), 550),
        (MORE, (17,), 987),
        # along one dimension where the other is as known
        (CROSS, (2, 16), 21),
        (CROSS, (1, 24), 15),
        (CROSS, (1, 64), 40),
        # no way along dimensions: by the product, 128 from 32 and 64
        (CROSS, (4, 32), 92),
        (CROSS, (2, 32), 44),
        ({(2, 64): (100,)}, (4, 128), 400),
        # a program without dynamic sizes has one bucket
        ({(): (7,)}, (), 7),
    ],
)
def test_times(known: dict[Bucket, Times], bucket: Bucket, expected: int) -> None:
    assert times_at(bucket, known) == (expected,)


SIZES = st.integers(1, 200)


@settings(max_examples=80, deadline=None)
@given(
    lines=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), min_size=1, max_size=5),
    sizes=st.sets(SIZES, min_size=2, max_size=5),
    size=SIZES,
)
def test_what_is_affine_is_found_exactly(
    lines: list[tuple[int, int]], sizes: set[int], size: int
) -> None:
    known: dict[Bucket, Times] = {(n,): tuple(a + b * n for a, b in lines) for n in sizes}
    assert times_at((size,), known) == tuple(a + b * size for a, b in lines)


@settings(max_examples=60, deadline=None)
@given(
    factors=st.tuples(*[st.integers(0, 10**4)] * 4),
    batches=st.sets(SIZES, min_size=2, max_size=3),
    lengths=st.sets(SIZES, min_size=2, max_size=3),
    bucket=st.tuples(SIZES, SIZES),
)
def test_a_grid_is_exact_in_both_dimensions(
    factors: tuple[int, ...], batches: set[int], lengths: set[int], bucket: tuple[int, int]
) -> None:
    def truth(n: int, s: int) -> int:
        fixed, row, column, both = factors
        return fixed + row * n + column * s + both * n * s

    known: dict[Bucket, Times] = {(n, s): (truth(n, s),) for n in batches for s in lengths}
    assert times_at(bucket, known) == (truth(*bucket),)


@settings(max_examples=80, deadline=None)
@given(
    known=st.dictionaries(
        st.tuples(SIZES, SIZES), st.tuples(st.integers(1, 10**9)), min_size=1, max_size=8
    ),
    bucket=st.tuples(st.integers(0, 400), st.integers(0, 400)),
)
def test_no_sizes_and_no_times_are_too_odd(
    known: dict[Bucket, Times], bucket: tuple[int, int]
) -> None:
    (found,) = times_at(bucket, known)
    assert found >= 0
    assert times_at(bucket, known) == (found,)


def looked_up(bucket: Bucket, known: set[Bucket]) -> list[Bucket]:
    asked: list[Bucket] = []

    def times_of(near: Bucket) -> Times:
        asked.append(near)
        return (1_000,)

    interpolation.times_at(bucket, known, times_of)
    return asked


@pytest.mark.parametrize("dimensions", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("sizes", [2, 3, 8, 64])
def test_a_bucket_asks_few_whatever_is_known(dimensions: int, sizes: int) -> None:
    """It would be exponential in dimensions to try all ways; somebody waits for the answer."""
    rng = random.Random(dimensions * 100 + sizes)
    for _ in range(5):
        known = {tuple(1 + rng.randrange(sizes) for _ in range(dimensions)) for _ in range(64)}
        assert len(looked_up((sizes + 1,) * dimensions, known)) <= LINES_MAX + 1


def test_steps_are_counted_too() -> None:
    """All are on diagonals, so no way leads along dimensions: most would be looked at in vain."""
    walk = interpolation._Walk((7,) * 16)
    walk.along([(n, *[1 + n % 3] * 15) for n in range(64)], 0)
    assert 16 < walk.visits <= interpolation.VISITS_MAX + 16
