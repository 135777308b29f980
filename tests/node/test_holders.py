"""Who holds the memory of a device, as an error tells it."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpumuxd.errors import OutOfDeviceMemory
from gpumuxd.models.manifest import Manifest
from gpumuxd.node.holders import with_holders
from gpumuxd.units import MIB
from gpumuxd.wire.frames import ModelFigures

SEEN, HIDDEN = Manifest(), Manifest(tenants=("other",))


def entry(
    label: str,
    mib: float,
    manifest: Manifest = SEEN,
    device: str = "cpu:0",
    frames_mib: float | None = None,
) -> Any:
    """One with `frames_mib` None has a device that has told nothing yet."""
    key, loaded = f"{label}#1", SimpleNamespace(weights_bytes=int(mib * MIB))
    told = None
    if frames_mib is not None:
        figures = [ModelFigures("x/1#9", 0, 0, 0, 0, 0, MIB, MIB)]
        figures.append(ModelFigures(key, 0, 0, 0, 0, 0, int(frames_mib * MIB), 0))
        told = SimpleNamespace(models=figures)
    link = SimpleNamespace(statistics=told)
    replica = SimpleNamespace(key=key, loaded=loaded, manifest=manifest, link=link)
    return SimpleNamespace(label=label, replicas={device: replica})


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([], "full"),
        ([entry("a/1", 3, device="cpu:1")], "full"),
        ([entry("a/1", 1), entry("b/2", 2.5)], "full; weights on cpu:0: b/2 2.5 MiB, a/1 1.0 MiB"),
        (
            [entry("a/1", 1), entry("secret/1", 9, HIDDEN), entry("secret/2", 1, HIDDEN)],
            "full; weights on cpu:0: a/1 1.0 MiB, other models 10.0 MiB",
        ),
        ([entry("secret/1", 9, HIDDEN)], "full; weights on cpu:0: other models 9.0 MiB"),
        (
            [entry(f"m/{n}", n) for n in range(1, 8)],
            "full; weights on cpu:0: m/7 7.0 MiB, m/6 6.0 MiB, m/5 5.0 MiB, m/4 4.0 MiB, "
            "m/3 3.0 MiB, other models 3.0 MiB",
        ),
        (
            [entry("a/1", 2, frames_mib=0), entry("b/2", 1, frames_mib=7)],
            "full; weights on cpu:0: b/2 1.0 MiB and 7.0 MiB of frames, a/1 2.0 MiB",
        ),
        (
            [entry("secret/1", 9, HIDDEN, frames_mib=1.5), entry("secret/2", 1, HIDDEN)],
            "full; weights on cpu:0: other models 10.0 MiB and 1.5 MiB of frames",
        ),
    ],
)
def test_the_largest_first_and_nobody_is_named_whom_one_may_not_know(
    entries: list[Any], told: str
) -> None:
    error = OutOfDeviceMemory("full", {"model": "x"}, 5)
    after = with_holders(error, "cpu:0", entries, lambda manifest: manifest is SEEN)
    assert (after.message, after.facts, after.retry_delay_ns) == (told, {"model": "x"}, 5)
