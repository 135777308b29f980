"""The figures of a device at this moment, as its link asks for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpumuxd.clock import monotonic_ns
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.settings import LinkSettings
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB, NS_PER_MS, NS_PER_S
from gpumuxd.wire import frames
from tests.node.fakes import FakeDevice, FakeLife


class TellingDevice(FakeDevice):
    """Tells how often it was asked, as its bound; or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.is_deaf = False

    def respond(self, life: FakeLife, frame: frames.AnyFrame) -> None:
        if not isinstance(frame, frames.AskStatistics):
            super().respond(life, frame)
        elif not self.is_deaf:
            self.asked += 1
            life.send(frames.Statistics(*[0] * 10, self.asked, 2, 0))


@asynccontextmanager
async def linked(device: FakeDevice, patience_ns: int) -> AsyncIterator[DeviceLink]:
    # Asked for by nobody else meanwhile: the watcher's turn is an hour away.
    limits = LinkSettings(ping_interval_ns=3600 * NS_PER_S, statistics_interval_ns=patience_ns)
    settings = DeviceSettings(arena_bytes=MIB)
    link = DeviceLink(settings, limits, (), monotonic_ns, device.spawn)
    try:
        await link.wait_started()
        yield link
    finally:
        await link.stop()


async def test_each_question_is_answered_anew_and_those_of_one_moment_together() -> None:
    device = TellingDevice()
    async with linked(device, 10 * NS_PER_S) as link:
        for asked in (1, 2):
            figures = await asyncio.gather(*(link.fresh_statistics() for _ in range(3)))
            assert [each.bound_ns for each in figures if each] == [asked] * 3


async def test_a_device_that_does_not_answer_is_not_waited_for() -> None:
    device = TellingDevice()
    async with linked(device, NS_PER_MS) as link:
        device.is_deaf = True
        assert await link.fresh_statistics() is None
        device.is_deaf = False
        device.life.send(frames.Statistics(*[0] * 10, 77, 2, 0))
        async with asyncio.timeout(10):
            while (figures := await link.fresh_statistics()) is None:
                pass
        assert figures.bound_ns in (1, 77)
        device.is_deaf = True
        again = await link.fresh_statistics()
        assert again is not None, "what it said last"


async def test_a_device_that_ends_has_no_figures() -> None:
    device = TellingDevice()
    async with linked(device, 10 * NS_PER_S) as link:
        assert await link.fresh_statistics() is not None
        device.is_deaf = True
        waiting = asyncio.ensure_future(link.fresh_statistics())
        await asyncio.sleep(0)
        device.life.end("signal SIGSEGV")
        async with asyncio.timeout(5):  # less than its patience
            assert await waiting is None
        assert await link.fresh_statistics() is None
