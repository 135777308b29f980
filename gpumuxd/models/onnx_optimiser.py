"""The optimised form of a checked ONNX graph, as ONNX Runtime would run it on this machine.

The runtime fuses operators and lays convolutions out in blocks when a session is made. Cut before
that, a model loses both at every cut; cut after it, groups are what the whole session would run,
to the bit. So the whole model is optimised once, here, and its result is what gets cut
(`onnx_reader.py` makes the pieces). It depends on the machine's CPU and the runtime's version, so
it is made at each load and stored nowhere.

Runs in a loader process: folding the constants of a stranger's graph runs its kernels. It must not
know plans. Invariant: nothing is written but a memfd of this process.
"""

import importlib
import os
from functools import cache
from typing import Any

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_proto import INSTALL_HINT

RUNTIME_DOMAINS = ("", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")
"""Where the optimisers of the CPU provider take operators from. What an artifact may name itself is
less (`onnx_operators.py`)."""

BLOCKED_DOMAIN = "com.microsoft.nchwc"

FATAL = 4
"""Of the runtime's levels of what to log."""

_ELEMENT_TYPES = {
    "tensor(float)": 1,
    "tensor(uint8)": 2,
    "tensor(int8)": 3,
    "tensor(uint16)": 4,
    "tensor(int16)": 5,
    "tensor(int32)": 6,
    "tensor(int64)": 7,
    "tensor(bool)": 9,
    "tensor(float16)": 10,
    "tensor(double)": 11,
    "tensor(uint32)": 12,
    "tensor(uint64)": 13,
}
"""The runtime's words for ONNX's data types."""


class NotOptimised(Exception):
    """The graph has to be served as it is; its message says why."""


@cache
def runtime_package() -> Any:
    """ONNX Runtime, which is optional. Raises InvalidModel where it is not installed."""
    try:
        package = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise InvalidModel(f"ONNX models need ONNX Runtime: {INSTALL_HINT}") from error
    package.set_default_logger_severity(FATAL)
    return package


def first_line(error: BaseException) -> str:
    """What the runtime says, without what follows."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


class Optimised:
    """The optimised ModelProto of a checked one, and the data types of all its values.

    Raises NotOptimised where this process may not, and InvalidModel for what the runtime refuses.
    """

    def __init__(self, package: Any, model: Any, model_bytes_max: int) -> None:
        data = _optimise(model.SerializeToString(), model_bytes_max)
        self.model = package.ModelProto()
        self.model.ParseFromString(data)
        self.model.DiscardUnknownFields()
        imports = [(entry.domain, entry.version) for entry in self.model.opset_import]
        self.opsets = tuple(entry for entry in imports if entry[0] in RUNTIME_DOMAINS)
        self.types = _element_types(package, self.model, data)


def _optimise(data: bytes, model_bytes_max: int) -> bytes:
    out = os.memfd_create("gpumuxd-optimised", os.MFD_CLOEXEC)
    try:
        path = f"/proc/self/fd/{out}"
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError as error:
            # Without Landlock, opening anything to write is forbidden.
            raise NotOptimised(f"a memory file can't be opened: {error.strerror}") from error
        make_session(data, "ORT_ENABLE_ALL", path)
        size_bytes = os.fstat(out).st_size
        if not 0 < size_bytes <= model_bytes_max:
            raise NotOptimised(f"its optimised form has {size_bytes} bytes")
        os.lseek(out, 0, os.SEEK_SET)
        with os.fdopen(os.dup(out), "rb") as file:
            return file.read()
    finally:
        os.close(out)


def make_session(data: bytes, level: str, optimised_path: str = "") -> Any:
    """A session that is looked at, not run: on one thread and without packing weights."""
    package = runtime_package()
    options = package.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = FATAL
    options.graph_optimization_level = getattr(package.GraphOptimizationLevel, level)
    options.optimized_model_filepath = optimised_path
    options.add_session_config_entry("session.disable_prepacking", "1")
    return open_session(data, options)


def open_session(model: bytes, options: Any) -> Any:
    """A session of an encoded ModelProto. Raises InvalidModel for one that the runtime refuses."""
    try:
        return runtime_package().InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
    except MemoryError:
        raise
    except Exception as error:  # of many types, all of the runtime's own
        raise InvalidModel(f"ONNX Runtime refuses it: {first_line(error)}") from error


def _element_types(package: Any, model: Any, data: bytes) -> dict[str, int]:
    """By name. The file lacks those of values that the runtime put in: it is asked for them, by
    making them outputs."""
    graph = model.graph
    types = {
        info.name: int(info.type.tensor_type.elem_type)
        for info in (*graph.value_info, *graph.input, *graph.output)
        if info.type.WhichOneof("value") == "tensor_type"
    }
    asked = package.ModelProto()
    for node in graph.node:
        for name in node.output:
            if name and not types.get(name):
                asked.graph.output.add(name=name)
    if len(asked.graph.output):
        # One encoded message after the other is the two of them merged.
        session = make_session(data + asked.SerializeToString(), "ORT_DISABLE_ALL")
        types |= {each.name: _ELEMENT_TYPES.get(each.type, 0) for each in session.get_outputs()}
    return types
