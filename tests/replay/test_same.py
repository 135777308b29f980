"""What was recorded comes out again, from any moment on; a difference is found where it begins."""

import importlib
import os

import msgspec
import pytest

from gpumuxd.compiled import INTERPRETED
from gpumuxd.core.device_scheduler import DeviceScheduler
from gpumuxd.domain import COMPLETED, CursorKind, PriorityClass
from gpumuxd.events import RequestArrived
from gpumuxd.replay import format as layout
from gpumuxd.replay.format import BadRecording
from gpumuxd.replay.same import replay
from gpumuxd.replay.sources import SCHEDULER, source_modules
from gpumuxd.settings import SchedulerSettings
from gpumuxd.testing.runner import run
from gpumuxd.testing.swarm import draw
from tests.replay.recorded import Recorded, parse, record

SEEDS = (1, 2, 3, 8)


@pytest.mark.parametrize("begin_at", [0, 25, 60])
def test_simulated_devices_replay_to_the_same_commands(begin_at: int) -> None:
    seen = 0
    for seed in SEEDS:
        devices, trace_hash = record(seed, begin_at)
        assert trace_hash == run(draw(seed), check=()).trace_hash, "recording changes nothing"
        for device in devices:
            contents = parse(device.data())
            replayed = replay(contents)
            assert (replayed.failure, contents.broken) == ("", ""), seed
            assert replayed.records == len(contents.calls) == device.ends[0].records
            assert replayed.commands_hash == device.hash.hexdigest() == device.ends[0].commands_hash
            seen += device.hash.count
    assert seen > 500


def test_all_that_happened_to_a_request_is_told() -> None:
    went_ahead = 0
    for seed in SEEDS:
        for device in record(seed)[0]:
            history = replay(parse(device.data())).history
            for one in history.requests.values():
                if not one.is_counted or one.outcome is not COMPLETED:
                    continue
                assert one.arrival.kind is CursorKind.INFER
                assert one.latency_ns >= one.report.queue_ns + one.report.compute_ns
                assert sum(each.device_ns for each in one.slices) == one.report.compute_ns
                went_ahead += one.went_ahead
    assert went_ahead > 10


def test_a_file_without_its_end_replays_as_far_as_it_goes() -> None:
    device = record(2)[0][0]
    contents = parse(device.data(ends=False))
    assert (contents.end, contents.broken) == (None, "")
    assert replay(contents).failure == ""


def test_a_scheduler_that_decides_otherwise_is_found_at_the_first_record() -> None:
    device = record(2)[0][0]
    contents = parse(device.data())
    checks = [i for i, call in enumerate(contents.calls) if isinstance(call[2], int)]
    place = checks[len(checks) // 2]
    code, now_ns, check = contents.calls[place]
    assert isinstance(check, int)
    contents.calls[place] = (code, now_ns, check ^ 1)
    assert f"before record {place + 1}" in replay(contents).failure


def test_other_commands_after_the_last_check_are_found_by_the_hash() -> None:
    device = record(2)[0][0]
    contents = parse(device.data())
    assert contents.end is not None
    end = msgspec.structs.replace(contents.end, commands_hash="0" * 32)
    assert "after the last record" in replay(msgspec.structs.replace(contents, end=end)).failure


def test_a_failure_of_the_scheduler_is_in_the_recording_and_comes_again() -> None:
    device = Recorded(SchedulerSettings())
    event = RequestArrived(1, "t", "m", PriorityClass.STANDARD, (1,), 0)
    device.handle(event, 5)
    with pytest.raises(AssertionError, match="arrived twice"):
        device.handle(event, 6)
    replayed = replay(parse(device.data(ends=False)))
    assert replayed.failure.startswith("the scheduler fails at record 2: AssertionError: request 1")
    assert "it failed when it was recorded" in replayed.failure


def test_a_recording_ends_before_it_grows_over_its_limit_and_is_whole() -> None:
    limit = 20_000
    device = record(1, bytes_max=limit)[0][0]
    data = device.data()
    (end,) = device.ends
    assert end.reason == "it reached its limit of bytes"
    assert len(data) <= limit
    contents = parse(data)
    assert contents.end == end
    replayed = replay(contents)
    assert (replayed.failure, replayed.records) == ("", end.records)


def test_the_scheduler_is_let_go_at_the_end() -> None:
    device = Recorded(SchedulerSettings())
    event = RequestArrived(1, "t", "m", PriorityClass.STANDARD, (1,), 0)
    device.handle(event, 5)
    assert device.scheduler.tap is device.recorder
    device.data()
    assert device.scheduler.tap is None
    device.poll(6)
    assert len(device.ends) == 1


def test_a_recording_of_another_version_is_refused_with_both() -> None:
    device = record(2)[0][0]
    contents = parse(device.data())
    header = msgspec.structs.replace(contents.header, gpumuxd_version="9.9")
    with pytest.raises(BadRecording, match=r"by gpumuxd 9\.9 and this is"):
        replay(msgspec.structs.replace(contents, header=header))


def test_a_scheduler_from_sources_changes_nothing_for_others() -> None:
    scheduler = source_modules()[SCHEDULER]
    assert str(scheduler.__file__).endswith(".py")
    assert importlib.import_module(SCHEDULER).DeviceScheduler is DeviceScheduler
    assert INTERPRETED not in os.environ or scheduler.DeviceScheduler is DeviceScheduler


def test_every_event_has_a_code_and_every_code_an_event() -> None:
    assert len(layout.CODE_OF_EVENT) == len(layout.EVENT_TYPES) >= 10
    assert DeviceScheduler(SchedulerSettings()).tap is None
