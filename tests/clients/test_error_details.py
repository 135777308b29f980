"""What the clients read from the details of a status, ours and those of others."""

import numpy as np
import pytest
from gpumuxd_client import errors
from gpumuxd_client.calls import RETRY_DELAY_S_FIRST, Attempts, server_live
from gpumuxd_client.error_details import DETAILS_KEY, Details, read_details
from gpumuxd_client.errors import DeadlineInfeasible, error_of
from gpumuxd_client.generated import status_pb2 as pb

from gpumuxd.errors import DeadlineInfeasible as Refused
from gpumuxd.errors import QueueFull as Full
from gpumuxd.errors import limit_facts
from tests.clients.conftest import AnyClient
from tests.rpc.fake_node import FakeNode
from tests.rpc.test_error_details import GOLDEN


def of_others(domain: str) -> bytes:
    status = pb.Status(code=8, message="?")
    info = pb.ErrorInfo(reason="QUOTA", domain=domain, metadata={"model": "x"})
    for name, value in (("ErrorInfo", info.SerializeToString()), ("BadRequest", b"\xff\xff")):
        status.details.add(type_url=f"type.googleapis.com/google.rpc.{name}", value=value)
    return status.SerializeToString()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (GOLDEN, Details({"model": "silero"}, 1.25, "DEVICE_LOST")),
        (of_others("gpumuxd"), Details({"model": "x"}, None, "QUOTA")),
        (of_others("googleapis.com"), Details({}, None)),
        (b"", Details({}, None)),
        (b"\xff\xff\xff", Details({}, None)),
        (GOLDEN[:-1], Details({}, None)),
        ("text", Details({}, None)),
    ],
)
def test_details_are_read_as_far_as_they_are_ours(data: bytes | str, expected: Details) -> None:
    assert read_details([("other", "x"), (DETAILS_KEY, data)]) == expected


def test_without_details_there_are_none() -> None:
    error = error_of("DEADLINE_EXCEEDED", "late", [("gpumuxd-reason", "DeadlineMissed")])
    assert isinstance(error, errors.DeadlineMissed)
    assert (error.facts, error.retry_delay_s) == ({}, None)
    assert (error.deadline_s, error.predicted_finish_s, error.late_by_s) == (None, None, None)


def test_a_number_that_is_none_is_not_known() -> None:
    assert errors.DeadlineMissed("", "", {"deadline_ms": "soon"}).deadline_s is None


async def test_a_refusal_says_when_the_node_would_have_been_done(
    client: AnyClient, node: FakeNode
) -> None:
    async def fail(call: object) -> None:
        facts = {"deadline_ms": "30.000", "predicted_finish_ms": "41.500", "late_by_ms": "11.500"}
        raise Refused("too late", facts)

    node.before_reply = fail
    with pytest.raises(DeadlineInfeasible, match=r"^too late$") as refused:
        await client("infer", "identity_fp32", {"x": np.zeros((1, 4), np.float32)})
    error = refused.value
    assert (error.deadline_s, error.predicted_finish_s) == (0.03, 0.0415)
    assert (error.late_by_s, error.facts["model"]) == (0.0115, "identity_fp32")


@pytest.mark.parametrize(
    ("deadline", "is_tried"), [(None, True), (10.0, True), (1.2, False), (0.5, False)]
)
def test_another_try_waits_as_long_as_the_daemon_says(
    deadline: float | None, is_tried: bool
) -> None:
    lost = errors.DeviceLost("restarting", "UNAVAILABLE", retry_delay_s=1.25)
    delay_s = Attempts(retries=3, deadline=deadline, now_s=0.0).delay_s(server_live(), lost, 0.0)
    assert (delay_s is not None) is is_tried
    assert delay_s is None or 1.25 < delay_s <= 1.25 + 1.25 * RETRY_DELAY_S_FIRST


async def test_a_limit_that_was_reached_comes_with_its_numbers(
    client: AnyClient, node: FakeNode
) -> None:
    async def fail(call: object) -> None:
        facts = limit_facts("arena_mib", 1 << 28, "bytes", current=1 << 27, asked=1 << 28)
        raise Full("no memory", facts)

    node.before_reply = fail
    with pytest.raises(errors.QueueFull) as refused:
        await client("infer", "identity_fp32", {"x": np.zeros((1, 4), np.float32)})
    error = refused.value
    assert error.limit == errors.Limit("arena_mib", 1 << 28, "bytes", 1 << 27, 1 << 28)
    assert (error.reason, error.retry_delay_s) == ("QUEUE_FULL", 0.1)


@pytest.mark.parametrize(
    "facts", [{}, {"limit": "arena_mib"}, {"limit": "arena_mib", "limit_max": "many"}]
)
def test_a_limit_without_a_number_is_none(facts: dict[str, str]) -> None:
    assert errors.QueueFull("", "", facts).limit is None
