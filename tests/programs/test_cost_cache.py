"""Costs of a device on disk: what was put comes back, everything else is a miss."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpumuxd.domain import SyncCost
from gpumuxd.programs.cost_cache import CostCache, DeviceCosts, costs_key

COSTS = DeviceCosts((SyncCost(1, 90_000, 60_000), SyncCost(2, 9_000, 70_000)), 25_000)
KEY = costs_key(["cpu:0", 1, 0, "torch 2.13", "a processor"])


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    cache = CostCache(tmp_path / "not" / "there")
    assert cache.get(KEY) is None
    assert cache.put(KEY, COSTS)
    assert cache.get(KEY) == COSTS
    assert CostCache(tmp_path / "not" / "there").get(KEY) == COSTS


def test_a_change_of_any_part_is_another_key() -> None:
    parts: list[str | int] = ["cpu:0", 1, 0, "torch 2.13", "a processor"]
    changed: list[list[str | int]] = [
        [*parts[:i], "other", *parts[i + 1 :]] for i in range(len(parts))
    ]
    assert len({KEY, *map(costs_key, changed), costs_key([*parts, 2])}) == len(parts) + 2


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.update(version=0),
        lambda data: data.update(key="another"),
        lambda data: data.update(launch_ns=-1),
        lambda data: data.update(launch_ns="3"),
        lambda data: data.update(launch_ns=10**10),
        lambda data: data.update(sync_costs=[]),
        lambda data: data.update(sync_costs=[[1, 2]]),
        lambda data: data.update(sync_costs=[[2, 1, 1]]),
        lambda data: data.update(sync_costs=[[1, 1, 1], [3, 1, 1]]),
        lambda data: data.update(sync_costs=[[1, 1, 1], [1, 1, 1]]),
        lambda data: data.update(sync_costs=[[1, -1, 1]]),
        lambda data: data.update(sync_costs=[[1, 1, 10**10]]),
        lambda data: data.pop("sync_costs"),
    ],
)
def test_a_file_that_makes_no_sense_is_a_miss(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    cache = CostCache(tmp_path)
    cache.put(KEY, COSTS)
    (path,) = tmp_path.iterdir()
    data = msgspec.json.decode(path.read_bytes())
    edit(data)
    path.write_bytes(msgspec.json.encode(data))
    assert cache.get(KEY) is None
    assert cache.put(KEY, COSTS)
    assert cache.get(KEY) == COSTS


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"\xff\xfe"])
def test_a_broken_file_is_a_miss(tmp_path: Path, data: bytes) -> None:
    (tmp_path / f"device-{KEY}.json").write_bytes(data)
    assert CostCache(tmp_path).get(KEY) is None


def test_a_directory_that_can_not_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = CostCache(tmp_path / "file")
    assert not cache.put(KEY, COSTS)
    assert cache.get(KEY) is None


def test_costs_that_make_no_sense_are_not_stored(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        CostCache(tmp_path).put(KEY, DeviceCosts((), 1))
    assert list(tmp_path.iterdir()) == []
