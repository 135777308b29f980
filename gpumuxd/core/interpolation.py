"""What a program should take at sizes it was never run at, from those it was: pure, integers.

Along one dimension time is taken to be affine, `a + b n`, which is exact for a fixed cost and one
for each row: between two known sizes on the line through both, beyond them on the line through the
two nearest. So all times of a program (its groups, its run) are carried over one by one. With
several dimensions one after the other is gone along, as far as the sizes that are known reach (a
full grid of two dimensions reaches everywhere). Where they don't, or only by more than LINES_MAX
lines or VISITS_MAX steps, because somebody waits for this, the product of all sizes counts as one
dimension, and with a single known size time is in proportion to it.

Beyond what is known a line may lead astray. Time never falls as sizes grow: a line that falls is
replaced by the larger time. And towards small sizes it never falls faster than in proportion,
which is where a line leads that has less than nothing at size 0.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import NamedTuple

from gpumuxd.domain import Bucket

Times = tuple[int, ...]
"""Of one program at one bucket: of each group, and whatever else goes with it."""

LINES_MAX = 3
"""Each goes over all groups. Between two dimensions there are three: two along one of them, and one
across."""

VISITS_MAX = 48
"""Sizes that are looked at in all dimensions together, most of which lead nowhere."""


class _Line(NamedTuple):
    """How the times at `size` follow from those at two other sizes of one dimension."""

    size: int
    low: int
    low_path: "_Path"
    high: int
    high_path: "_Path"


_Path = Bucket | _Line


def times_at(
    bucket: Bucket, known: Collection[Bucket], times_of: Callable[[Bucket], Times]
) -> Times:
    """The times at a bucket. `known` has at least one, and `times_of` says its times, all as
    long; it is asked for few."""
    if bucket in known:
        return times_of(bucket)
    walk = _Walk(bucket)
    path = walk.along(list(known), 0)
    if path is None or _lines(path) > LINES_MAX:
        return _by_product(bucket, known, times_of)
    return _follow(path, times_of)


class _Walk:
    """The way to a bucket, dimension by dimension, and how many steps it took to look for it."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.visits = 0

    def along(self, known: Sequence[Bucket], dimension: int) -> _Path | None:
        """From buckets that are alike in all dimensions before this one."""
        self.visits += 1
        if dimension == len(self.bucket):
            return known[0]
        size = self.bucket[dimension]
        by_size: dict[int, list[Bucket]] = {}
        for each in known:
            by_size.setdefault(each[dimension], []).append(each)
        least, most = min(by_size), max(by_size)
        paths: dict[int, _Path] = {}
        for near in sorted(by_size, key=lambda each: (abs(each - size), each)):
            if self.visits > VISITS_MAX:
                return None
            path = self.along(by_size[near], dimension + 1)
            if path is None:
                continue
            if near == size:
                return path
            paths[near] = path
            is_between = min(paths) < size < max(paths)
            if is_between or (len(paths) == 2 and (size < least or size > most)):
                break
        if len(paths) < 2:
            return None
        low, high = _around(size, paths)
        return _Line(size, low, paths[low], high, paths[high])


def _lines(path: _Path) -> int:
    return 1 + _lines(path.low_path) + _lines(path.high_path) if isinstance(path, _Line) else 0


def _follow(path: _Path, times_of: Callable[[Bucket], Times]) -> Times:
    if not isinstance(path, _Line):
        return times_of(path)
    low, high = _follow(path.low_path, times_of), _follow(path.high_path, times_of)
    return _on_line(path.size, path.low, low, path.high, high)


def _by_product(
    bucket: Bucket, known: Collection[Bucket], times_of: Callable[[Bucket], Times]
) -> Times:
    size = max(1, prod(bucket))
    points: dict[int, Bucket] = {}
    for other in sorted(known):  # of equal products the largest in the first dimension stays
        points[max(1, prod(other))] = other
    if size in points:
        return times_of(points[size])
    if len(points) >= 2:
        low, high = _around(size, points)
        return _on_line(size, low, times_of(points[low]), high, times_of(points[high]))
    ((only, other),) = points.items()
    return tuple([ns * size // only for ns in times_of(other)])


def _around(size: int, points: Mapping[int, object]) -> tuple[int, int]:
    """The two points around this size, or the two nearest to it on one side."""
    below = sorted(each for each in points if each < size)
    above = sorted(each for each in points if each > size)
    if below and above:
        return below[-1], above[0]
    return (below[-2], below[-1]) if below else (above[0], above[1])


def _on_line(size: int, low: int, low_times: Times, high: int, high_times: Times) -> Times:
    """Through two points, which are around this size or both on one side of it."""
    is_below, is_above = size < low, size > high
    before, width = size - low, high - low
    times = []
    for low_ns, high_ns in zip(low_times, high_times, strict=True):
        ns = low_ns + (high_ns - low_ns) * before // width
        if is_above:
            ns = max(ns, high_ns)
        elif is_below:
            ns = max(min(ns, low_ns), low_ns * size // low)
        times.append(ns)
    return tuple(times)
