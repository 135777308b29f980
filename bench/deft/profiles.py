"""What is known of the models of this bench and of the device they were measured on, as data.

The file is committed, so that the virtual half gives the same figures everywhere; `record.py`
writes it. Times are of single operators: the least that could lie between two sync points.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpumuxd.domain import SyncCost

PATH = Path(__file__).parent.parent / "profiles" / "cpu.json"

BATCHES_A, BATCHES_B = (1, 8), (1, 4)
BATCHES = (1, 4, 8)
WINDOWS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Batch:
    """A model at one batch size: nanoseconds of each operator, of a whole run, and the most work
    that is ever in flight when the operators are launched freely."""

    operator_ns: tuple[int, ...]
    run_ns: int
    outstanding_ns: int


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """One model. `layer_ends` are operators (exclusive) at which a layer of its module ends."""

    name: str
    kind: str
    size: str
    layer_ends: tuple[int, ...]
    batches: Mapping[int, Batch]

    @property
    def operators(self) -> int:
        return len(next(iter(self.batches.values())).operator_ns)


@dataclass(frozen=True, slots=True)
class Profiles:
    """All models, the cost of sync points on the device by window, and where that was."""

    models: tuple[ModelTimes, ...]
    costs: tuple[SyncCost, ...]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    time: str

    def named(self, names: Sequence[str]) -> "Profiles":
        """Of these models only, in this order."""
        by_name = {model.name: model for model in self.models}
        if unknown := [name for name in names if name not in by_name]:
            raise SystemExit(f"not in {PATH.name}: {', '.join(unknown)}")
        chosen = tuple(by_name[name] for name in names)
        return Profiles(chosen, self.costs, self.machine, self.versions, self.time)


def read(path: Path = PATH) -> Profiles:
    """Read what `write` wrote."""
    data = json.loads(path.read_text())
    models = tuple(
        ModelTimes(
            name=each["name"],
            kind=each["kind"],
            size=each["size"],
            layer_ends=tuple(each["layer_ends"]),
            batches={
                int(batch): Batch(tuple(t["operator_ns"]), t["run_ns"], t["outstanding_ns"])
                for batch, t in each["batches"].items()
            },
        )
        for each in data["models"]
    )
    costs = tuple(SyncCost(**each) for each in data["costs"])
    return Profiles(models, costs, data["machine"], data["versions"], data["time"])


def write(profiles: Profiles, path: Path = PATH) -> None:
    """One line a model, so that a change of one can be seen."""
    lines = ",\n".join(
        json.dumps(asdict(model), separators=(",", ":")) for model in profiles.models
    )
    rest = {
        "time": profiles.time,
        "machine": dict(profiles.machine),
        "versions": dict(profiles.versions),
        "costs": [cost._asdict() for cost in profiles.costs],
    }
    head = json.dumps(rest, indent=1).removesuffix("\n}")
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{head},\n "models": [\n{lines}\n]}}\n')
