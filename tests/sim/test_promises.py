"""What the daemon promises, shown in worlds where nothing goes wrong.

With true estimates, no host cost and no faults, admission has no excuse: an admitted REALTIME
request is in time. And one small world shows what slicing buys and costs: a best-effort tenant
saturates the device, a REALTIME one comes now and then.
"""

from dataclasses import replace

import pytest

from gpumuxd.commands import Command, Finish
from gpumuxd.domain import OutcomeKind, PriorityClass, RunReport
from gpumuxd.events import Event, ModelProfile, RequestArrived
from gpumuxd.settings import Order, SchedulerSettings, Slicing
from gpumuxd.testing.parameters import (
    ClientParameters,
    DeviceParameters,
    FaultParameters,
    ModelParameters,
    Parameters,
    TenantParameters,
)
from gpumuxd.testing.runner import run
from gpumuxd.testing.swarm import draw
from gpumuxd.units import NS_PER_MS, NS_PER_US
from tests.sim.broken import Bent

NO_FAULTS = FaultParameters(
    end_ns=0,
    noise_sigma=0.0,
    slow_ppm=0,
    late_ppm=0,
    late_ns_max=0,
    failure_ppm=0,
    storms_ns=(),
    lost_ns=None,
    restart_ns=0,
    reloads=(),
    reweights=(),
)


Fates = dict[PriorityClass, list[tuple[OutcomeKind, RunReport]]]


class Listening(Bent):
    """Keeps what requests of each class met."""

    def __init__(self, settings: SchedulerSettings, fates: Fates) -> None:
        super().__init__(settings)
        self.fates = fates
        self.classes: dict[int, PriorityClass] = {}

    def bend_event(self, event: Event) -> Event | None:
        if isinstance(event, RequestArrived):
            self.classes[event.request_id] = event.priority_class
        return event

    def bend_commands(self, commands: list[Command]) -> list[Command]:
        for command in commands:
            if isinstance(command, Finish):
                met = self.fates.setdefault(self.classes[command.request_id], [])
                met.append((command.outcome.kind, command.report))
        return commands


def listen(world: Parameters) -> Fates:
    """Run a world with all checkers and return what requests met, by class."""
    fates: Fates = {}
    run(world, lambda settings: Listening(settings, fates))
    return fates


def exact(model: ModelParameters) -> ModelParameters:
    """The same model, with the truth as its profile."""
    runs = {bucket: sum(times) for bucket, times in model.group_ns.items()}
    profile = ModelProfile(model.group_count, model.group_ns, runs)
    return replace(model, profile=profile, profile_runs=0, uploads=0)


def ideal(device: DeviceParameters, share_ppm: int = 0) -> DeviceParameters:
    """The same device, with true estimates, frames for all and nothing in the way but, maybe, a
    share for best-effort work."""
    return replace(
        device,
        settings=replace(
            device.settings,
            slicing=Slicing.ADAPTIVE,
            order=Order.POLICY,
            frames_max=64,
            frames_reserved=8,
            memory_bytes_max=1 << 40,
            best_effort_share_min_ppm=share_ppm,
        ),
        round_trip_ns=0,
        launch_cost_ns=0,
        loop_cost_ns=0,
        models=tuple(map(exact, device.models)),
        tenants=tuple(replace(tenant, realtime_per_s=None) for tenant in device.tenants),
        faults=NO_FAULTS,
    )


@pytest.mark.parametrize("share_ppm", [0, 50_000, 300_000])
def test_an_admitted_realtime_request_is_in_time(share_ppm: int) -> None:
    completed = refused = 0
    for seed in range(1, 16 if share_ppm else 31):
        drawn = draw(seed)
        devices = tuple(ideal(device, share_ppm) for device in drawn.devices)
        fates = listen(Parameters(seed, devices))
        kinds = [kind for kind, _ in fates.get(PriorityClass.REALTIME, [])]
        assert OutcomeKind.DEADLINE_MISSED not in kinds, f"seed {seed}"
        completed += kinds.count(OutcomeKind.COMPLETED)
        refused += kinds.count(OutcomeKind.DEADLINE_INFEASIBLE)
    assert completed > 50, "the worlds show nothing"
    assert refused >= 5, "the worlds were never tight"


BOUND_NS = NS_PER_MS
GROUP_NS = 100 * NS_PER_US
VOICE_DEADLINE_NS = 60 * NS_PER_MS


def shared_device(slicing: Slicing, voice_requests: int = 50) -> Parameters:
    """A best-effort model of 20 ms that is never out of work, a voice model of 1 ms."""
    slow = _model("slow", PriorityClass.BEST_EFFORT, (GROUP_NS,) * 200)
    voice = _model("voice", PriorityClass.REALTIME, (GROUP_NS,) * 10)
    device = DeviceParameters(
        name="cpu:0",
        # Five groups are a slice as long as half the bound.
        settings=SchedulerSettings(
            slicing=slicing, slicing_operators=5, preemption_delay_ns_max=BOUND_NS
        ),
        round_trip_ns=80 * NS_PER_US,
        launch_cost_ns=5 * NS_PER_US,
        loop_cost_ns=15 * NS_PER_US,
        has_high_lane=False,
        is_contended=False,
        horizon_ns=1_000 * NS_PER_MS,
        models=(slow, voice),
        tenants=(TenantParameters("batch", 1, None, 1), TenantParameters("phone", 1, None, 1)),
        clients=(
            _client("batch", "slow", PriorityClass.BEST_EFFORT, "closed", 1_000, None),
            _client(
                "phone",
                "voice",
                PriorityClass.REALTIME,
                "poisson",
                voice_requests,
                VOICE_DEADLINE_NS,
            ),
        ),
        faults=NO_FAULTS,
    )
    return Parameters(1, (device,))


def _model(name: str, class_max: PriorityClass, group_ns: tuple[int, ...]) -> ModelParameters:
    drawn = ModelParameters(
        name=name,
        class_max=class_max,
        slo_ns=None,
        group_ns={(1,): group_ns},
        estimates="exact",
        profile=ModelProfile(len(group_ns)),
        profile_runs=0,
        uploads=0,
        weights_bytes=1,
        frame_bytes=1,
    )
    return exact(drawn)


def _client(
    tenant: str,
    model: str,
    priority_class: PriorityClass,
    pattern: str,
    requests: int,
    deadline_ns: int | None,
) -> ClientParameters:
    return ClientParameters(
        name=tenant,
        tenant=tenant,
        model=model,
        priority_class=priority_class,
        pattern=pattern,
        width=3,
        interval_ns=20 * NS_PER_MS,
        requests=requests,
        deadline_ns=deadline_ns,
        cancel_ppm=0,
        vanish_ns=None,
    )


def voice_delays_ns(slicing: Slicing) -> list[int]:
    fates = listen(shared_device(slicing))[PriorityClass.REALTIME]
    return sorted(report.queue_ns for kind, report in fates if kind is OutcomeKind.COMPLETED)


def test_a_realtime_request_starts_within_the_bound_and_without_slicing_it_does_not() -> None:
    """Host costs and the hop from the parent (50 us at most) come on top of the bound, and a
    request behind its own kind waits for that too, so the median is what is compared."""
    cut, whole = voice_delays_ns(Slicing.ADAPTIVE), voice_delays_ns(Slicing.NONE)
    assert len(cut) > 20
    assert len(whole) > 20
    assert cut[len(cut) // 2] <= BOUND_NS + 200 * NS_PER_US
    assert whole[len(whole) // 2] > 5 * BOUND_NS


@pytest.mark.parametrize("slicing", [Slicing.ADAPTIVE, Slicing.NONE, Slicing.WINDOW])
def test_best_effort_work_keeps_the_device_busy(slicing: Slicing) -> None:
    """Nobody preempts, but somebody could: the round trip stays hidden behind the window."""
    world = shared_device(slicing, voice_requests=0)
    fates = listen(world)[PriorityClass.BEST_EFFORT]
    busy_ns = sum(report.compute_ns for _, report in fates)
    elapsed_ns = run(world).virtual_ns
    assert busy_ns >= 0.95 * elapsed_ns
