"""`AsyncClient.infer_stream`: answers in order, errors as values, and how a stream ends."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest
from gpumuxd_client import AsyncClient, errors
from gpumuxd_client.types import InferResult
from numpy.typing import NDArray

from gpumuxd.clock import monotonic_ns
from gpumuxd.errors import QueueFull, limit_facts
from gpumuxd.node.api import InferCall
from tests.rpc.fake_node import FakeNode
from tests.rpc.front import WAIT_S, Front

X: NDArray[np.float32] = np.arange(8, dtype=np.float32).reshape(2, 4)


async def inputs_of(*factors: float) -> AsyncIterator[Mapping[str, NDArray[Any]]]:
    for factor in factors:
        yield {"x": (X * factor).astype(np.float32)}


async def test_answers_come_in_order_and_errors_are_values(front: Front, node: FakeNode) -> None:
    def fail_second(call: InferCall) -> None:
        if len(node.calls) == 2:
            raise QueueFull("full", limit_facts("frames_max", 4, "runs"))

    node.before_reply = fail_second
    async with AsyncClient(front.target) as client:
        stream = client.infer_stream("identity_fp32", inputs_of(1, 2, 3), priority=2, timeout=5.0)
        first, second, third = [answer async for answer in stream]
    for answer, factor in ((first, 1), (third, 3)):
        assert isinstance(answer, InferResult)
        np.testing.assert_array_equal(answer["y"], X * factor)
        assert answer.report.queue_ns == 11
    assert isinstance(second, errors.QueueFull)
    assert (str(second), second.status) == ("full", "RESOURCE_EXHAUSTED")
    assert second.facts["limit"] == "frames_max"
    assert second.retry_delay_s is not None
    for call in node.calls:
        assert call.priority == 2
        assert call.deadline_ns == call.arrived_ns + 5 * 10**9


async def test_leaving_a_stream_cancels_what_runs(front: Front, node: FakeNode) -> None:
    second = asyncio.Event()

    async def hang_second(call: InferCall) -> None:
        if len(node.calls) == 2:
            second.set()
            await asyncio.Event().wait()

    node.before_reply = hang_second
    async with AsyncClient(front.target) as client:
        stream = client.infer_stream("identity_fp32", inputs_of(1, 2))
        await anext(stream)
        await asyncio.wait_for(second.wait(), WAIT_S)
        await stream.aclose()
        await asyncio.wait_for(node.cancelled.wait(), WAIT_S)


async def test_what_ends_a_stream_is_raised(front: Front, node: FakeNode) -> None:
    async def hang(call: InferCall) -> None:
        await asyncio.Event().wait()

    node.before_reply = hang
    async with AsyncClient(front.shared) as stranger:
        with pytest.raises(errors.Unauthenticated):
            await anext(stranger.infer_stream("identity_fp32", inputs_of(1)))
    async with AsyncClient(front.target) as client:
        began_ns = monotonic_ns()
        with pytest.raises(errors.DeadlineExceeded):
            await anext(client.infer_stream("identity_fp32", inputs_of(1), deadline=0.2))
        assert monotonic_ns() - began_ns >= 10**8
        await client.close()
        with pytest.raises(ValueError, match="closed"):
            await anext(client.infer_stream("identity_fp32", inputs_of(1)))
