"""Time in integer nanoseconds and sizes in integer bytes; these are the only conversions.

Floats are for people. Nothing in the daemon's state is a float (ARCHITECTURE.md, "Contract").
"""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

PPM = 1_000_000
"""Fractions are integers in millionths."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def ms_from_ns(duration_ns: int) -> float:
    """A duration in milliseconds, for display only."""
    return duration_ns / NS_PER_MS


def ns_from_ms(duration_ms: float) -> int:
    """A duration given by a person in milliseconds, as integer nanoseconds."""
    return round(duration_ms * NS_PER_MS)


def mib_from_bytes(size_bytes: int) -> float:
    """A size in MiB, for display only."""
    return size_bytes / MIB


def printable(text: str) -> str:
    """A text of strangers for a terminal: what would do something there is shown by its number."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def format_duration(duration_ns: int) -> str:
    """A duration for people, in the unit that suits it."""
    if duration_ns < NS_PER_MS:
        return f"{duration_ns / NS_PER_US:.0f} us"
    if duration_ns < NS_PER_S:
        return f"{duration_ns / NS_PER_MS:.2f} ms"
    seconds = duration_ns // NS_PER_S
    if seconds < 60:
        return f"{duration_ns / NS_PER_S:.1f} s"
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"
