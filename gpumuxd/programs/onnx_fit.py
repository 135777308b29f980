"""Finds how a size follows from others, from samples of it. Pure: whoever calls has run the model.

The forms are those that layers make: `(a s + b) // c` of one symbol, and products or sums of such
over several. A form is accepted when it gives every sample exactly, those that it was not made
from among them; a model may still do otherwise elsewhere, and then its request fails, because
outputs are held to the room that was reserved.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from gpumuxd.errors import InvalidModel
from gpumuxd.models.spec import Size, evaluate

Sizes = tuple[int, ...]
"""One value for each symbol, in a fixed order."""

_DIVISORS = (1, 2, 4, 8, 16, 32, 64, *(n for n in range(3, 64) if n & (n - 1)), 80, 96, 100, 128)
_DIVISORS += (160, 192, 200, 240, 256, 320, 400, 441, 480, 512, 1024)
"""Powers of two first: nearly all strides are. Above 64 the hops of spectra."""

Tokens = tuple[int | float | str, ...]


def fit_size(symbols: Sequence[str], base: Sizes, samples: Mapping[Sizes, int]) -> Size | None:
    """A size that gives all samples; None when no form does.

    Samples hold `base`, for each symbol some that differ from it in that symbol alone, and others,
    which serve as the proof.
    """
    origin = samples[base]
    parts: list[Tokens] = []
    for index, symbol in enumerate(symbols):
        axis = {
            sizes[index]: value
            for sizes, value in samples.items()
            if all(a == b for i, (a, b) in enumerate(zip(sizes, base, strict=True)) if i != index)
        }
        if set(axis.values()) == {origin}:
            continue
        part = fit_axis(symbol, axis)
        if part is None:
            return None
        parts.append(part)
    for size in _combined(parts, origin):
        if _gives_all(size, symbols, samples):
            return size
    return None


def _combined(parts: Sequence[Tokens], origin: int) -> list[Size]:
    if not parts:
        return [origin]
    if len(parts) == 1:
        return [parts[0]]
    product: list[int | float | str] = list(parts[0])
    total: list[int | float | str] = list(parts[0])
    for part in parts[1:]:
        product += [*part, "*"]
        total += [*part, "+"]
    times, spare = origin ** (len(parts) - 1), (len(parts) - 1) * origin
    if times > 1:
        product += [times, "//"]
    return [tuple(product), (*total, spare, "-") if spare else tuple(total)]


def _gives_all(size: Size, symbols: Sequence[str], samples: Mapping[Sizes, int]) -> bool:
    try:
        return all(
            evaluate(size, dict(zip(symbols, sizes, strict=True))) == value
            for sizes, value in samples.items()
        )
    except InvalidModel:  # a division by zero, say
        return False


def fit_axis(symbol: str, axis: Mapping[int, int]) -> Tokens | None:
    """`(a s + b) // c` that gives all values of one symbol, or None.

    A line through all points is taken before one that has to be rounded, and then the likeliest c.
    """
    points = sorted(axis.items())
    (first, low), (last, high) = points[0], points[-1]
    line = Fraction(high - low, last - first)
    if all(value == low + line * (size - first) for size, value in points):
        factor, divisor = line.numerator, line.denominator
        return _tokens(symbol, factor, low * divisor - factor * first, divisor)
    for divisor in _DIVISORS:
        slope = line * divisor
        for factor in {math.floor(slope), math.ceil(slope)}:
            if factor == 0:
                continue
            # b must bring every point between its value and the next: an interval, or nothing.
            least = max(divisor * value - factor * size for size, value in points)
            most = min(divisor * value + divisor - 1 - factor * size for size, value in points)
            if least <= most:
                return _tokens(symbol, factor, min(max(0, least), most), divisor)
    return None


def _tokens(symbol: str, factor: int, offset: int, divisor: int) -> Tokens:
    tokens: list[int | float | str] = [symbol]
    if factor != 1:
        tokens += [factor, "*"]
    if offset:
        tokens += [abs(offset), "+" if offset > 0 else "-"]
    if divisor != 1:
        tokens += [divisor, "//"]
    return tuple(tokens)


def common_multiple(base: int, accepted: Sequence[int], refused: Sequence[int]) -> int:
    """The smallest power of two whose multiples were all accepted, the base among them; 1 when no
    size between accepted ones was refused, or no power of two explains it.

    A size that is no multiple may have been accepted too: a side of 63 that is halved and rounded
    up five times is one of 64.
    """
    refused = [size for size in refused if min(accepted) < size < max(accepted)]
    if not refused:
        return 1
    for multiple in (2, 4, 8, 16, 32, 64):
        if base % multiple == 0 and all(size % multiple for size in refused):
            return multiple
    return 1
