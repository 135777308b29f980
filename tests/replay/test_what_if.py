"""Predictions: exact where the device is, and different where the settings are."""

from dataclasses import replace

import msgspec
import pytest

from gpumuxd.commands import Launch, Retire
from gpumuxd.domain import Lane, LaneKind, OutcomeKind, PriorityClass
from gpumuxd.events import (
    Event,
    ModelDraining,
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    RequestCancelled,
)
from gpumuxd.executors.virtual import VirtualClock, VirtualExecutor, VirtualProgram
from gpumuxd.replay.device_model import device_model
from gpumuxd.replay.format import BadRecording, Contents
from gpumuxd.replay.history import History
from gpumuxd.replay.same import replay, restore
from gpumuxd.replay.summary import percentile, rows
from gpumuxd.replay.what_if import inputs, predict
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from tests.replay.recorded import Recorded, parse, record

US, MS = 1_000, 1_000_000
LOW, HIGH = PriorityClass.BEST_EFFORT, PriorityClass.REALTIME
COMPUTE = Lane(0, LaneKind.COMPUTE)
BUCKET = (1,)
SETTINGS = SchedulerSettings(preemption_delay_ns_max=2 * MS)

TRUE_NS = {"long": (MS,) * 20, "short": (200 * US,) * 2}
"""What groups really take. Their profiles say 10 % more."""

HEARD_NS, START_NS, GAP_NS = 50 * US, 30 * US, 5 * US


def ready(model: str, class_max: PriorityClass) -> ModelReady:
    times = tuple(ns * 11 // 10 for ns in TRUE_NS[model])
    return ModelReady(model, ModelProfile(len(times), {BUCKET: times}), class_max)


def scenario() -> list[tuple[int, Event]]:
    """A long run every 25 ms, a short one of a higher class every 7 ms."""
    events: list[tuple[int, Event]] = [
        (0, PartitionChanged(0, (COMPUTE,))),
        (0, ready("long", LOW)),
        (0, ready("short", HIGH)),
    ]
    for number in range(1, 20):
        at = number * 25 * MS
        events.append((at, RequestArrived(number, "a", "long", LOW, BUCKET, at - 10 * US)))
    for number in range(100, 160):
        at = (number - 99) * 7 * MS
        events.append((at, RequestArrived(number, "b", "short", HIGH, BUCKET, at - 10 * US)))
    events.append((101 * MS, RequestCancelled(4)))
    return sorted(events, key=lambda one: one[0])


def serve(settings: SchedulerSettings) -> Contents:
    """The scenario on a device in virtual time, recorded."""
    clock = VirtualClock()
    executor = VirtualExecutor(
        clock, [COMPUTE], round_trip_ns=HEARD_NS, start_ns=START_NS, gap_ns=GAP_NS
    )
    for model, times in TRUE_NS.items():
        ends = tuple(sum(times[:i]) for i in range(len(times) + 1))
        executor.load(model, VirtualProgram(len(times), {BUCKET: ends}))
    device = Recorded(settings)
    waiting = scenario()
    while True:
        while waiting and waiting[0][0] <= clock.now_ns:
            device.handle(waiting.pop(0)[1], clock.now_ns)
        for command in device.poll(clock.now_ns):
            if isinstance(command, Launch):
                executor.launch(command.slice)
            elif isinstance(command, Retire):
                executor.retire(command.cursor_id)
        until_ns = device.next_wakeup_ns()
        if waiting:
            until_ns = min(until_ns or waiting[0][0], waiting[0][0])
        if until_ns is None and executor.next_sync_point_ns is None:
            return parse(device.data())
        for event in executor.wait(until_ns):
            device.handle(event, clock.now_ns)


def latencies(history: History, model: str) -> list[int]:
    return [
        one.latency_ns
        for one in history.requests.values()
        if one.arrival.model == model
        and one.outcome is not None
        and one.outcome.kind is OutcomeKind.COMPLETED
    ]


def predicted(contents: Contents, settings: SchedulerSettings) -> History:
    device = device_model(replay(contents).history)
    return predict(settings, inputs(contents, restore(contents).inventory()), device, 0)


@pytest.fixture(scope="module")
def contents() -> Contents:
    return serve(SETTINGS)


def test_the_times_of_the_device_are_found(contents: Contents) -> None:
    history = replay(contents).history
    device = device_model(history)
    assert set(device.heard_ns) == {HEARD_NS}
    assert (device.start_ns, device.gap_ns, device.turn_ns) == (START_NS, GAP_NS, 0)
    assert device.unknown == 0
    assert device.ends_ns[1][-1] == 20 * MS
    assert device.ends_ns[100] == (0, 200 * US, 400 * US)
    assert device.ends_ns[4][-1] == 20 * MS, "what was cancelled has the median of its model"


def test_the_recorded_settings_are_predicted_exactly(contents: Contents) -> None:
    recorded = replay(contents).history
    again = predicted(contents, SETTINGS)
    for model in ("long", "short"):
        assert latencies(again, model) == latencies(recorded, model) != []


# settings, how the worst latency of the short model compares with that of the recorded settings
OTHERS = [
    (replace(SETTINGS, slicing=Slicing.NONE), 5),
    (replace(SETTINGS, slicing=Slicing.EVERY, slicing_operators=10, slicing_window=1), 2),
    (replace(SETTINGS, order=Order.FIFO), 5),
]


@pytest.mark.parametrize(("settings", "factor"), OTHERS)
def test_other_settings_are_predicted_as_they_would_be_recorded(
    contents: Contents, settings: SchedulerSettings, factor: int
) -> None:
    prediction = predicted(contents, settings)
    truth = replay(serve(settings)).history
    usual = max(latencies(predicted(contents, SETTINGS), "short"))
    assert max(latencies(prediction, "short")) > factor * usual
    for model in ("long", "short"):
        expected, found = sorted(latencies(truth, model)), sorted(latencies(prediction, model))
        assert len(found) == len(expected)
        assert abs(sum(found) - sum(expected)) < sum(expected) // 50


def test_a_prediction_from_the_middle_leaves_out_what_was_there() -> None:
    for device in record(1, begin_at=60)[0]:
        contents = parse(device.data())
        history = replay(contents).history
        there = [i for i, one in history.requests.items() if one.was_there]
        assert all(not history.requests[i].is_counted for i in there)
        again = predicted(contents, contents.header.settings.scheduler)
        known = device_model(history).ends_ns
        alive = {i for i, one in again.requests.items() if one.outcome is None}
        assert not alive, "what was admitted ends"
        assert set(again.requests) <= set(known)


def test_a_model_that_is_loaded_again_before_it_was_released_is_no_other(
    contents: Contents,
) -> None:
    history = replay(contents).history
    device = device_model(history)
    events = inputs(contents, restore(contents).inventory())
    at = 26 * MS  # in the middle of request 1
    events += [(at, ModelDraining("long")), (at, ready("long", LOW))]
    events.sort(key=lambda one: one[0])
    again = predict(SETTINGS, events, device, 0)
    assert len(latencies(again, "long (load 2)")) == 17
    assert len(latencies(again, "long")) == 1


def test_requests_of_models_that_were_never_seen_run_are_left_out() -> None:
    device = Recorded(SETTINGS)
    device.handle(PartitionChanged(0, (COMPUTE,)), 1)
    device.handle(ModelReady("m", ModelProfile(3), LOW), 2)
    device.handle(RequestArrived(1, "t", "m", LOW, BUCKET, 3), 4)
    contents = parse(device.data())
    assert device_model(replay(contents).history).unknown == 1
    assert predicted(contents, SETTINGS).requests == {}


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, frames_max=10**9),
        replace(SETTINGS, frames_max=0),
        replace(SETTINGS, window_max=0),
        replace(SETTINGS, frames_reserved=4),
        replace(SETTINGS, slice_ns_max=0),
        replace(SETTINGS, slicing=Slicing.EVERY),
        replace(SETTINGS, slicing_window=65),
        replace(SETTINGS, preemption_delay_ns_max=-1),
    ],
)
def test_settings_that_no_daemon_takes_are_refused(
    contents: Contents, settings: SchedulerSettings
) -> None:
    with pytest.raises(BadRecording, match="settings"):
        predicted(contents, settings)


def test_a_recording_without_lanes_can_not_be_run() -> None:
    device = Recorded(SETTINGS)
    device.handle(ModelReady("m", ModelProfile(3), LOW), 2)
    with pytest.raises(BadRecording, match="no lanes"):
        predicted(parse(device.data()), SETTINGS)


def test_rows_count_what_is_asked_for(contents: Contents) -> None:
    history = replay(contents).history
    counted = frozenset(i for i, one in history.requests.items() if one.is_counted)
    short, long = rows(history, counted)
    assert (short.model, short.priority_class, short.requests) == ("short", "REALTIME", 60)
    assert (long.model, long.requests, long.cancelled, long.completed) == ("long", 19, 1, 18)
    assert short.went_ahead > 0
    assert short.waits_ns_p99 is not None
    assert short.waits_ns_p99 <= 2 * MS + HEARD_NS + START_NS
    assert long.preempted > 0
    assert rows(history, frozenset({1})) == rows(history, frozenset({1, 10**6}))
    assert msgspec.json.encode(short)


@pytest.mark.parametrize(
    ("ordered", "percent", "expected"),
    [([], 50, None), ([7], 99, 7), ([1, 2], 50, 1), ([1, 2, 3], 50, 2), ([*range(100)], 99, 98)],
)
def test_percentiles_are_the_nearest_rank(
    ordered: list[int], percent: int, expected: int | None
) -> None:
    assert percentile(ordered, percent) == expected
