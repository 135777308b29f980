"""Requests through a real child: results, fates, order, and what never blocks."""

import pytest
import torch

from gpumuxd.clock import monotonic_ns
from gpumuxd.core.bucket_table import RUNS_TO_REFUSE
from gpumuxd.domain import OutcomeKind, PriorityClass
from gpumuxd.wire.frames import (
    Accepted,
    AskStatistics,
    Cancel,
    Finished,
    Ping,
    Pong,
    Statistics,
    Submit,
)
from tests.device.conftest import Lookup, Mlp, Slow, make
from tests.device.support import DeviceChild


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_results_equal_the_modules(child: DeviceChild, rows: int) -> None:
    x = torch.randn(rows, 32)
    (result,) = child.infer("mlp/1", {"x": x})
    with torch.inference_mode():
        expected = make(Mlp)(x)
    assert torch.equal(result, expected)


def test_many_outputs_and_integer_inputs(child: DeviceChild) -> None:
    index = torch.tensor([3, 9])
    rows, sums = child.infer("lookup/1", {"index": index})
    with torch.inference_mode():
        expected = make(Lookup)(index)
    assert torch.equal(rows, expected[0])
    assert torch.equal(sums, expected[1])


def test_a_request_is_accepted_once_and_finished_once_with_its_report(child: DeviceChild) -> None:
    child.frames.clear()
    submit = child.submit("slow/1", {"x": torch.randn(1, 256, 512)})
    finished = child.finish(submit)
    child.free(submit)
    assert child.accepted_ids() == [submit.request_id]
    assert finished.outcome.kind is OutcomeKind.COMPLETED
    assert finished.report.compute_ns > 0
    assert 0 <= finished.report.queue_ns < monotonic_ns() - submit.arrived_ns
    assert finished.report.predicted_ns > 0, "it was profiled"
    (reserved,), (output,) = submit.outputs, finished.outputs
    assert output.offset == reserved.offset
    assert output.shape == (1, 256, 512)
    child.send(Ping(1))
    assert isinstance(child.receive(), Pong), "nothing more is said about it"


def test_requests_in_flight_together_do_not_mix(child: DeviceChild) -> None:
    xs = [torch.full((1, 256, 512), float(i)) for i in range(4)]
    submits = [child.submit("slow/1", {"x": x}) for x in xs]
    module = make(Slow)
    for x, submit in zip(xs, submits, strict=True):
        (block,) = child.finish(submit).outputs
        with torch.inference_mode():
            expected = module(x)
        assert torch.equal(child.tensor(block), expected)
        child.free(submit)


def test_realtime_overtakes_best_effort_in_the_middle_of_an_inference(child: DeviceChild) -> None:
    low = child.submit("slow/1", {"x": torch.randn(2, 256, 512)}, PriorityClass.BEST_EFFORT)
    while child.expect(Accepted).request_id != low.request_id:
        pass
    high = child.submit("mlp/1", {"x": torch.randn(1, 32)}, PriorityClass.REALTIME)
    first = child.expect(Finished)
    second = child.expect(Finished)
    assert [first.request_id, second.request_id] == [high.request_id, low.request_id]
    assert second.report.preemptions == 1
    assert second.report.preemption_wait_ns > 0
    child.free(low)
    child.free(high)


def test_an_unknown_model_is_a_fate_not_an_end(child: DeviceChild) -> None:
    submit = child.submit("mlp/1", {"x": torch.randn(1, 32)})
    child.finish(submit)
    unknown = Submit(
        10**9, "t", "no/1", PriorityClass.STANDARD, (1,), 1, monotonic_ns(), None, (), ()
    )
    child.send(unknown)
    assert child.finish(unknown).outcome.kind is OutcomeKind.MODEL_NOT_READY
    child.free(submit)


def test_a_request_that_fails_on_the_device_says_why_and_the_next_works(
    child: DeviceChild,
) -> None:
    submit = child.submit("lookup/1", {"index": torch.tensor([77])})
    finished = child.finish(submit)
    assert finished.outcome.kind is OutcomeKind.MODEL_FAULTED
    assert "IndexError" in finished.outcome.reason
    assert finished.outputs == ()
    child.free(submit)
    rows, _ = child.infer("lookup/1", {"index": torch.tensor([5])})
    assert rows.shape == (1, 4)


def test_a_cancelled_request_finishes_once(child: DeviceChild) -> None:
    submits = [child.submit("slow/1", {"x": torch.randn(2, 256, 512)}) for _ in range(3)]
    for submit in submits[1:]:
        child.send(Cancel(submit.request_id))
    outcomes = [child.finish(submit).outcome.kind for submit in submits]
    assert outcomes == [OutcomeKind.COMPLETED, OutcomeKind.CANCELLED, OutcomeKind.CANCELLED]
    child.send(Cancel(submits[0].request_id))  # it has finished: nothing to say
    child.send(Ping(2))
    assert isinstance(child.receive(), Pong)
    for submit in submits:
        child.free(submit)


def test_the_loop_answers_while_the_device_is_busy(child: DeviceChild) -> None:
    submit = child.submit("slow/1", {"x": torch.randn(2, 256, 512)}, PriorityClass.BEST_EFFORT)
    turns = []
    for count in range(3):
        child.send(Ping(count))
        pong = child.expect(Pong)
        assert pong.count == count
        turns.append(pong.turns)
    assert not any(isinstance(frame, Finished) for frame in child.frames), "it runs still"
    assert turns == sorted(set(turns)), "turns only grow"
    child.finish(submit)
    child.free(submit)


def test_statistics_name_models_but_no_internal_programs(child: DeviceChild) -> None:
    child.infer("mlp/1", {"x": torch.randn(1, 32)})
    child.send(AskStatistics())
    statistics = child.expect(Statistics)
    assert {figures.model for figures in statistics.models} == {"mlp/1", "slow/1", "lookup/1"}
    assert statistics.queued == statistics.started == statistics.in_flight_slices == 0
    assert statistics.slices_launched > 0
    assert statistics.device_busy_ns > 0
    # No model here has an SLO, and the device knows what its sync points cost.
    assert (statistics.bound_ns, statistics.bound_origin) == (0, "least_delay")
    assert statistics.bound_model == ""


def test_a_deadline_that_can_not_be_met_is_refused(child: DeviceChild) -> None:
    inputs = {"x": torch.randn(2, 256, 512)}
    for _ in range(RUNS_TO_REFUSE):  # a size that never ran refuses nobody
        run = child.submit("slow/1", inputs)
        assert child.finish(run).outcome.kind is OutcomeKind.COMPLETED
        child.free(run)
    submit = child.submit("slow/1", inputs, deadline_ns=monotonic_ns() + 1_000_000)
    finished = child.finish(submit)
    assert finished.outcome.kind is OutcomeKind.DEADLINE_INFEASIBLE, finished
    assert finished.report.compute_ns == 0
    child.free(submit)


def test_nothing_is_lost_while_the_parent_does_not_listen(child: DeviceChild) -> None:
    count = 0
    while not child.channel.wants_write:
        child.send(Ping(count))
        count += 1
    assert count > 100, "both kernel buffers are full, and the child reads no more"
    for expected in range(count):
        pong = child.expect(Pong)
        assert pong.count == expected
        child.channel.flush()
    child.infer("mlp/1", {"x": torch.randn(1, 32)})
