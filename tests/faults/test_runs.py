"""A run that breaks costs the one who sent it: real faults, in a daemon that serves another tenant.

Each test lets a request stand in the middle of its run, has a bystander's requests admitted behind
it, breaks something, and asks who paid. `is_whole` proves at its end that nothing was left behind.
"""

import asyncio

import pytest
from gpumuxd_client.errors import GpumuxdError, ModelFaulted
from gpumuxd_client.types import InferResult

from tests.faults.ask import Fault
from tests.faults.rig import Rig, is_right

BYSTANDERS = 20


def name_of(fault: Fault) -> str:
    return fault.name


async def break_it(rig: Rig, model: str, fault: Fault) -> InferResult | GpumuxdError:
    """One fault among honest requests, which are all answered right; what its sender got."""
    culprit = rig.ask(model, fault, at_gate=True)
    async with rig.at_gate():
        bystanders = rig.ask_bystanders(BYSTANDERS)
        await rig.wait_in_flight(1 + BYSTANDERS)
    check_bystanders(await asyncio.gather(*bystanders))
    return await culprit


def check_bystanders(results: list[InferResult | GpumuxdError]) -> None:
    wrong = [result for index, result in enumerate(results) if not is_right(result, index)]
    assert wrong == []


def check_blamed(result: InferResult | GpumuxdError, model: str) -> None:
    assert isinstance(result, ModelFaulted), result
    assert result.status == "INTERNAL"
    assert repr(model) in result.message


@pytest.mark.parametrize(
    "fault",
    [
        Fault.ERROR,
        Fault.HUGE_ALLOCATION,
        Fault.ALL_MEMORY,
        Fault.WRONG_SHAPE,
        Fault.WRONG_TYPE,
        Fault.LARGER_THAN_RESERVED,
    ],
    ids=name_of,
)
async def test_a_run_that_fails_costs_its_own_request(rig: Rig, fault: Fault) -> None:
    before = await rig.device()
    async with rig.faulty_model() as model:
        check_blamed(await break_it(rig, model, fault), model)
        assert isinstance(await rig.ask(model, Fault.NOTHING), InferResult)
    await rig.is_whole()
    assert (await rig.device()).pid == before.pid, "the device was lost"


@pytest.mark.parametrize(
    "fault",
    [
        Fault.ABORT,
        Fault.SEGFAULT,
        Fault.ENDLESS_KERNEL,
        Fault.ENDLESS_WITH_GIL,
    ],
    ids=name_of,
)
async def test_a_run_that_ends_the_device(rig: Rig, fault: Fault) -> None:
    """Whoever was behind it is answered by the next child; it is told that it was to blame."""
    before = await rig.device()
    async with rig.faulty_model() as model:
        check_blamed(await break_it(rig, model, fault), model)
        await rig.wait_ready()
        assert isinstance(await rig.ask(model, Fault.NOTHING), InferResult)
    await rig.is_whole()
    assert (await rig.device()).restarts > before.restarts
