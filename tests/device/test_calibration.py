"""What a device costs is measured once, with what serving uses, and within its time."""

import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpumuxd.clock import monotonic_ns
from gpumuxd.device import calibration, calibration_runs
from gpumuxd.device.calibration import (
    WINDOWS_MAX,
    Measured,
    _concluded,
    _is_alone,
    device_costs,
    key_of,
    measure,
)
from gpumuxd.device.calibration_runs import Run
from gpumuxd.domain import SyncCost
from gpumuxd.programs.cost_cache import CostCache, DeviceCosts
from gpumuxd.settings import DeviceSettings, SchedulerSettings
from gpumuxd.units import NS_PER_S, NS_PER_US
from tests.device.support import SETTINGS, DeviceChild

COSTS = DeviceCosts((SyncCost(1, 90_000, 60_000), SyncCost(2, 9_000, 70_000)), 25_000)


def lines(errors: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in errors.splitlines()]


@pytest.mark.parametrize(("window_max", "windows"), [(1, 1), (3, 3), (64, WINDOWS_MAX)])
def test_costs_are_told_for_each_window(window_max: int, windows: int) -> None:
    settings = replace(SETTINGS, scheduler=SchedulerSettings(window_max=window_max))
    costs = measure(settings, monotonic_ns).costs
    assert [cost.window for cost in costs.sync_costs] == list(range(1, windows + 1))
    assert costs.is_consistent()


def test_a_launch_costs_what_the_setting_adds_and_more() -> None:
    settings = DeviceSettings(
        launch_cost_ns=200 * NS_PER_US, scheduler=SchedulerSettings(window_max=1)
    )
    assert measure(settings, monotonic_ns).costs.launch_ns > 200 * NS_PER_US


def test_when_time_is_up_there_is_one_repetition() -> None:
    seconds = itertools.count(0, NS_PER_S)
    settings = replace(SETTINGS, scheduler=SchedulerSettings(window_max=1))
    assert measure(settings, lambda: next(seconds)).doubt == (
        "there was time for 1 of 3 repetitions"
    )


def runs_of(idle_ns: Sequence[int], groups_ns: Sequence[int] = (90, 90, 90)) -> list[Run]:
    pairs = zip(idle_ns, groups_ns, strict=True)
    return [Run(run_ns=idle + groups, groups_ns=groups) for idle, groups in pairs]


RUNS = {
    1: {1: runs_of((18, 410, 18)), 9: runs_of((10, 10, 10))},
    2: {1: runs_of((10, 10, 10)), 9: runs_of((10, 10, 10))},
}
COSTS_OF_RUNS = (SyncCost(1, 1, 10), SyncCost(2, 0, 10))
Runs = dict[int, dict[int, list[Run]]]


def each_changed(change: Callable[[Sequence[Run]], list[Run]]) -> Runs:
    return {w: {k: change(runs) for k, runs in of.items()} for w, of in RUNS.items()}


def test_runs_that_were_interrupted_move_nothing() -> None:
    assert _concluded(RUNS, [32, 32, 900], is_alone=True) == Measured(DeviceCosts(COSTS_OF_RUNS, 4))


def test_the_pace_of_the_machine_moves_nothing() -> None:
    """Groups that take half as long again in one run of three say nothing of sync points."""
    slower = each_changed(lambda runs: runs_of([run.idle_ns for run in runs], (90, 135, 90)))
    slower[1][9] = runs_of((10, 10, 10), (135, 90, 135))
    assert _concluded(slower, [32, 32, 32], is_alone=True).costs.sync_costs == COSTS_OF_RUNS


def test_on_a_busy_machine_the_quickest_runs_count_and_are_not_kept() -> None:
    def busy(runs: Sequence[Run]) -> list[Run]:
        first = runs[0].idle_ns
        return runs_of((5 * first, first, 5 * first), (450, 90, 450))

    assert _concluded(each_changed(busy), [320, 32, 320], is_alone=True) == Measured(
        DeviceCosts(COSTS_OF_RUNS, 4), "the same run took half as long again"
    )


def test_two_repetitions_are_too_few_to_be_kept() -> None:
    assert _concluded(each_changed(lambda runs: list(runs[::2])), [32, 32], is_alone=True).doubt


def test_beside_others_figures_are_used_and_not_kept() -> None:
    alone = _concluded(RUNS, [32, 32, 32], is_alone=True)
    assert not alone.doubt

    # The least are what is left of the device then: typical ones have others' work in them.
    def slower(runs: Sequence[Run]) -> list[Run]:
        idle_ns = [run.idle_ns for run in runs]
        return runs_of((*idle_ns[:2], 3 * idle_ns[2]), (90, 190, 190))

    beside = _concluded(each_changed(slower), [32, 64, 64], is_alone=False)
    assert beside == replace(alone, doubt="others used its cores")


@pytest.mark.parametrize(
    ("threads", "times_taken", "is_alone"),
    [
        # a repetition with one window has 23 slices
        (1, 0, True),
        (1, 2, True),
        (1, 3, False),
        # more threads than cores: that is what this device is like
        (10_000, 12, True),
    ],
)
def test_cores_that_are_taken_away_say_that_others_were_there(
    threads: int, times_taken: int, is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    settings = DeviceSettings(threads=threads, scheduler=SchedulerSettings(window_max=1))
    assert _is_alone(settings, 1, times_taken) is is_alone


def measures(monkeypatch: pytest.MonkeyPatch, result: Measured) -> list[DeviceSettings]:
    """Nothing is measured but this comes of it; the calls."""
    calls: list[DeviceSettings] = []

    def pretend(settings: DeviceSettings, _: Callable[[], int]) -> Measured:
        calls.append(settings)
        return result

    monkeypatch.setattr(calibration, "measure", pretend)
    return calls


def test_what_was_measured_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(SETTINGS, profile_cache_dir=str(tmp_path))
    calls = measures(monkeypatch, Measured(COSTS))
    assert [device_costs(settings, monotonic_ns) for _ in range(3)] == [COSTS] * 3
    assert len(calls) == 1
    (line,) = lines(capsys.readouterr().err)
    assert (line["event"], line["level"]) == ("device_measured", "info")
    figures = ("sync_us", "base_us", "launch_us")
    assert [line[name] for name in figures] == [[90.0, 9.0], [60.0, 70.0], 25.0]


HURRY = "there was time for 1 of 3 repetitions"


def test_what_was_measured_in_a_hurry_is_told_of_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(SETTINGS, profile_cache_dir=str(tmp_path))
    calls = measures(monkeypatch, Measured(COSTS, HURRY))
    doubtful = replace(COSTS, is_firm=False)
    assert [device_costs(settings, monotonic_ns) for _ in range(2)] == [doubtful] * 2
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == []
    line = lines(capsys.readouterr().err)[0]
    assert (line["event"], line["level"]) == ("device_measured", "warning")
    assert line["reason"].startswith(f"the machine was busy: {HURRY}; ")


def test_no_cost_beyond_what_is_plausible_is_believed_of_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    us = NS_PER_US
    syncs_us = (840, 2_216, 15_461, 3)
    seen = DeviceCosts(
        tuple(SyncCost(w, sync * us, 66_186 * us) for w, sync in enumerate(syncs_us, 1)),
        4_000 * us,
    )
    measures(monkeypatch, Measured(seen, "others used its cores"))
    for launch_cost_us, base_us, believed_us in [
        (0, 1_000, (840, 840, 840, 3)),
        (500, 1_500, (840, 840, 840, 3)),
    ]:
        settings = replace(SETTINGS, launch_cost_ns=launch_cost_us * us)
        costs = device_costs(settings, monotonic_ns)
        assert costs is not None
        assert tuple(cost.sync_ns // us for cost in costs.sync_costs) == believed_us
        assert {cost.base_ns // us for cost in costs.sync_costs} == {base_us}
        assert (costs.launch_ns // us, costs.is_firm) == (base_us, False)
    measures(monkeypatch, Measured(seen))
    assert device_costs(SETTINGS, monotonic_ns) == seen


def test_without_a_place_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = measures(monkeypatch, Measured(COSTS))
    assert [device_costs(SETTINGS, monotonic_ns) for _ in range(2)] == [COSTS] * 2
    assert len(calls) == 2


def test_a_place_that_can_not_be_written_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    measures(monkeypatch, Measured(COSTS))
    settings = replace(SETTINGS, profile_cache_dir=str(tmp_path / "file"))
    assert device_costs(settings, monotonic_ns) == COSTS
    assert [line["event"] for line in lines(capsys.readouterr().err)] == [
        "device_measured",
        "device_costs_not_stored",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "cpu:1"},
        {"threads": 2},
        {"launch_cost_ns": 1},
        {"scheduler": SchedulerSettings(window_max=2)},
    ],
)
def test_what_was_measured_under_other_settings_is_another_file(changes: dict[str, Any]) -> None:
    assert key_of(replace(SETTINGS, **changes)) != key_of(SETTINGS)


def test_what_changes_no_cost_is_the_same_file() -> None:
    scheduler = SchedulerSettings(window_max=64, slice_ns_max=1)
    assert key_of(replace(SETTINGS, profile_passes=9, scheduler=scheduler)) == key_of(SETTINGS)


def test_a_device_that_can_not_be_measured_serves_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(calibration_runs.Kernels):
        def __init__(self) -> None:
            super().__init__()
            self.groups = [*self.groups[:-1], _broken]

    monkeypatch.setattr(calibration_runs, "Kernels", Broken)
    settings = replace(SETTINGS, profile_cache_dir=str(tmp_path))
    assert device_costs(settings, monotonic_ns) is None
    (line,) = lines(capsys.readouterr().err)
    assert (line["event"], line["level"]) == ("device_not_measured", "warning")
    assert "no such kernel" in line["reason"]
    assert list(tmp_path.iterdir()) == []


def _broken(slots: object) -> None:
    raise RuntimeError("no such kernel")


def test_a_child_believes_what_was_measured_before(tmp_path: Path) -> None:
    settings = replace(SETTINGS, profile_cache_dir=str(tmp_path))
    assert CostCache(tmp_path).put(key_of(settings), COSTS)
    with DeviceChild(settings) as child:
        child.wait_started()
        assert child.stop() == (0, "")
