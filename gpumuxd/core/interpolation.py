"""What a program should take at sizes it was never run at, from those it was: pure, integers.

Along one dimension time is taken to be affine, `a + b n`, which is exact for a fixed cost and one
for each row: between two known sizes on the line through both, beyond them on the line through the
two nearest. So all times of a program (its groups, its run) are carried over one by one. With
several dimensions one after the other is gone along, as far as the sizes that are known reach (a
full grid reaches everywhere). Where they don't, the product of all sizes counts as one dimension,
and with a single known size time is in proportion to it.

Beyond what is known a line may lead astray. Time never falls as sizes grow: a line that falls is
replaced by the larger time. And towards small sizes it never falls faster than in proportion,
which is where a line leads that has less than nothing at size 0.
"""

from collections.abc import Mapping
from math import prod

from gpumuxd.domain import Bucket

Times = tuple[int, ...]
"""Of one program at one bucket: of each group, and whatever else goes with it."""


def times_at(bucket: Bucket, known: Mapping[Bucket, Times]) -> Times:
    """The times at a bucket. `known` has at least one, all as long."""
    found = _along(bucket, known, 0)
    return found if found is not None else _by_product(bucket, known)


def _along(bucket: Bucket, known: Mapping[Bucket, Times], dimension: int) -> Times | None:
    """The times as far as moves along this dimension and those after it lead to what is known."""
    if bucket in known:
        return known[bucket]
    if dimension == len(bucket):
        return None
    size = bucket[dimension]
    sizes = {other[dimension] for other in known}
    points: dict[int, Times] = {}
    for near in sorted(sizes, key=lambda each: (abs(each - size), each)):
        times = _along((*bucket[:dimension], near, *bucket[dimension + 1 :]), known, dimension + 1)
        if times is None:
            continue
        if near == size:
            return times
        points[near] = times
        if min(points) < size < max(points):
            break
    return _on_line(size, points) if len(points) >= 2 else None


def _by_product(bucket: Bucket, known: Mapping[Bucket, Times]) -> Times:
    size = max(1, prod(bucket))
    points: dict[int, Times] = {}
    for other in sorted(known):  # of equal products the largest in the first dimension stays
        points[max(1, prod(other))] = known[other]
    if size in points:
        return points[size]
    if len(points) >= 2:
        return _on_line(size, points)
    ((only, times),) = points.items()
    return tuple(ns * size // only for ns in times)


def _on_line(size: int, points: Mapping[int, Times]) -> Times:
    """Through the two points around this size, or the two nearest to it on one side."""
    below = sorted(each for each in points if each < size)
    above = sorted(each for each in points if each > size)
    if below and above:
        low, high = below[-1], above[0]
    elif below:
        low, high = below[-2], below[-1]
    else:
        low, high = above[0], above[1]
    is_below, is_above = size < low, size > high
    times = []
    for low_ns, high_ns in zip(points[low], points[high], strict=True):
        ns = low_ns + (high_ns - low_ns) * (size - low) // (high - low)
        if is_above:
            ns = max(ns, high_ns)
        elif is_below:
            ns = max(min(ns, low_ns), low_ns * size // low)
        times.append(ns)
    return tuple(times)
