"""ONNX Runtime, which is optional, and how its sessions are set up.

A session is one kernel group: it runs on the thread that calls it and on as many more as the device
has, in order, without spinning between runs, and says nothing on stderr. It must not know plans.
"""

import importlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_proto import INSTALL_HINT

_FATAL = 4

_lock = threading.Lock()
_package: Any = None


def runtime() -> Any:
    """The package. Raises InvalidModel where it is not installed.

    Importing it takes 50 ms in which nothing else runs, so a device child does it before it serves.
    """
    global _package
    with _lock:
        if _package is None:
            try:
                package = importlib.import_module("onnxruntime")
            except ImportError as error:
                raise InvalidModel(f"ONNX models need ONNX Runtime: {INSTALL_HINT}") from error
            package.set_default_logger_severity(_FATAL)
            _package = package
        return _package


def is_installed() -> bool:
    """Import it if it is there."""
    try:
        runtime()
    except InvalidModel:
        return False
    return True


def runtime_version() -> str:
    """What a measurement depends on, for the key of a profile."""
    return f"onnxruntime {runtime().__version__}"


def make_session(model: bytes, threads: int, weights: Mapping[str, Any]) -> Any:
    """A session of an encoded ModelProto. `weights` are the OrtValues that it names as external.

    The runtime gives up the GIL while it optimises and packs. It copies the weights once, into the
    form that its kernels read.
    """
    package = runtime()
    options = package.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = package.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _FATAL
    # Threads that spin for the next run would take the cores of whoever is served between.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # An arena per session is never given back, and a model has as many sessions as groups.
    options.enable_cpu_mem_arena = False
    if weights:
        options.add_external_initializers(list(weights), list(weights.values()))
    try:
        return package.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        raise
    except Exception as error:  # of many types, all of the runtime's own
        raise InvalidModel(f"ONNX Runtime refuses it: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What the runtime says, without what follows."""
    lines: Sequence[str] = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
