"""The world around one simulated device: its mail, as a parent and its clients would send it.

Clients send requests by their pattern and react to what they hear (a closed loop sends the next
one); faults drain and reload models, storm with cancels, make clients vanish and lose the device.
All draws come from generators of their own, seeded by the run's seed, so that what one client
does hardly depends on the others. It must not know the scheduler: it gives events, and is told of
fates and releases.

Invariant: mail comes out in the order of its time, and nothing new starts after the horizon.
"""

import heapq
import random
from collections.abc import Callable

from gpumuxd.domain import Bucket, CursorKind, Lane, LaneKind, OutcomeKind, PriorityClass
from gpumuxd.events import (
    DeviceLost,
    DeviceMeasured,
    Event,
    ModelDraining,
    ModelProfile,
    ModelReady,
    PartitionChanged,
    RequestArrived,
    RequestCancelled,
    TenantChanged,
)
from gpumuxd.testing.parameters import (
    PPM,
    ClientParameters,
    DeviceParameters,
    ModelParameters,
)

Action = Callable[[int], None]
"""Something that happens at a time and may add mail for that time or later."""

_HOP_NS_MAX = 50_000
"""A request was stamped in the parent up to this long before its event is in the mail."""

_UNKNOWN_REQUEST = 1 << 40
_UNKNOWN_MODEL = "nobody/1"

_RETRY_NS = 1_000_000
_RETRIES = 20
"""After an upload that a fault of the simulation ended: so long at least, so often in a run."""

_UPLOAD_MARK = "@upload"
"""Ends the key of a program that brings weights in."""


def lanes_of(parameters: DeviceParameters) -> tuple[Lane, ...]:
    """The lanes of a simulated device."""
    compute = Lane(0, LaneKind.COMPUTE)
    if parameters.has_high_lane:
        return (compute, Lane(0, LaneKind.COMPUTE_HIGH))
    return (compute,)


class Workload:
    """Everything that happens to one device from outside."""

    def __init__(self, parameters: DeviceParameters, seed: str) -> None:
        self._parameters = parameters
        self._random = random.Random(f"{seed}/workload")
        self._mail: list[tuple[int, int, Event | Action]] = []
        self._numbers = 0
        self._requests = 0
        self._loads = 0
        self._is_restarted = False
        self._lives = 0
        self._models = {model.name: model for model in parameters.models}
        self._key_of_model: dict[str, str] = {}
        self._model_of_key: dict[str, ModelParameters] = {}
        self._reload_after_ns: dict[str, int] = {}
        self._client_of_request: dict[int, Client] = {}
        self._key_of_upload: dict[int, str] = {}  # by request
        self._uploaded: dict[str, bool] = {}  # by key of the upload: did it come to its end
        self._clients = [
            Client(self, client, random.Random(f"{seed}/{client.name}"))
            for client in parameters.clients
        ]

    # For the simulator

    @property
    def next_ns(self) -> int | None:
        """When the next mail comes."""
        return self._mail[0][0] if self._mail else None

    def due(self, now_ns: int) -> list[Event]:
        """The mail that has come."""
        events: list[Event] = []
        mail = self._mail
        while mail and mail[0][0] <= now_ns:
            what = heapq.heappop(mail)[2]
            if callable(what):
                what(now_ns)
            else:
                events.append(what)
        return events

    def model_of(self, key: str) -> ModelParameters:
        """Which model a key names."""
        return self._model_of_key[key]

    def is_upload(self, key: str) -> bool:
        """Is it the program that brings a model's weights in, and not the model?"""
        return key.endswith(_UPLOAD_MARK)

    def start(self) -> None:
        """The device is up for the first time."""
        self._announce(0)
        faults = self._parameters.faults
        for name, drain_ns, reload_after_ns in faults.reloads:
            self._post(drain_ns, self._drain(name, reload_after_ns))
        for storm_ns in faults.storms_ns:
            self._post(storm_ns, self._storm)
        if faults.lost_ns is not None:
            self._post(faults.lost_ns, DeviceLost("a fault of the simulation"))
        for tenant, change_ns, weight in faults.reweights:
            self._post(change_ns, TenantChanged(tenant, weight))
        for client in self._clients:
            client.start()

    def restart(self, now_ns: int) -> None:
        """Another device takes the place of the lost one, and is given all models anew."""
        faults = self._parameters.faults
        again_ns = None if self._is_restarted else faults.lost_again_ns
        if again_ns is not None and now_ns + again_ns < faults.end_ns:
            self._post(now_ns + again_ns, DeviceLost("a second fault of the simulation"))
        self._is_restarted = True
        self._lives += 1
        self._key_of_model.clear()
        self._key_of_upload.clear()
        self._uploaded.clear()
        self._reload_after_ns.clear()
        # What the lost one was about to be given stays with it, however soon the other comes.
        of_the_lost = (ModelReady, ModelDraining)
        self._mail = [each for each in self._mail if not isinstance(each[2], of_the_lost)]
        heapq.heapify(self._mail)
        self._announce(now_ns)

    def finished(self, request_id: int, kind: OutcomeKind, now_ns: int) -> None:
        """A request has its fate."""
        upload = self._key_of_upload.pop(request_id, None)
        if upload is not None:
            self._uploaded[upload] = kind is OutcomeKind.COMPLETED
            if kind is not OutcomeKind.DEVICE_LOST:
                self._post(now_ns, ModelDraining(upload))
            return
        client = self._client_of_request.pop(request_id, None)
        if client is not None:
            client.hear(request_id, kind, now_ns)

    def released(self, key: str, now_ns: int) -> None:
        """A drained model is gone; it comes back under another key."""
        name = self._model_of_key[key].name
        if self.is_upload(key):
            model_key = key.removesuffix(_UPLOAD_MARK)
            if self._uploaded.pop(key):
                self._become_ready(model_key, now_ns)
            else:
                self._load(name, now_ns + max(_RETRY_NS, self.horizon_ns // _RETRIES))
            return
        reload_after_ns = self._reload_after_ns.pop(name, None)
        if reload_after_ns is not None:
            self._load(name, now_ns + reload_after_ns)

    # For clients

    @property
    def horizon_ns(self) -> int:
        return self._parameters.horizon_ns

    def at(self, time_ns: int, action: Action) -> None:
        """Do something at a time."""
        self._post(time_ns, action)

    def send(self, client: "Client", now_ns: int) -> int:
        """A client's request is in the mail."""
        asked = client.parameters
        rng = client.random
        model = self._models[asked.model]
        key = self._key_of_model.get(asked.model, _UNKNOWN_MODEL)
        self._requests += 1
        arrived_ns = max(0, now_ns - rng.randrange(_HOP_NS_MAX))
        deadline_ns = None
        if asked.deadline_ns is not None:
            # Now and then one that has passed already.
            ahead_ns = asked.deadline_ns if rng.random() < 0.97 else -1
            deadline_ns = arrived_ns + ahead_ns
        self._client_of_request[self._requests] = client
        bucket = rng.choice(tuple(model.group_ns))
        self._post(
            now_ns,
            RequestArrived(
                request_id=self._requests,
                tenant=asked.tenant,
                model=key,
                priority_class=asked.priority_class,
                bucket=bucket,
                arrived_ns=arrived_ns,
                deadline_ns=deadline_ns,
                rows=bucket[0],
                batch_key=_batch_key(model, bucket, self._requests),
            ),
        )
        return self._requests

    def cancel(self, request_id: int, time_ns: int) -> None:
        """Nobody waits for this request from then on; it may have ended before."""
        self._post(time_ns, RequestCancelled(request_id))

    # Inside

    def _post(self, time_ns: int, what: Event | Action) -> None:
        self._numbers += 1
        heapq.heappush(self._mail, (time_ns, self._numbers, what))

    def _announce(self, now_ns: int) -> None:
        self._post(now_ns, PartitionChanged(0, lanes_of(self._parameters)))
        for tenant in self._parameters.tenants:
            changed = TenantChanged(
                tenant.name,
                tenant.weight,
                tenant.realtime_per_s,
                tenant.realtime_burst,
                tenant.memory_bytes_max,
            )
            self._post(now_ns, changed)
        if self._parameters.sync_costs:
            measured = DeviceMeasured(self._parameters.sync_costs)
            self._post(max(now_ns, self._parameters.measured_ns), measured)
        for at_ns, costs in self._parameters.measured_again:
            self._post(max(now_ns, at_ns), DeviceMeasured(costs))
        for name in self._models:
            self._load(name, max(now_ns, self._models[name].load_ns))

    def _load(self, name: str, time_ns: int) -> None:
        model = self._models[name]
        self._loads += 1
        key = f"{name}/1#{self._loads}"
        self._model_of_key[key] = model

        upload = key + _UPLOAD_MARK
        self._model_of_key[upload] = model
        lives = self._lives

        def load(now_ns: int) -> None:
            if lives != self._lives:  # the device for which this was planned is gone
                return
            if not model.chunk_ns:
                self._become_ready(key, now_ns)
                return
            weights_bytes = model.weights_bytes
            program = ModelProfile(len(model.chunk_ns))
            only = PriorityClass.BEST_EFFORT
            ready = ModelReady(
                upload, program, only, weights_bytes=weights_bytes, tenant=model.tenant
            )
            self._post(now_ns, ready)
            request_id = self._ask_own(upload, CursorKind.UPLOAD, (), now_ns)
            self._key_of_upload[request_id] = upload

        self._post(time_ns, load)

    def _become_ready(self, key: str, now_ns: int) -> None:
        model = self._model_of_key[key]
        self._key_of_model[model.name] = key
        loaded = ModelReady(
            key,
            model.profile,
            model.class_max,
            model.slo_ns,
            model.weights_bytes,
            model.frame_bytes,
            model.tenant,
            model.batching,
        )
        self._post(now_ns, loaded)
        bucket = next(iter(model.group_ns))
        kinds = [CursorKind.UPLOAD] * model.uploads + [CursorKind.PROFILE] * model.profile_runs
        for kind in kinds:
            self._ask_own(key, kind, bucket, now_ns)

    def _ask_own(self, key: str, kind: CursorKind, bucket: Bucket, now_ns: int) -> int:
        """A request of the device itself is in the mail."""
        self._requests += 1
        own = RequestArrived(
            request_id=self._requests,
            tenant="",
            model=key,
            priority_class=PriorityClass.BEST_EFFORT,
            bucket=bucket,
            arrived_ns=now_ns,
            kind=kind,
        )
        self._post(now_ns, own)
        return self._requests

    def _drain(self, name: str, reload_after_ns: int) -> Action:
        def drain(now_ns: int) -> None:
            if self._is_restarted or name not in self._key_of_model:
                return
            self._reload_after_ns[name] = reload_after_ns
            # Some come before it and some too late, all in the turn that hears of the drain.
            senders = [client for client in self._clients if client.parameters.model == name]
            for client in senders:
                client.send(now_ns)
            self._post(now_ns, ModelDraining(self._key_of_model[name]))
            for client in senders:
                client.send(now_ns)

        return drain

    def _storm(self, now_ns: int) -> None:
        """Most of what is outstanding is cancelled at once, and some that never was."""
        for request_id in list(self._client_of_request):
            if self._random.random() < 0.8:
                self.cancel(request_id, now_ns)
        for request_id in self._key_of_upload:
            self.cancel(request_id, now_ns)
        self.cancel(_UNKNOWN_REQUEST, now_ns)


class Client:
    """One program that sends requests until it has sent enough, vanished or the run ends."""

    __slots__ = ("_left", "_outstanding", "_workload", "parameters", "random")

    def __init__(
        self, workload: Workload, parameters: ClientParameters, rng: random.Random
    ) -> None:
        self.parameters = parameters
        self.random = rng
        self._workload = workload
        self._left = parameters.requests
        self._outstanding: dict[int, None] = {}

    def start(self) -> None:
        """Make the first move."""
        asked = self.parameters
        if asked.vanish_ns is not None:
            self._workload.at(asked.vanish_ns, self._vanish)
        first_ns = self.random.randrange(max(1, min(asked.interval_ns, 1_000_000)))
        if asked.pattern == "closed":
            for _ in range(asked.width):
                self._workload.at(first_ns, self.send)
        else:
            self._workload.at(first_ns, self._send_and_repeat)

    def hear(self, request_id: int, kind: OutcomeKind, now_ns: int) -> None:
        """A request of ours has its fate: a closed loop sends the next, after a pause if refused.

        Nobody asks again at the very moment of a refusal: that would be an endless loop in no time.
        """
        del self._outstanding[request_id]
        if self.parameters.pattern != "closed":
            return
        is_served = kind is OutcomeKind.COMPLETED
        pause_ns = self.random.choice((0, 20_000)) if is_served else 300_000
        self._workload.at(now_ns + pause_ns, self.send)

    def send(self, now_ns: int) -> None:
        """One more request, if any is left."""
        if self._left == 0 or now_ns >= self._workload.horizon_ns:
            return
        self._left -= 1
        request_id = self._workload.send(self, now_ns)
        self._outstanding[request_id] = None
        if self.parameters.cancel_ppm and self.random.randrange(PPM) < self.parameters.cancel_ppm:
            patience_ns = self.random.randrange(max(1, 2 * self.parameters.interval_ns))
            self._workload.cancel(request_id, now_ns + patience_ns)

    def _send_and_repeat(self, now_ns: int) -> None:
        asked = self.parameters
        interval_ns = asked.interval_ns
        for _ in range(asked.width if asked.pattern == "burst" else 1):
            self.send(now_ns)
        if asked.pattern == "poisson":
            interval_ns = max(1, int(self.random.expovariate(1.0) * interval_ns))
        if self._left and now_ns < self._workload.horizon_ns:
            self._workload.at(now_ns + interval_ns, self._send_and_repeat)

    def _vanish(self, now_ns: int) -> None:
        """The program is gone: it sends nothing more and waits for nothing."""
        self._left = 0
        for request_id in self._outstanding:
            self._workload.cancel(request_id, now_ns)


def _batch_key(model: ModelParameters, bucket: Bucket, request_id: int) -> Bucket | None:
    """Everything but the batch size has to be equal; one in eight does not want any company."""
    if model.batching is None or request_id % 8 == 0:
        return None
    return bucket[1:]
