"""Which models the log names because they can't keep the bound, when, and how often."""

import asyncio
import itertools
import os
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from gpumuxd.node.node import Node
from gpumuxd.node.settings import LinkSettings
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from gpumuxd.units import NS_PER_S
from gpumuxd.wire import frames
from gpumuxd.wire.frames import LongGroup
from tests.node.fakes import WAIT_S, FakeLife, add_model
from tests.node.world import ADMIN, CPU_0, World

US = 1000
LONG_US = {"quick": 40, "slow": 5_000}
"""The longest group of each model at batch 1; at batch 8 it takes eight times as long."""

QUIET = LinkSettings(statistics_interval_ns=1000 * NS_PER_S, silence_ns_max=10**12)
"""A device is asked for its figures by tests alone."""


def load_measured(life: FakeLife, frame: frames.LoadModel) -> None:
    longest_ns = LONG_US[frame.model.partition("/")[0]] * US
    groups = tuple((LongGroup(4, rows * longest_ns, 12, 15),) for rows in (1, 8))
    runs = (((1,), 3 * longest_ns), ((8,), 24 * longest_ns))
    life.send(frames.ModelLoaded(frame.model, 9, 8 * longest_ns, runs, 64, 128, False, groups))


class Watched:
    """A node, what its device says, and what the log says of that."""

    _numbers = itertools.count(1)

    def __init__(self, world: World, node: Node, lines: list[MutableMapping[str, Any]]) -> None:
        self._world = world
        self._node = node
        self._lines = lines

    async def hear(
        self, bound_us: int, origin: str, model: str = "", laxity_us: int | None = None
    ) -> list[tuple[str, str]]:
        """The device tells its bound: what the log says then, by model and whose laxity it is."""
        del self._lines[:]
        number = next(self._numbers)
        loads = [frame.model for frame in self._world.life.of(frames.LoadModel)]
        key = next((key for key in reversed(loads) if key.startswith(f"{model}/")), "")
        self._world.life.send(
            structs.replace(
                frames.Statistics(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
                queued=number,
                bound_ns=bound_us * US,
                bound_origin=origin,
                bound_model=key,
                laxity_ns=None if laxity_us is None else laxity_us * US,
                laxity_model=key,
            )
        )
        async with asyncio.timeout(WAIT_S):
            while self._node.view().devices[0].queued != number:
                await asyncio.to_thread(os.sched_yield)
        return [(line["model"], line["bound_model"]) for line in self.warnings]

    @property
    def warnings(self) -> list[MutableMapping[str, Any]]:
        return [line for line in self._lines if line["event"] == "group_longer_than_bound"]


@pytest.fixture
def measured(world: World) -> World:
    world.device.on_load = load_measured
    for name in LONG_US:
        add_model(world.repository, name)
    return world


async def test_the_warning_has_the_numbers_and_both_names(measured: World) -> None:
    with capture_logs() as lines:
        async with measured.started(link=QUIET, startup_models=("quick", "slow")) as node:
            watched = Watched(measured, node, lines)
            assert await watched.hear(2_000, "laxity", "quick") == [("slow/1", "quick/1")]
            (line,) = watched.warnings
    assert (line["log_level"], line["device"], line["bound"]) == ("warning", "cpu:0", "laxity")
    assert (line["group"], line["nodes"], line["sizes"]) == (4, "nodes 12 .. 14", [8])
    assert (line["longest_group_us"], line["bound_us"]) == (40_000, 2_000)
    assert "can delay urgent work by 40.00 ms" in line["meaning"]
    assert "raise slo_ms of quick/1" in line["advice"]


async def test_each_cause_is_told_once_however_the_bound_moves(measured: World) -> None:
    with capture_logs() as lines:
        async with measured.started(link=QUIET, startup_models=("quick", "slow")) as node:
            watched = Watched(measured, node, lines)
            slow = ("slow/1", "")
            for bound_us, origin, model, told in [
                (40_000, "slice_ns_max", "", []),
                (39_999, "slice_ns_max", "", [slow]),
                (39_999, "slice_ns_max", "", []),
                (1_000, "slice_ns_max", "", []),
                (50_000, "slice_ns_max", "", []),
                (1_000, "slice_ns_max", "", []),
                # another cause is news, and one that comes back is none
                (5_000, "laxity", "quick", [("slow/1", "quick/1")]),
                (1_000, "slice_ns_max", "", []),
                (4_000, "laxity", "quick", []),
                # of the model that was quick enough until now too
                (300, "laxity", "slow", [("quick/1", "slow/1"), ("slow/1", "slow/1")]),
                (200, "laxity", "slow", []),
            ]:
                assert await watched.hear(bound_us, origin, model) == told, (bound_us, origin)


async def test_an_slo_that_a_long_group_breaks_is_told_with_both_models(measured: World) -> None:
    """Not as a bound of `slice_ms_max`, which is not kept then and which raising would not help."""
    with capture_logs() as lines:
        async with measured.started(link=QUIET, startup_models=("quick", "slow")) as node:
            watched = Watched(measured, node, lines)
            assert await watched.hear(2_000, "slice_ns_max", "quick", laxity_us=39_000) == []
            (line,) = [line for line in lines if line["event"] == "slo_not_kept"]
            assert (line["model"], line["laxity_model"]) == ("slow/1", "quick/1")
            assert (line["group"], line["longest_group_us"], line["laxity_us"]) == (
                4, 40_000, 39_000,
            )  # fmt: skip
            assert "more than the laxity of quick/1, 39.00 ms" in line["meaning"]
            assert "raise slo_ms of quick/1 by 1.00 or more" in line["advice"]
            assert "slice_ms_max" not in line["advice"]
            await watched.hear(2_000, "slice_ns_max", "quick", laxity_us=1_000)
            assert [line["event"] for line in lines if line.get("model") == "slow/1"] == []
            assert await watched.hear(2_000, "slice_ns_max", "quick", laxity_us=40_000) == [
                ("slow/1", "")
            ], "it leaves room for the group, and the bound is what it breaks"


async def test_an_slo_shorter_than_the_own_run_is_told_of_once(measured: World) -> None:
    add_model(measured.repository, "quick", manifest="slo_ms = 0.1")
    with capture_logs() as lines:
        async with measured.started(link=QUIET, startup_models=("quick", "slow")) as node:
            watched = Watched(measured, node, lines)
            for times in (1, 0):
                assert await watched.hear(0, "least_delay") == []
                told = [line for line in lines if line["event"] == "slo_impossible"]
                assert [line["model"] for line in told] == ["quick/1"] * times


async def test_a_later_model_that_tightens_the_bound_is_named_with_the_earlier(
    measured: World,
) -> None:
    with capture_logs() as lines:
        async with measured.started(link=QUIET, startup_models=("slow",)) as node:
            watched = Watched(measured, node, lines)
            assert await watched.hear(60_000, "slice_ns_max") == []
            await node.load(ADMIN, "quick")
            assert await watched.hear(9_000, "laxity", "quick") == [("slow/1", "quick/1")]


async def test_what_is_loaded_anew_is_told_of_anew(measured: World) -> None:
    with capture_logs() as lines:
        async with measured.started(link=QUIET, startup_models=("slow",)) as node:
            watched = Watched(measured, node, lines)
            assert await watched.hear(100, "slice_ns_max") == [("slow/1", "")]
            await node.unload(ADMIN, "slow")
            assert await watched.hear(100, "slice_ns_max") == []
            await node.load(ADMIN, "slow")
            assert await watched.hear(100, "slice_ns_max") == [("slow/1", "")]


async def test_a_device_that_came_back_says_nothing_new(measured: World) -> None:
    with capture_logs() as lines:
        async with measured.started(link=QUIET, startup_models=("slow",)) as node:
            watched = Watched(measured, node, lines)
            assert await watched.hear(100, "slice_ns_max") == [("slow/1", "")]
            measured.life.end("signal SIGSEGV")
            await measured.device.wait_lives(2)
            await measured.wait_ready()
            assert await watched.hear(100, "slice_ns_max") == []


async def test_sizes_that_nobody_may_ask_for_do_not_count(measured: World) -> None:
    add_model(measured.repository, "slow", manifest="batch_max = 1")
    with capture_logs() as lines:
        async with measured.started(link=QUIET, startup_models=("slow",)) as node:
            watched = Watched(measured, node, lines)
            assert await watched.hear(5_000, "preemption_delay_ns_max") == []
            assert await watched.hear(4_999, "preemption_delay_ns_max") == [("slow/1", "")]
            assert watched.warnings[0]["sizes"] == [1]


@pytest.mark.parametrize(
    ("scheduler", "origin", "told"),
    [
        (SchedulerSettings(), "slice_ns_max", [("slow/1", "")]),
        (SchedulerSettings(), "preemption_delay_ns_max", [("slow/1", "")]),
        # no bound is promised, or none is known
        (SchedulerSettings(), "least_delay", []),
        (SchedulerSettings(), "", []),
        (SchedulerSettings(slicing=Slicing.NONE), "slice_ns_max", []),
        (SchedulerSettings(slicing=Slicing.LAYER), "slice_ns_max", []),
        (SchedulerSettings(order=Order.FIFO), "slice_ns_max", []),
    ],
)
async def test_only_a_bound_that_is_promised_can_be_broken(
    measured: World, scheduler: SchedulerSettings, origin: str, told: list[tuple[str, str]]
) -> None:
    devices = (replace(CPU_0, scheduler=scheduler),)
    with capture_logs() as lines:
        async with measured.started(link=QUIET, devices=devices, startup_models=("slow",)) as node:
            assert await Watched(measured, node, lines).hear(1, origin) == told
