"""ONNX Runtime, which is optional, and how its sessions are set up.

A session is one kernel group: it runs on the thread that calls it and on as many more as the device
has, in order, without spinning between runs, and says nothing on stderr. It must not know plans.
"""

from collections.abc import Mapping
from typing import Any

from gpumuxd.errors import InvalidModel
from gpumuxd.models.onnx_optimiser import FATAL, open_session, runtime_package


def is_installed() -> bool:
    """Import it if it is there. That takes 50 ms in which nothing else runs, so a device child does
    it before it serves."""
    try:
        runtime_package()
    except InvalidModel:
        return False
    return True


def runtime_version() -> str:
    """What a measurement depends on, for the key of a profile."""
    return f"onnxruntime {runtime_package().__version__}"


def make_session(
    model: bytes, threads: int, weights: Mapping[str, Any], *, is_optimised: bool = False
) -> Any:
    """A session of an encoded ModelProto. `weights` are the OrtValues that it names as external.

    The runtime gives up the GIL while it optimises and packs. An optimised model is run as it is,
    and reads its weights where they lie, so they must outlive the session; products of matrices
    pack a copy of theirs. Another one copies all, into the form that its kernels read.
    """
    package = runtime_package()
    options = package.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = package.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = FATAL
    # Threads that spin for the next run would take the cores of whoever is served between.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # An arena per session is never given back, and a model has as many sessions as groups.
    options.enable_cpu_mem_arena = False
    if weights:
        options.add_external_initializers(list(weights), list(weights.values()))
    if is_optimised:
        options.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
        # The option above says where bytes are that the message lacks, and would be copied from;
        # this one says to use that very memory.
        for name, value in weights.items():
            options.add_initializer(name, value)
    return open_session(model, options)
