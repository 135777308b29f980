"""Supervision: life after life, and a bug in it that is not kept quiet."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from gpumuxd.clock import monotonic_ns
from gpumuxd.errors import DeviceLost
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.settings import LinkSettings, RestartSettings
from gpumuxd.node.supervisor import DeviceSupervisor
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import MIB
from tests.node.fakes import WAIT_S, FakeDevice

SETTINGS = DeviceSettings("cpu:0", arena_bytes=MIB)


class Bug(Exception):
    pass


def make_supervisor(
    device: FakeDevice, states: list[str], on_started: Callable[[DeviceLink], None]
) -> DeviceSupervisor:
    async def started(link: DeviceLink) -> None:
        on_started(link)

    return DeviceSupervisor(
        SETTINGS,
        RestartSettings(delay_ns_first=1, delay_ns_max=1),
        monotonic_ns,
        lambda settings: DeviceLink(settings, LinkSettings(), (), monotonic_ns, device.spawn),
        started,
        lambda supervisor: states.append(supervisor.state),
    )


async def test_states_of_two_lives() -> None:
    device, states, links = FakeDevice(), list[str](), list[DeviceLink]()
    supervisor = make_supervisor(device, states, links.append)
    assert supervisor.link is None
    await supervisor.start()
    assert supervisor.link is links[0]
    device.life.end("signal SIGSEGV")
    async with asyncio.timeout(WAIT_S):
        assert await links[0].wait_ended() == "signal SIGSEGV"
    assert supervisor.link is None
    life = await device.wait_lives(2)
    await supervisor.stop()
    assert life.is_reaped
    assert states[:3] == ["ready", "lost", "starting"]
    assert states[-1] == "stopped"
    assert supervisor.restarts == 1
    assert len(device.lives) == 2


async def test_a_device_that_can_not_start_at_all_is_not_started_again() -> None:
    device = FakeDevice()
    device.ends_at_start = True
    supervisor = make_supervisor(device, [], lambda _: None)
    with capture_logs() as lines:
        with pytest.raises(DeviceLost, match="exit code 1"):
            await supervisor.start()
        async with asyncio.timeout(WAIT_S):
            await supervisor.wait_failed()
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("device_not_started", "exit code 1")
    ]
    assert len(device.lives) == 1
    await supervisor.stop()


async def test_a_bug_in_supervision_is_raised_to_whoever_waits() -> None:
    device = FakeDevice()

    def break_second_life(link: DeviceLink) -> None:
        if len(device.lives) == 2:
            raise Bug

    supervisor = make_supervisor(device, [], break_second_life)
    await supervisor.start()
    device.life.end("signal SIGSEGV")
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(Bug):
            await supervisor.wait_failed()
    await supervisor.stop()


async def test_a_bug_in_the_first_life_fails_the_start() -> None:
    def break_it(link: DeviceLink) -> None:
        raise Bug

    supervisor = make_supervisor(FakeDevice(), [], break_it)
    with pytest.raises(Bug):
        await supervisor.start()
    await supervisor.stop()


async def test_a_device_that_served_a_while_is_started_again_as_soon_as_ever() -> None:
    device, links, now = FakeDevice(), list[DeviceLink](), [0]
    ready = asyncio.Queue[str]()

    async def started(link: DeviceLink) -> None:
        links.append(link)

    def changed(supervisor: DeviceSupervisor) -> None:
        if supervisor.state == "ready":
            ready.put_nowait(supervisor.state)

    supervisor = DeviceSupervisor(
        SETTINGS,
        RestartSettings(delay_ns_first=1, served_ns=100),
        lambda: now[0],
        lambda settings: DeviceLink(settings, LinkSettings(), (), monotonic_ns, device.spawn),
        started,
        changed,
    )
    await supervisor.start()
    await ready.get()
    device.life.end("signal SIGKILL")
    async with asyncio.timeout(WAIT_S):
        await ready.get()
    assert links[1].recovery_ns() == 2, "the one before fell at once"
    now[0] += 99
    assert links[1].recovery_ns() == 2
    now[0] += 1
    assert links[1].recovery_ns() == 1
    await supervisor.stop()
