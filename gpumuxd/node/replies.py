"""The end of a request: from what the device says of it to what its client is told.

It must not know what a request goes through before. Invariant: the memory of a request is the
caller's until `wait_reply` is called, and released, or the link's to release, when that ends.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from gpumuxd.clock import monotonic_ns
from gpumuxd.domain import OutcomeKind
from gpumuxd.errors import GpumuxdError, ModelFaulted, error_of, limit_facts
from gpumuxd.node.api import InferCall, InferReply, OutputTensor, RegionRef, Tenant
from gpumuxd.node.device_link import DeviceLink
from gpumuxd.node.model_table import Replica
from gpumuxd.node.owed import RequestOverdue
from gpumuxd.node.request_memory import RequestMemory
from gpumuxd.node.shared_memory import Copy, copy_out, place_of
from gpumuxd.node.validation import Fit
from gpumuxd.settings import DeviceSettings
from gpumuxd.wire import frames

_log = structlog.get_logger()


async def wait_reply(
    call: InferCall,
    replica: Replica,
    fit: Fit,
    frame: frames.Submit,
    memory: RequestMemory,
    replays: int,
) -> InferReply:
    """Submit a request and return its reply. Raises GpumuxdError in its client's words."""
    try:
        finished = await _finished(replica.link, frame, memory)
    except ModelFaulted as error:  # it ended its device
        _log_fault(call, replica, frame.request_id, error)
        raise _told(error, call, replica) from None
    except RequestOverdue as error:
        raise _told(error, call, replica) from None
    try:
        if finished.outcome.kind is not OutcomeKind.COMPLETED:
            limit = _limit(finished.outcome.kind, replica.link.settings, call.tenant)
            raise error_of(finished.outcome, call.arrived_ns, limit)
        began_ns = monotonic_ns()
        outputs = await _take_outputs(call, fit, finished, memory)
        version, report = replica.version, finished.report
        reply = InferReply(call.model, version, outputs, report, replays, rows=frame.rows)
        reply = _copied(reply) if call.encode is None else _encoded(reply, call.encode)
        copied_out_ns = monotonic_ns() - began_ns
    except GpumuxdError as error:
        if isinstance(error, ModelFaulted):
            _log_fault(call, replica, frame.request_id, error)
        raise _told(error, call, replica) from None
    finally:
        memory.release()
    return replace(reply, copied_in_ns=memory.copied_in_ns, copied_out_ns=copied_out_ns)


async def _finished(
    link: DeviceLink, frame: frames.Submit, memory: RequestMemory
) -> frames.Finished:
    """Submit and wait for the end. The memory stays the caller's only when this returns."""
    try:
        return await link.submit(frame)
    except (asyncio.CancelledError, RequestOverdue):
        link.abandon(frame.request_id, memory)
        raise
    except BaseException:
        memory.release()
        raise


def _limit(kind: OutcomeKind, settings: DeviceSettings, tenant: Tenant) -> dict[str, str]:
    """Of its device, if the fate is that one was reached. Where a tenant has a limit of its own,
    which of the two memories was too small only the text says."""
    scheduler, device = settings.scheduler, settings.device
    match kind:
        case OutcomeKind.QUEUE_FULL:
            requests_max = scheduler.queue_requests_max
            return limit_facts("queue_requests_max", requests_max, "requests", device=device)
        case OutcomeKind.OUT_OF_DEVICE_MEMORY if tenant.memory_bytes_max is None:
            bytes_max = scheduler.memory_bytes_max
            return limit_facts("memory_mib_max", bytes_max, "bytes", device=device)
    return {}


def _told(error: GpumuxdError, call: InferCall, replica: Replica) -> GpumuxdError:
    """A device's error in the words of its client, who does not know our keys."""
    label = f"{call.model!r} version {replica.version}"
    message = error.message.replace(repr(replica.key), label)
    if isinstance(error, ModelFaulted):
        message = f"model {label}: {message}"
    facts = {**error.facts, "model": call.model, "version": replica.version}
    return type(error)(message, facts, error.retry_delay_ns)


def _log_fault(call: InferCall, replica: Replica, request_id: int, error: ModelFaulted) -> None:
    """The culprit, for the operator: the tenant alone gets the error."""
    _log.warning(
        "model_faulted",
        model=f"{call.model}/{replica.version}",
        tenant=call.tenant.name,
        request=request_id,
        device=replica.device,
        reason=error.message,
    )


async def _take_outputs(
    call: InferCall, fit: Fit, finished: frames.Finished, memory: RequestMemory
) -> tuple[OutputTensor, ...]:
    """The outputs that were asked for: views, or written to where their client shares memory. The
    child is believed about shapes, never about places."""
    if len(finished.outputs) != len(fit.outputs):
        raise ModelFaulted(
            f"expected {len(fit.outputs)} outputs from the device, got {len(finished.outputs)}"
        )
    outputs = []
    copies: list[Copy] = []
    for position in fit.wanted:
        expected, came = fit.outputs[position], finished.outputs[position]
        if came.shape != expected.shape or came.datatype != expected.spec.datatype:
            raise ModelFaulted(
                f"output {expected.spec.name!r}: expected {expected.spec.datatype} "
                f"{list(expected.shape)} from the device, got {came.datatype} {list(came.shape)}"
            )
        name, view = expected.spec.name, memory.view(memory.outputs[position])
        region = call.output_regions.get(name)
        if region is None:
            outputs.append(OutputTensor(name, came.datatype, came.shape, view))
            continue
        copies.append(Copy(f"output {name!r}", came.datatype, place_of(region), view))
        written = RegionRef(region.region, region.offset, view.nbytes)
        outputs.append(OutputTensor(name, came.datatype, came.shape, b"", written))
    await copy_out(copies)
    return tuple(outputs)


def _copied(reply: InferReply) -> InferReply:
    outputs = [replace(output, data=bytes(output.data)) for output in reply.outputs]
    return replace(reply, outputs=tuple(outputs))


def _encoded(reply: InferReply, encode: Callable[[InferReply], bytes]) -> InferReply:
    return replace(reply, outputs=(), message=encode(reply))
