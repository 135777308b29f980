"""Which versions of a model serve: what `versions` in a manifest says, as Triton's version policy.

    versions = "latest"          the newest one: the default
    versions = { latest = 2 }    the newest two
    versions = "all"
    versions = [1, 7]            these

It must not know files: it is asked about numbers.
"""

from collections.abc import Iterable
from dataclasses import dataclass

LATEST_MAX = 1000
LISTED_MAX = 1000
VERSION_MAX = 999_999_999
"""What the name of a directory may be (`names.py`)."""

EXPECTED = (
    f"'latest', {{ latest = 1 to {LATEST_MAX} }}, 'all', or a list of 1 to {LISTED_MAX} "
    f"different version numbers from 1 to {VERSION_MAX}"
)


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """`latest` or `listed`; neither: all."""

    latest: int | None = None
    listed: tuple[int, ...] | None = None

    def select(self, published: Iterable[int]) -> list[int]:
        """The versions that should serve, in their order, of those that are there. One that is
        listed and not there is among them."""
        if self.listed is not None:
            return list(self.listed)
        ordered = sorted(published)
        return ordered if self.latest is None else ordered[-self.latest :]


DEFAULT_POLICY = VersionPolicy(latest=1)


def parse_policy(value: object) -> VersionPolicy | None:
    """A policy as TOML states it; None for anything else (`EXPECTED` says what there is)."""
    match value:
        case "latest":
            return DEFAULT_POLICY
        case "all":
            return VersionPolicy()
        case {"latest": count, **others} if not others and _is_number(count, LATEST_MAX):
            return VersionPolicy(latest=count)
        case list() if 1 <= len(value) <= LISTED_MAX:
            is_good = all(_is_number(item, VERSION_MAX) for item in value)
            if is_good and len(set(value)) == len(value):
                return VersionPolicy(listed=tuple(sorted(value)))
    return None


def _is_number(value: object, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= maximum
