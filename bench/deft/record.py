"""Measures the models and the device of this machine, and writes what `profiles.py` reads.

Models are exported in processes of their own, which takes minutes; each is then run operator by
operator on one thread, as the profiler of the daemon does it. What sync points cost is fitted by
the device's own calibration.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from bench.deft.profiles import BATCHES, WINDOWS, Batch, ModelTimes, Profiles
from bench.deft.subjects import (
    SUBJECTS,
    Subject,
    bucket_of,
    exported,
    opened,
    passes_of,
)
from bench.harness import machine, versions
from gpumuxd.clock import monotonic_ns
from gpumuxd.device import calibration
from gpumuxd.domain import SyncCost
from gpumuxd.programs.cost_cache import DeviceCosts
from gpumuxd.programs.model import ServedModel
from gpumuxd.programs.profiler import median_ns, outstanding_ns, position_ns, run_ns
from gpumuxd.settings import DeviceSettings

CALIBRATIONS = 15
"""Each takes a quarter of a second, which is little on a machine that changes its pace."""


def record(console: Console, subjects: Sequence[Subject] = SUBJECTS) -> Profiles:
    """Export and measure everything. Run it on an idle machine."""
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name:
        paths = dict(exported(subjects, Path(name), console))
        return measure_all(console, paths, subjects)


def calibrated() -> DeviceCosts:
    """What sync points cost on this device: of several calibrations the median of each figure."""
    found = [calibration.measure(DeviceSettings(), monotonic_ns).costs for _ in range(CALIBRATIONS)]
    costs = tuple(
        SyncCost(
            window,
            median_ns([each.sync_costs[window - 1].sync_ns for each in found]),
            median_ns([each.sync_costs[window - 1].base_ns for each in found]),
        )
        for window in WINDOWS
    )
    return DeviceCosts(costs, median_ns([each.launch_ns for each in found]))


def measure_all(console: Console, paths: dict[str, Path], subjects: Sequence[Subject]) -> Profiles:
    """Measure what was exported, and the device."""
    torch.set_num_threads(1)
    costs = calibrated()
    models = []
    for subject in subjects:
        models.append(measure(subject, paths[subject.name], costs.launch_ns))
        console.print(f"measured {subject.name}", style="dim")
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Profiles(tuple(models), costs.sync_costs, machine(), versions(), when)


def measure(subject: Subject, path: Path, launch_ns: int) -> ModelTimes:
    """Every batch size, operator by operator."""
    model = opened(path)
    fixed = "".join(f", {name} {size}" for name, size in subject.sizes.items())
    return ModelTimes(
        subject.name,
        subject.kind,
        f"{subject.scale.value}{fixed}",
        tuple(model.layer_ends),
        {
            batch: _measure_batch(model, bucket_of(model, subject, batch), launch_ns)
            for batch in BATCHES
        },
    )


def _measure_batch(model: ServedModel, bucket: tuple[int, ...], launch_ns: int) -> Batch:
    passes = passes_of(model.node_program(), model.example_inputs(bucket))
    operator_ns = position_ns(passes)
    return Batch(operator_ns, run_ns(passes), outstanding_ns(operator_ns, launch_ns))
