"""Answers of a stream of inferences: each is a result, or the error of its request."""

import base64
import binascii

from gpumuxd_client import codec, types
from gpumuxd_client.error_details import DETAILS_KEY
from gpumuxd_client.errors import REASON_KEY, GpumuxdError, error_of
from gpumuxd_client.generated import inference_pb2 as pb

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"

StreamAnswer = types.InferResult | GpumuxdError


def decode_answer(data: bytes) -> StreamAnswer:
    """A ModelStreamInfer answer. Other servers than gpumuxd tell no more of an error than a text,
    which is an InternalError then."""
    answer = pb.ModelStreamInferResponse.FromString(data)
    if not answer.error_message:
        return codec.result_of(answer.infer_response)
    told = {key: value.string_param for key, value in answer.infer_response.parameters.items()}
    try:
        details = base64.b64decode(told.get("error_details", ""))
    except binascii.Error:
        details = b""
    return error_of(
        told.get("error_status", "INTERNAL"),
        answer.error_message,
        ((REASON_KEY, told.get("error_reason", "")), (DETAILS_KEY, details)),
    )
