"""Parameters of a request and of its tensors, each by the type that it must have.

It must not know which parameters there are but for those of shared memory, which are three for one
place.
"""

from collections.abc import Mapping

from gpumuxd.errors import InvalidRequest
from gpumuxd.node.api import RegionRef
from gpumuxd.rpc.generated import inference_pb2 as pb

SHARED_MEMORY = "shared_memory_"
REGION = "shared_memory_region"
SIZE = "shared_memory_byte_size"
OFFSET = "shared_memory_offset"


def read_sequence_id(parameter: pb.InferParameter) -> int | str:
    """A number and a text are different ids; 0 and "" are none."""
    choice = parameter.WhichOneof("parameter_choice")
    if choice not in ("int64_param", "uint64_param", "string_param"):
        raise InvalidRequest(
            "parameter 'sequence_id': expected int64_param, uint64_param or string_param, got "
            f"{choice or 'nothing'}"
        )
    value: int | str = getattr(parameter, choice)
    return value


def read_flag(key: str, parameter: pb.InferParameter) -> bool:
    """A bool. Raises InvalidRequest, as all here do."""
    choice = parameter.WhichOneof("parameter_choice")
    if choice != "bool_param":
        raise InvalidRequest(f"parameter {key!r}: expected bool_param, got {choice or 'nothing'}")
    value: bool = parameter.bool_param
    return value


def read_count(key: str, parameter: pb.InferParameter, meaning: str) -> int:
    """A number that is not negative, as either of the two integer types."""
    choice = parameter.WhichOneof("parameter_choice")
    if choice == "int64_param":
        value = parameter.int64_param
    elif choice == "uint64_param":
        value = parameter.uint64_param
    else:
        raise InvalidRequest(_not_a_count(key, meaning, choice or "nothing"))
    if value < 0:
        raise InvalidRequest(_not_a_count(key, meaning, value))
    return value


def _not_a_count(key: str, meaning: str, came: object) -> str:
    return (
        f"parameter {key!r}: expected a number >= 0 as int64_param or uint64_param ({meaning}), "
        f"got {came}"
    )


def read_region(label: str, parameters: Mapping[str, pb.InferParameter]) -> RegionRef | None:
    """The place in shared memory that a tensor names, None where it names none."""
    given = [key for key in parameters if key.startswith(SHARED_MEMORY)]
    if not given:
        return None
    unknown = sorted(set(given) - {REGION, SIZE, OFFSET})
    if unknown:
        raise InvalidRequest(f"{label}: parameter {unknown[0]!r} is not known")
    for needed in (REGION, SIZE):
        if needed not in given:
            raise InvalidRequest(f"{label}: parameter {min(given)!r} needs {needed!r} beside it")
    choice = parameters[REGION].WhichOneof("parameter_choice")
    if choice != "string_param":
        raise InvalidRequest(
            f"{label}: expected {REGION!r} as string_param, got {choice or 'nothing'}"
        )
    return RegionRef(
        region=parameters[REGION].string_param,
        offset=read_count(OFFSET, parameters[OFFSET], "bytes") if OFFSET in given else 0,
        size_bytes=read_count(SIZE, parameters[SIZE], "bytes"),
    )
