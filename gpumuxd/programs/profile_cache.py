"""Measured profiles on disk, so that a model is measured once per machine and not per start.

The key says everything that a measurement depends on; a change of any part is another file. What is
read back is not trusted: a file that is broken, or that contradicts itself, is a miss and will be
written again (`stored.py`). A directory that can't be written costs a measurement at the next start
and nothing else.

A profile that was measured while the device served others is kept like any other. Each group is
timed by itself on a device that runs one after the other, so others make it a little longer and
never shorter; the scheduler corrects what it believes from the first requests on, but what it
learns is not written back.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from gpumuxd.domain import Bucket
from gpumuxd.programs.stored import read_stored, write_stored

PROFILE_VERSION = 2
"""Raise it when cutting or measuring changes: older files are then never looked at."""


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """Where a program was cut, and how long each part took.

    `cuts[i]` is the end node (exclusive) of group i. Per bucket: the time of each group and of a
    whole run, and `frame_bytes`, the most that one run held between two groups.
    """

    cuts: tuple[int, ...]
    group_ns: Mapping[Bucket, tuple[int, ...]]
    run_ns: Mapping[Bucket, int]
    frame_bytes: Mapping[Bucket, int]

    def is_consistent(self) -> bool:
        """Do the parts fit each other?"""
        starts = (0, *self.cuts[:-1])
        return (
            len(self.cuts) > 0
            and all(start < end for start, end in zip(starts, self.cuts, strict=True))
            and len(self.run_ns) > 0
            and set(self.group_ns) == set(self.run_ns) == set(self.frame_bytes)
            and all(len(times) == len(self.cuts) for times in self.group_ns.values())
            and all(min(times) >= 0 for times in self.group_ns.values())
            and min((*self.run_ns.values(), *self.frame_bytes.values())) >= 0
        )


_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""A time or a size as it can have been measured: JSON has larger ones, frames have not."""


class _Timing(msgspec.Struct, frozen=True):
    bucket: tuple[_Number, ...]
    group_ns: tuple[_Number, ...]
    run_ns: _Number
    frame_bytes: _Number


class _File(msgspec.Struct, frozen=True):
    """A profile as JSON, which has no tuples as keys."""

    version: int
    key: str
    cuts: tuple[_Number, ...]
    timings: tuple[_Timing, ...]


def profile_key(
    artifact_hash: str,
    device: str,
    threads: int,
    runtime_version: str,
    group_target_ns: int,
    buckets: Sequence[Bucket],
) -> str:
    """The name of a profile: a hash of all that it depends on."""
    parts = [
        PROFILE_VERSION,
        artifact_hash,
        device,
        threads,
        runtime_version,
        group_target_ns,
        [list(bucket) for bucket in buckets],
    ]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


class ProfileCache:
    """A directory of profiles. Many processes may share it."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def get(self, key: str, node_count: int, buckets: Sequence[Bucket]) -> StoredProfile | None:
        """The profile, or None if there is none that can be used.

        One that was cut from another number of nodes is a miss: the same artifact can become
        another plan in another version of the reader. So is one of other buckets than these, or
        without the first of them, which every measurement has.
        """
        stored = read_stored(self._path(key), _File)
        if stored is None or stored.version != PROFILE_VERSION or stored.key != key:
            return None
        profile = StoredProfile(
            cuts=stored.cuts,
            group_ns={timing.bucket: timing.group_ns for timing in stored.timings},
            run_ns={timing.bucket: timing.run_ns for timing in stored.timings},
            frame_bytes={timing.bucket: timing.frame_bytes for timing in stored.timings},
        )
        if not profile.is_consistent() or profile.cuts[-1] != node_count:
            return None
        if buckets[0] not in profile.run_ns or not profile.run_ns.keys() <= set(buckets):
            return None
        return profile

    def put(self, key: str, profile: StoredProfile) -> bool:
        """Store a profile. False if the directory can't be written; that is no error."""
        assert profile.is_consistent(), profile
        timings = tuple(
            _Timing(bucket, times, profile.run_ns[bucket], profile.frame_bytes[bucket])
            for bucket, times in profile.group_ns.items()
        )
        file = _File(PROFILE_VERSION, key, profile.cuts, timings)
        return write_stored(self._path(key), file)

    def _path(self, key: str) -> Path:
        assert key.isalnum(), f"{key!r} is not from profile_key"
        return self._directory / f"{key}.json"
