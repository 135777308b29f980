"""Tries whether requests of a model may share a run, before any does.

Two different rows run alone and together, in the smallest run that is shared and in the largest
that was measured, and where the manifest pads a dimension, one of them shorter. Each must come out
as it did alone (`programs/joined_rows.py` says how nearly). If not, the model serves without
batching, and its page says why: an owner's wish is no reason to answer wrongly, nor not at all.

The runs are the device's own (`own_runs.py`). It must not know what the scheduler joins later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from gpumuxd.device.own_runs import OwnRuns, RunFailed
from gpumuxd.device.steps import Steps, build
from gpumuxd.domain import Batching, Bucket, CursorKind
from gpumuxd.errors import OutOfDeviceMemory
from gpumuxd.executors.members import Fill, cut_back, gathered
from gpumuxd.programs.joined_rows import difference, regions, varied_inputs
from gpumuxd.programs.served import AnyProgram, Served

INTEGER_ENDS = (2, 1)
"""What integers of inputs are below: as varied as nearly every table allows, else all 0."""

Tensors = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Found:
    """What a trial found. `rows_max` 0: requests run alone. `note` is for people."""

    rows_max: int
    note: str


@dataclass(frozen=True, slots=True)
class _Row:
    """The smallest request that there can be, of one example, and what it gave alone."""

    sizes: Mapping[str, int]
    inputs: Tensors
    outputs: Tensors


@dataclass(frozen=True, slots=True)
class Joining:
    """One trial. `measured` are the buckets in which the program ran, so nothing longer is run.

    `key` is what the program is loaded under meanwhile.
    """

    key: str
    tenant: str
    served: Served
    batching: Batching
    fills: Sequence[Fill]
    padded: Sequence[str]
    measured: Sequence[Bucket]
    own: OwnRuns
    wake: Callable[[], None]
    check_wanted: Callable[[], None]
    """Raises when the load was cancelled."""

    def find(self, program: AnyProgram) -> Steps[Found]:
        """What requests of this program may do."""
        counts = self._counts()
        if not counts:
            return Found(0, "off: no run of two requests was within the limits of the measurement")
        error = ""
        for integer_end in INTEGER_ENDS:
            self.check_wanted()
            body = self._try(counts, integer_end)
            try:
                return (
                    yield from self.own.use(
                        self.key, self.tenant, program, self.served.weights_bytes, body
                    )
                )
            except (RunFailed, OutOfDeviceMemory) as failed:
                error = failed.message
        return Found(0, f"off: the trial failed: {error}")

    def _counts(self) -> list[int]:
        """How many of the smallest requests run together: two, and as many as may."""
        rows = self._rows
        measured = [bucket[self.batching.place] for bucket in self.measured]
        most = max([each for each in measured if each <= self.batching.sizes[-1]], default=0)
        return sorted({2, most // rows}) if most >= 2 * rows else []

    @property
    def _rows(self) -> int:
        return self.batching.sizes[0]

    def _try(self, counts: Sequence[int], integer_end: int) -> Steps[Found]:
        rows = []
        for number in range(2):
            sizes = self._sizes(number)
            make = partial(varied_inputs, self.served.spec, sizes, number, integer_end)
            inputs = yield from self._build(make)
            rows.append(_Row(sizes, inputs, (yield from self._run(inputs, sizes))))
        worst = 0.0
        for count in counts:
            members = [rows[index % 2] for index in range(count)]
            parts = yield from self._run_together(members)
            for row, outputs in zip(members, parts, strict=True):
                for index, pair in enumerate(zip(row.outputs, outputs, strict=True)):
                    part, why_not = difference(*pair)
                    if why_not:
                        name = self.served.spec.outputs[index].name
                        return Found(
                            0,
                            f"off: output {name!r} of a request {why_not} when {count} run "
                            "together",
                        )
                    worst = max(worst, part)
        same = f"within {worst:.1g} of the largest value" if worst else "to the bit"
        rows_max = self.batching.sizes[-1]
        return Found(
            rows_max,
            f"up to {rows_max} rows share a run; tried with {counts[-1] * self._rows} at load, the "
            f"outputs were as alone {same}",
        )

    def _run_together(self, members: Sequence[_Row]) -> Steps[list[Tensors]]:
        inputs = yield from self._build(lambda: gathered([m.inputs for m in members], self.fills))
        sizes = {name: max(m.sizes[name] for m in members) for name in members[0].sizes}
        sizes[self._names[self.batching.place]] = len(members) * self._rows
        outputs = yield from self._run(inputs, sizes)
        starts = range(0, len(members) * self._rows, self._rows)
        return [
            [
                cut_back(output[first : first + self._rows], alone.shape)
                for output, alone in zip(outputs, member.outputs, strict=True)
            ]
            for first, member in zip(starts, members, strict=True)
        ]

    def _run(self, inputs: Tensors, sizes: Mapping[str, int]) -> Steps[Tensors]:
        spec = self.served.spec
        rooms = yield from self._build(lambda: regions(spec, sizes))
        kind, bucket = CursorKind.PROFILE, spec.bucket(sizes)
        run = yield from self.own.run(kind, self.key, bucket, inputs, outputs=rooms)
        return list(run.results)

    def _sizes(self, number: int) -> dict[str, int]:
        """As the example inputs are, but for the rows; of the second one what is padded is as
        short as half of that."""
        sizes = dict(zip(self._names, self.measured[0], strict=True))
        sizes[self._names[self.batching.place]] = self._rows
        if number:
            for symbol in self.served.spec.symbols:
                if symbol.name in self.padded:
                    half = sizes[symbol.name] // 2 // symbol.multiple * symbol.multiple
                    sizes[symbol.name] = max(half, symbol.minimum, symbol.multiple)
        return sizes

    @property
    def _names(self) -> list[str]:
        return [symbol.name for symbol in self.served.spec.symbols]

    def _build(self, make: Callable[[], Tensors]) -> Steps[Tensors]:
        return (yield from build(make, self.wake))
