"""ONNX Runtime, which is optional, and how its sessions are set up.

A session is one kernel group: it runs on the thread that calls it and on as many more as the device
has, in order, without spinning between runs, and says nothing on stderr. It must not know plans.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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


@cache
def _device() -> Any:
    """Where all values are: in this process's memory."""
    device = _bindings().OrtDevice
    return device(device.cpu(), device.default_memory(), 0)


@cache
def _options() -> Any:
    """Of every run: one object, which stays in the caches."""
    return runtime_package().RunOptions()


def _bindings() -> Any:
    """The classes below the package's own, which pass values without converting them."""
    return runtime_package().capi.onnxruntime_pybind11_state


def vector_of(array: Any) -> Any:
    """A numpy array as a vector of one value of the runtime, over the same memory. It must outlive
    the vector."""
    vector = _bindings().OrtValueVector()
    vector.push_back(_bindings().OrtValue.ortvalue_from_numpy(array, _device()))
    return vector


@dataclass(frozen=True, slots=True)
class Feed:
    """An input of a session: one of the `count` values of the vector that `maker` (a number)
    made, which lies in `slot`."""

    name: str
    slot: int
    maker: int
    index: int
    count: int


Run = Callable[[list[Any]], None]


def runner(
    session: Any, feeds: Sequence[Feed], fetches: Mapping[str, int], clears: Sequence[int]
) -> Run:
    """Runs a session on values in slots, puts its results there, and clears some slots.

    After other work has had the caches each line of Python and each conversion costs, so there is
    one function with as little as can be: all results are one vector, which lies in the slot of
    each, and is handed on as it is to a session that takes just those. `Session.run` would make
    arrays of all results, and check names. Raises the runtime's own errors.
    """
    new_vector, options = _bindings().OrtValueVector, _options()
    run, devices = session.run_with_ortvaluevector, [_device()] * len(fetches)
    feeds = sorted(feeds, key=lambda feed: (feed.maker, feed.index))
    names, reads = [feed.name for feed in feeds], [(feed.slot, feed.index) for feed in feeds]
    results_of, writes = list(fetches), tuple(fetches.values())
    is_all_of_one = len({feed.maker for feed in feeds}) == 1 and len(feeds) == feeds[0].count
    source = feeds[0].slot if is_all_of_one else None

    def run_in_place(slots: list[Any]) -> None:
        if source is not None:
            given = slots[source]
        else:
            given = new_vector()
            for slot, index in reads:
                given.push_back(slots[slot][index])
        results = new_vector()
        run(options, names, given, results_of, results, devices)
        for slot in clears:
            slots[slot] = None
        for slot in writes:
            slots[slot] = results

    return run_in_place
