"""Profiles on disk: what was put comes back, everything else is a miss."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpumuxd.programs.profile_cache import ProfileCache, StoredProfile, profile_key

PROFILE = StoredProfile(
    cuts=(3, 5),
    group_ns={(1, 8): (10, 20), (2, 8): (15, 30)},
    run_ns={(1, 8): 31, (2, 8): 46},
    frame_bytes={(1, 8): 4096, (2, 8): 8192},
)
BUCKETS = [(1, 8), (2, 8)]
KEY_PARTS: dict[str, Any] = {
    "artifact_hash": "abc",
    "device": "cpu:0",
    "threads": 1,
    "runtime_version": "torch 2.13",
    "group_target_ns": 500_000,
    "buckets": BUCKETS,
}
KEY = profile_key(**KEY_PARTS)


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path / "not" / "there")
    assert cache.get(KEY, 5, BUCKETS) is None
    assert cache.put(KEY, PROFILE)
    assert cache.get(KEY, 5, BUCKETS) == PROFILE
    assert ProfileCache(tmp_path / "not" / "there").get(KEY, 5, BUCKETS) == PROFILE


def test_putting_again_replaces_and_leaves_one_file(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    cache.put(KEY, PROFILE)
    other = StoredProfile((5,), {(1, 8): (7,)}, {(1, 8): 7}, {(1, 8): 0})
    cache.put(KEY, other)
    assert cache.get(KEY, 5, BUCKETS) == other
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.json"]


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("artifact_hash", "abd"),
        ("device", "cpu:1"),
        ("threads", 2),
        ("runtime_version", "torch 2.14"),
        ("group_target_ns", 500_001),
        ("buckets", [(1, 8)]),
    ],
)
def test_a_change_of_any_part_is_another_key(part: str, value: object) -> None:
    assert profile_key(**{**KEY_PARTS, part: value}) != KEY
    assert profile_key(**KEY_PARTS) == KEY


def edit_file(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = msgspec.json.decode(path.read_bytes())
    edit(data)
    path.write_bytes(msgspec.json.encode(data))


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.update(version=0),
        lambda data: data.update(key="another"),
        lambda data: data.update(cuts=[]),
        lambda data: data.update(cuts=[5, 3]),
        lambda data: data.update(cuts=[5]),
        lambda data: data.update(cuts=["3", 5]),
        lambda data: data.update(timings=[]),
        lambda data: data["timings"][0].update(frame_bytes=-1),
        lambda data: data["timings"][0].update(frame_bytes=1 << 60),
        lambda data: data["timings"][0].update(group_ns=[1, 1 << 63]),
        lambda data: data["timings"][0].update(bucket=[-1, 8]),
        lambda data: data["timings"][0].update(group_ns=[1, -2]),
        lambda data: data["timings"][0].update(group_ns=[1]),
        lambda data: data["timings"][0].update(run_ns=-1),
        lambda data: data["timings"][0].pop("bucket"),
        lambda data: data.pop("cuts"),
    ],
)
def test_a_file_that_contradicts_itself_is_a_miss(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    cache = ProfileCache(tmp_path)
    cache.put(KEY, PROFILE)
    edit_file(tmp_path / f"{KEY}.json", edit)
    assert cache.get(KEY, 5, BUCKETS) is None
    assert cache.put(KEY, PROFILE)
    assert cache.get(KEY, 5, BUCKETS) == PROFILE


DEEP = b'{"x": ' + b"[" * 100_000


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"\xff\xfe", b'{"cuts": ["\xff"]}', DEEP])
def test_a_broken_file_is_a_miss(tmp_path: Path, data: bytes) -> None:
    (tmp_path / f"{KEY}.json").write_bytes(data)
    assert ProfileCache(tmp_path).get(KEY, 5, BUCKETS) is None


def test_a_pipe_in_place_of_the_file_is_a_miss_and_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{KEY}.json")
    cache = ProfileCache(tmp_path)
    assert cache.get(KEY, 5, BUCKETS) is None
    assert cache.put(KEY, PROFILE)
    assert cache.get(KEY, 5, BUCKETS) == PROFILE


def test_a_profile_of_another_plan_is_a_miss(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    cache.put(KEY, PROFILE)
    assert cache.get(KEY, 6, BUCKETS) is None
    assert cache.get(KEY, 5, [(1, 8), (4, 8)]) is None
    assert cache.get(KEY, 5, [(4, 8), (1, 8), (2, 8)]) is None, "the smallest is always there"
    assert cache.get(KEY, 5, [(1, 8), (2, 8), (4, 8)]) == PROFILE


def test_a_directory_that_can_not_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ProfileCache(tmp_path / "file")
    assert not cache.put(KEY, PROFILE)
    assert cache.get(KEY, 5, BUCKETS) is None


def test_a_directory_in_place_of_the_file_is_no_error(tmp_path: Path) -> None:
    (tmp_path / f"{KEY}.json").mkdir()
    cache = ProfileCache(tmp_path)
    assert cache.get(KEY, 5, BUCKETS) is None
    assert not cache.put(KEY, PROFILE)
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.json"]
