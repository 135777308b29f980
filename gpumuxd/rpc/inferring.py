"""One inference, from the bytes of its request to the bytes of its answer.

The same for a single call and for one in a stream, which differ in what is around the answer. It
must not know how either is sent.
"""

from collections.abc import Callable

from gpumuxd.errors import GpumuxdError
from gpumuxd.node.api import InferReply, NodeApi
from gpumuxd.rpc.call import Caller
from gpumuxd.rpc.codec import decode_infer
from gpumuxd.rpc.raw_request import InferRequest

Encode = Callable[[InferReply, str], bytes]
"""The answer of a reply, with the id of its request."""


async def infer(node: NodeApi, request: InferRequest, caller: Caller, encode: Encode) -> bytes:
    """The answer to a request. Raises GpumuxdError, which names the model."""
    message = request.message
    call = None
    try:
        request_id = message.id
        call = decode_infer(
            request,
            caller.tenant,
            caller.arrived_ns,
            caller.remaining_s,
            encode=lambda reply: encode(reply, request_id),
        )
        return (await node.infer(call)).message
    except GpumuxdError as error:
        error.facts.setdefault("model", message.model_name)
        if call is None:  # the node never saw it, and counts it all the same
            node.count_refused(
                caller.tenant, message.model_name, message.model_version, caller.arrived_ns
            )
        raise
