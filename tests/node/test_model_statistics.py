"""What the node counts of requests: each once, with the version that ran it or would have."""

import asyncio

import pytest

from gpumuxd.domain import Outcome, OutcomeKind, RunReport
from gpumuxd.errors import GpumuxdError, InvalidRequest, UnknownModel
from gpumuxd.node.api import BatchStatistics, Duration, ModelStatistics, Tenant
from gpumuxd.node.node import Node
from gpumuxd.node.settings import TenantSettings
from gpumuxd.wire import frames
from tests.node.fakes import call
from tests.node.world import ADMIN, INDEX, TENANTS, VOICE, World


def of(node: Node, name: str = "m", version: str = "", tenant: Tenant = ADMIN) -> ModelStatistics:
    (statistics,) = node.model_statistics(tenant, name, version)
    return statistics


def tally(node: Node, name: str = "m") -> tuple[int, int, int, int]:
    """Successes, failures, cancelled ones among them, and pending ones."""
    found = of(node, name)
    return found.success.count, found.failed.count, found.cancelled.count, found.pending


async def run(world: World, node: Node, *values: int, report: RunReport, version: str = "") -> None:
    seen = len(world.life.of(frames.Submit))
    task = asyncio.ensure_future(node.infer(call(*values, version=version)))
    submit = (await world.life.wait_for(frames.Submit, seen + 1))[seen]
    rows = bytes(8 * submit.rows)
    world.life.finish(submit.request_id, [rows, rows], report=report)
    await task


async def test_a_request_that_was_done(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        assert of(node).ended_ms == 0
        await run(world, node, 1, 2, 3, 4, report=RunReport(queue_ns=5, compute_ns=7))
        found = of(node)
        assert (found.name, found.version) == ("m", "1")
        assert (found.rows, found.runs, found.pending) == (2, 1, 0)
        assert (found.success.count, found.failed) == (1, Duration())
        assert found.success.ns > 0
        assert (found.queued, found.compute) == (Duration(1, 5), Duration(1, 7))
        assert found.copied_in.ns > 0
        assert found.copied_out.ns > 0
        assert found.batches == (
            BatchStatistics(2, found.copied_in, Duration(1, 7), found.copied_out),
        )
        assert found.ended_ms > 1_700_000_000_000
        (weights,) = found.weights_bytes
        assert weights[0] == 0


async def test_requests_that_ran_together_are_one_run(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        for leads in (False, True, False):
            report = RunReport(compute_ns=9, batch_rows=3, leads_batch=leads)
            await run(world, node, 1, 2, report=report)
        await run(world, node, 1, 2, report=RunReport(compute_ns=4, batch_rows=1, leads_batch=True))
        found = of(node)
        assert (found.rows, found.runs, found.success.count) == (4, 2, 4)
        assert [(each.rows, each.compute) for each in found.batches] == [
            (1, Duration(1, 4)),
            (3, Duration(1, 9)),
        ]


async def test_each_request_counts_once_however_it_ends(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        tasks = [asyncio.ensure_future(node.infer(call(1, 2))) for _ in range(3)]
        submits = await world.life.wait_for(frames.Submit, 3)
        assert tally(node) == (0, 0, 0, 3)
        world.life.finish(submits[0].request_id)
        await tasks[0]
        assert tally(node) == (1, 0, 0, 2)
        late = Outcome(OutcomeKind.DEADLINE_MISSED)
        world.life.finish(submits[1].request_id, outcome=late)
        with pytest.raises(GpumuxdError):
            await tasks[1]
        assert tally(node) == (1, 1, 0, 1)
        tasks[2].cancel()
        await asyncio.wait([tasks[2]])
        assert tally(node) == (1, 2, 1, 0)
        with pytest.raises(InvalidRequest):
            await node.infer(call(1, 2, wanted=["z"]))
        assert tally(node) == (1, 3, 1, 0)
        node.count_refused(ADMIN, "m", "1", 0)
        node.count_refused(ADMIN, "m", "7", 0)  # which does not exist
        assert tally(node) == (1, 4, 1, 0)
        assert of(node).runs == 1


async def test_a_limit_that_was_reached_counts_as_a_failure(world: World) -> None:
    tenants = (*TENANTS[:2], TenantSettings(INDEX, requests_in_flight_max=1))
    async with world.started(startup_models=("m",), tenants=tenants) as node:
        first = asyncio.ensure_future(node.infer(call(1, 2, tenant=INDEX)))
        await world.life.wait_for(frames.Submit)
        with pytest.raises(GpumuxdError, match="requests_in_flight_max"):
            await node.infer(call(1, 2, tenant=INDEX))
        assert tally(node) == (0, 1, 0, 1)
        first.cancel()
        await asyncio.wait([first])


async def test_what_a_tenant_may_not_see_neither_shows_nor_counts(world: World) -> None:
    world.add("secret", manifest='tenants = ["voice"]\n')
    async with world.started(startup_models=("m", "secret")) as node:
        with pytest.raises(UnknownModel):
            await node.infer(call(1, 2, model="secret", tenant=INDEX))
        with pytest.raises(UnknownModel, match="no statistics"):
            node.model_statistics(INDEX, "secret", "")
        assert [each.name for each in node.model_statistics(INDEX, "", "")] == ["m"]
        assert [each.name for each in node.model_statistics(VOICE, "", "")] == ["m", "secret"]
        assert tally(node, "secret") == (0, 0, 0, 0)


async def test_counters_go_on_with_a_new_copy_and_end_with_an_unload(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        await run(world, node, 1, 2, report=RunReport())
        world.add(data=b"changed")
        await node.load(ADMIN, "m")
        assert tally(node) == (1, 0, 0, 0)
        await run(world, node, 1, 2, report=RunReport())
        assert tally(node) == (2, 0, 0, 0)
        await node.unload(ADMIN, "m")
        with pytest.raises(UnknownModel, match="'m' is not loaded"):
            node.model_statistics(ADMIN, "m", "")
        await node.load(ADMIN, "m")
        assert tally(node) == (0, 0, 0, 0)


async def test_each_version_has_its_own(world: World) -> None:
    world.add(version=2, manifest='versions = "all"\n')
    async with world.started(startup_models=("m",)) as node:
        await run(world, node, 1, 2, report=RunReport())
        await run(world, node, 1, 2, report=RunReport(), version="1")
        await run(world, node, 1, 2, report=RunReport(), version="1")
        counts = {e.version: e.success.count for e in node.model_statistics(ADMIN, "m", "")}
        assert counts == {"1": 2, "2": 1}
        assert of(node, version="1").success.count == 2
        with pytest.raises(UnknownModel, match="version 3"):
            node.model_statistics(ADMIN, "m", "3")
        with pytest.raises(InvalidRequest):
            node.model_statistics(ADMIN, "m", "one")


async def test_a_lost_device_takes_no_counters_along(world: World) -> None:
    async with world.started(startup_models=("m",)) as node:
        await run(world, node, 1, 2, report=RunReport())
        world.life.end("signal 9")
        await world.wait_ready(is_ready=False)
        assert tally(node) == (1, 0, 0, 0)
        await world.wait_ready()
        assert tally(node) == (1, 0, 0, 0)
