"""The node: what a call goes through between the front door and a device.

    limits -> model -> validation -> priority -> deadline -> memory -> submit -> reply

Everything up to `submit` happens without an `await`, but for saying why a model does not serve, and
for reading shared memory and large tensors, after which the model is looked at again. So a request
is either refused whole or in the device's hands, and a model that served when it was looked up
still serves when the request gets there. It must not know protobuf or gRPC, and never sees a
weight.

Invariant: a request that was submitted ends in exactly one reply or one error, and its memory is
released exactly once (`device_link.py` says when).
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

import gpumuxd
from gpumuxd.clock import Clock, monotonic_ns
from gpumuxd.core.placement import Placement
from gpumuxd.errors import (
    DeviceLost,
    Draining,
    InvalidRequest,
    ModelNotReady,
    PermissionDenied,
    QueueFull,
    SequenceLost,
    WrongMode,
    limit_facts,
)
from gpumuxd.models.repository import Repository
from gpumuxd.node.api import (
    DeviceView,
    DrainedModel,
    ExplanationView,
    IndexEntry,
    InferCall,
    InferReply,
    ModelDetail,
    ModelStatistics,
    ModelView,
    NodeView,
    RecordingEnd,
    Tenant,
    UnloadedReplica,
)
from gpumuxd.node.blame import Blame, Death, Verdict
from gpumuxd.node.child_process import SPAWN_DEVICE, Spawn, device_environment
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.explaining import explain_model
from gpumuxd.node.journal import Journal
from gpumuxd.node.limits import Limits
from gpumuxd.node.loader_starter import LoaderStarter, SpawnLoader
from gpumuxd.node.loading import Loading
from gpumuxd.node.memory_view import DeviceMemory
from gpumuxd.node.model_page import model_detail
from gpumuxd.node.polling import Polling
from gpumuxd.node.readiness import status_reason
from gpumuxd.node.recording import check_limits
from gpumuxd.node.registry import Registry
from gpumuxd.node.replay import Requests
from gpumuxd.node.sequences import Sequences
from gpumuxd.node.settings import NodeSettings, RepositoryMode
from gpumuxd.node.shared_memory import SharedMemory
from gpumuxd.node.standby import Standby
from gpumuxd.node.startup import Startup
from gpumuxd.node.supervisor import DeviceSupervisor
from gpumuxd.node.tenants import TenantDirectory
from gpumuxd.settings import DeviceSettings
from gpumuxd.units import NS_PER_S

DRAINING_RETRY_DELAY_NS = 2 * NS_PER_S
"""Told to whom a daemon that stops refuses. One that is started again at once is not up sooner."""

CALLS_CHANGING_MODELS_MAX = 1024
"""Calls that wait for a load or an unload. Loads of one name are one, but every call is held."""

_log = structlog.get_logger()


class Node:
    """Implements `api.NodeApi`. Made, started and stopped on one event loop."""

    def __init__(
        self,
        settings: NodeSettings,
        clock: Clock = monotonic_ns,
        spawn_device: Spawn = SPAWN_DEVICE,
        spawn_spare: Spawn | None = None,
        spawn_loader: SpawnLoader | None = None,
        on_readiness: Callable[[bool], None] = lambda is_ready: None,
    ) -> None:
        """`on_readiness` hears of each change of `is_ready`. Loaders come from a starter of its
        own unless told otherwise; no device child stands by where `spawn_spare` is None."""
        self.tenants = TenantDirectory(settings.tenants)
        self._settings = settings
        self._clock = clock
        self._standby = Standby(spawn_device, spawn_spare if settings.keeps_spare else None)
        self._on_readiness = on_readiness
        self._was_ready = False
        self._calls_changing_models = 0
        self._started_ns = clock()
        self._idle = asyncio.Event()
        self._limits = Limits(self.tenants, self._idle.set)
        self.shared_memory = SharedMemory(settings.shared_memory, self.tenants)
        self._blame = Blame()
        self._is_draining = False
        self._is_cut = False
        self.requests_cut: Counter[tuple[str, str]] = Counter()  # by tenant and model
        self._is_held = False  # by an operator, until it is told otherwise
        self._devices = {
            device.device: DeviceSupervisor(
                device,
                settings.restart,
                clock,
                self._make_link,
                self._device_started,
                self._device_changed,
            )
            for device in settings.devices
        }
        assert len(self._devices) == len(settings.devices), "device names are unique"
        is_polling = settings.repository_mode is RepositoryMode.POLL
        self._loader_starter: LoaderStarter | None = None
        if spawn_loader is None:
            self._loader_starter = LoaderStarter(settings.restart, clock)
            spawn_loader = self._loader_starter.spawn
        self._journal = Journal(None if is_polling else settings.journal_path)
        self._loading = Loading(settings.loader, spawn_loader)
        self._registry = Registry(
            [Repository(path) for path in settings.repository_paths],
            self._loading,
            self.tenants,
            self._links,
            self._journal,
            Placement(settings.placement),
            clock,
            settings.recovery,
            self._blame,
        )
        self._registry.draining.on_change = self._tell_readiness
        self._registry.loads.on_change = self._tell_readiness
        self._requests = Requests(self._registry, self._blame, settings.recovery, clock)
        self._sequences = Sequences(self._requests, self._registry, self.tenants, clock)
        self.polling = (
            Polling(self._registry.catalogue, self._registry.loads, settings.poll_ns)
            if is_polling
            else None
        )
        self._startup = Startup(
            settings.startup_models,
            self._registry,
            self._journal,
            self.polling,
            self._tell_readiness,
            settings.poll_ns,
        )

    # Life

    async def start(self) -> None:
        """Start all devices; return when each is up. Raises DeviceLost when one can't start."""
        await self._journal.open()
        if self._loader_starter is not None:
            self._loader_starter.start()
        results = await asyncio.gather(
            *(device.start() for device in self._devices.values()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def load_startup_models(self) -> Mapping[str, str]:
        """Load them all; what can't be loaded is returned with its reason, the rest serves."""
        return await self._startup.load_models()

    async def wait_failed(self) -> None:
        """Never returns. Raises what ended the care for a device or for the repositories: a bug,
        after which the daemon had better start anew than serve on without it."""
        await asyncio.gather(
            self._startup.wait_failed(),
            *(device.wait_failed() for device in self._devices.values()),
        )

    def apply(self, settings: NodeSettings) -> None:
        """Take over what can change while it serves: tenants, and times that are the parent's. All
        else that differs waits for the next start."""
        changed = self.tenants.change(settings.tenants)
        self.shared_memory.keep([tenant.name for tenant in self.tenants.tenants])
        for device in self._devices.values():
            device.set_tenants(changed)
        self._loading.set_read_limit(settings.loader.read_ns_max)
        self._startup.retry_ns = settings.poll_ns
        if self.polling is not None:
            self.polling.interval_ns = settings.poll_ns

    async def drain(self) -> None:
        """Admit nothing from now on; return when what was admitted has ended."""
        self._is_draining = True
        self._startup.stop()
        self._tell_readiness()
        for link in self._links().values():
            if link is not None:
                link.stop_recording()
        while self._limits.requests_in_flight:
            self._idle.clear()
            await self._idle.wait()
        await self._give_up_loads()

    async def cut(self) -> None:
        """Admit nothing, and end what was admitted now. Whoever waits is told that it may be sent
        again, and counted in `requests_cut`."""
        self._is_draining = True
        self._is_cut = True
        self._requests.end()
        self._tell_readiness()
        for device in self._devices.values():
            device.kill()
        await asyncio.gather(*(device.stop() for device in self._devices.values()))
        await self._give_up_loads()

    async def _give_up_loads(self) -> None:
        """Nobody will be served by what they load: who waits for them is told so. Loaders end with
        their starter, also with one that stands still."""
        self._registry.loads.is_ending = True
        if self._loader_starter is not None:
            self._loader_starter.close()
        await self._registry.loads.close()

    async def stop(self) -> None:
        """End the devices, after what they have in flight. Idempotent."""
        self._is_draining = True
        self._registry.loads.is_ending = True
        self._requests.end()
        self._tell_readiness()
        self._sequences.close()
        self.shared_memory.keep(())
        await self._startup.close()
        self._standby.close()
        await asyncio.gather(*(device.stop() for device in self._devices.values()))
        await self._registry.close()
        if self._loader_starter is not None:
            self._loader_starter.close()

    @property
    def requests_in_flight(self) -> int:
        return self._limits.requests_in_flight

    # NodeApi

    def is_ready(self) -> bool:
        return (
            not self._is_draining
            and not self._is_held
            and not self._startup.is_trying
            and all(device.state == "ready" for device in self._devices.values())
            and all(self._registry.is_serving(name) for name in self._startup.models)
        )

    def is_model_ready(self, tenant: Tenant, name: str, version: str) -> bool:
        is_admitting = not self._is_draining and not self._is_held
        return is_admitting and self._registry.is_ready(tenant, name, version)

    async def model_view(self, tenant: Tenant, name: str, version: str) -> ModelView:
        return await self._registry.view(tenant, name, version)

    async def model_detail(self, tenant: Tenant, name: str, version: str) -> ModelDetail:
        versions = await self._registry.versions(tenant, name, version)
        return await model_detail(name, versions, tenant, self.tenants)

    async def explain(
        self, tenant: Tenant, name: str, version: str, sizes: Mapping[str, int]
    ) -> ExplanationView:
        return await explain_model(
            await self._registry.versions(tenant, name, version), tenant, sizes
        )

    def model_statistics(
        self, tenant: Tenant, name: str, version: str
    ) -> Sequence[ModelStatistics]:
        return self._registry.statistics.read(tenant, name, version)

    async def memory(self, tenant: Tenant) -> Sequence[DeviceMemory]:
        return await self._registry.memory(tenant, self._links())

    def count_refused(self, tenant: Tenant, name: str, version: str, arrived_ns: int) -> None:
        self._registry.statistics.count_refused(tenant, name, version, arrived_ns)

    async def index(self, tenant: Tenant) -> Sequence[IndexEntry]:
        return await self._registry.index(tenant)

    def view(self) -> NodeView:
        return NodeView(
            version=gpumuxd.__version__,
            started_ns=self._started_ns,
            now_ns=self._clock(),
            devices=tuple(map(self._device_view, self._devices.values())),
            reason=status_reason(
                "stopping" if self._is_draining else "drained" if self._is_held else "",
                self._devices.values(),
                self._registry,
                self._startup,
            ),
        )

    async def load(self, tenant: Tenant, name: str) -> None:
        self._check_admitting()
        self._check_explicit()
        with self._changing_models():
            await self._registry.load(tenant, name)
        self._tell_readiness()

    async def unload(self, tenant: Tenant, name: str) -> Sequence[UnloadedReplica]:
        self._check_admitting(also_held=True)
        self._check_explicit()
        with self._changing_models():
            unloaded = await self._registry.unload(tenant, name)
        self._tell_readiness()
        return unloaded

    @contextlib.contextmanager
    def _changing_models(self) -> Iterator[None]:
        """One more call that loads or unloads. Raises QueueFull."""
        if self._calls_changing_models >= CALLS_CHANGING_MODELS_MAX:
            raise QueueFull(
                f"{self._calls_changing_models} loads and unloads are waited for already, which is "
                "the limit; retry",
                limit_facts(
                    "calls_changing_models_max",
                    CALLS_CHANGING_MODELS_MAX,
                    "calls",
                    current=self._calls_changing_models,
                    asked=1,
                ),
            )
        self._calls_changing_models += 1
        try:
            yield
        finally:
            self._calls_changing_models -= 1

    async def drain_device(self, tenant: Tenant, device: str) -> Sequence[DrainedModel]:
        self._check_drainable(tenant, device)
        self._check_admitting(also_held=True)
        if device:
            return await self._registry.draining.drain(device)
        self._is_held = True
        self._tell_readiness()
        return ()

    async def undrain_device(self, tenant: Tenant, device: str) -> Sequence[DrainedModel]:
        self._check_drainable(tenant, device)
        self._check_admitting(also_held=True)
        if device:
            fates = await self._registry.draining.undrain(device)
        else:
            self._is_held, fates = False, ()
        self._tell_readiness()
        return fates

    def record(
        self, tenant: Tenant, device: str, duration_ns: int, bytes_max: int
    ) -> AsyncGenerator[bytes | RecordingEnd, None]:
        if not tenant.is_admin:
            raise PermissionDenied(f"tenant {tenant.name!r} is not an admin")
        self._check_admitting()
        check_limits(duration_ns, bytes_max)
        return self._link_of(device).record(bytes_max).parts(duration_ns)

    async def infer(self, call: InferCall) -> InferReply:
        return await self._registry.statistics.count(call, self._infer(call))

    async def _infer(self, call: InferCall) -> InferReply:
        self._check_admitting()
        with self.shared_memory.holding(call) as held:
            return await self._infer_held(held)

    async def _infer_held(self, call: InferCall) -> InferReply:
        input_bytes = sum([tensor.size_bytes for tensor in call.inputs])
        ticket = self._limits.admit(call.tenant, input_bytes)
        try:
            if call.sequence is not None:
                return await self._sequences.run(call, ticket)
            replica = self._registry.replica(call.tenant, call.model, call.version, call.priority)
            if replica is None:
                await self._registry.raise_absence(call.tenant, call.model, call.version)
            return await self._requests.run(call, ticket, replica)
        except (DeviceLost, Draining, ModelNotReady, SequenceLost) as error:
            if not self._is_cut:
                raise
            self.requests_cut[call.tenant.name, call.model] += 1
            reason = "the daemon stops, and this request was not done in time"
            raise Draining(reason, error.facts, DRAINING_RETRY_DELAY_NS) from None
        finally:
            ticket.close()

    # Who may

    def _check_admitting(self, also_held: bool = False) -> None:
        if self._is_draining:
            reason = "the daemon is stopping and takes nothing new"
            raise Draining(reason, retry_delay_ns=DRAINING_RETRY_DELAY_NS)
        if self._is_held and not also_held:
            raise Draining("the node was drained by its operator and takes nothing new for now")

    def _check_drainable(self, tenant: Tenant, device: str) -> None:
        if not tenant.is_admin:
            raise PermissionDenied(f"tenant {tenant.name!r} is not an admin")
        if device and device not in self._devices:
            raise InvalidRequest(f"expected a device of {', '.join(self._devices)}, got {device!r}")

    def _check_explicit(self) -> None:
        if self.polling is not None:
            raise WrongMode(
                "models follow the repository here ([repository] mode is 'poll'): publish or "
                "remove its files instead"
            )

    # Devices

    def _make_link(self, settings: DeviceSettings) -> DeviceLink:
        return DeviceLink(
            settings,
            self._settings.link,
            self.tenants.tenants,
            self._clock,
            self._standby.spawn,
            self._registry.bound_watch.hear,
            self._judge,
        )

    def _judge(self, death: Death) -> Verdict:
        """Who is to blame for the end of a device; a version that is too often is not served."""
        verdict = self._blame.judge(death)
        if verdict.culprit is not None:
            self._registry.quarantine.blame(
                death.suspects[verdict.culprit], f"{death.device} ended: {death.how}"
            )
        return verdict

    def _device_view(self, device: DeviceSupervisor) -> DeviceView:
        view = device.view()
        drain = self._registry.draining.state(view.name)
        return replace(view, state=drain) if drain and view.state == "ready" else view

    def _links(self) -> Mapping[str, DeviceLink | None]:
        return {name: device.link for name, device in self._devices.items()}

    def _link_of(self, device: str) -> DeviceLink:
        """Of the device of this name, or of the only one. Raises InvalidRequest or DeviceLost."""
        links = self._links()
        name = device or (next(iter(links)) if len(links) == 1 else "")
        if name not in links:
            got = f", got {device!r}" if device else ": name one"
            raise InvalidRequest(f"expected a device of {', '.join(links)}{got}")
        link = links[name]
        if link is None:
            raise DeviceLost(f"device {name} is not up; retry")
        return link

    async def _device_started(self, link: DeviceLink) -> None:
        await self._registry.recovery.handle_device_started(link)
        self._registry.loads.fill_all()
        self._registry.draining.handle_device_started(link.settings.device)

    def _device_changed(self, device: DeviceSupervisor) -> None:
        if device.state == "lost":
            self._registry.recovery.handle_device_lost(device.settings.device, device.lost_reason)
        elif device.state == "ready":
            self._standby.prepare(device_environment(device.settings.threads))
        self._tell_readiness()

    def _tell_readiness(self) -> None:
        is_ready = self.is_ready()
        if is_ready != self._was_ready:
            self._was_ready = is_ready
            _log.info("readiness", is_ready=is_ready)
            self._on_readiness(is_ready)
