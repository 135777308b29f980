"""The tensors that sequences keep on the device between their steps.

A slot holds two sets of them. A step reads the committed one in place and writes the other; when it
has completed, the two change places. So a step that was cancelled, late or failed leaves the state
as it was, and nothing is copied. It must not know the order of steps: the parent sends one of a
sequence at a time, and drops the slot of one that goes on no more.

Invariants: a sequence that begins takes no more than half of what the books leave free, all others
together, and no more than its tenant may take (`why_no_room`); a set that a run under
way touches lives until that ends, because its binding refers to it, also when its slot is gone.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from gpumuxd.programs.operators import DTYPES
from gpumuxd.units import MIB
from gpumuxd.wire.frames import StateTensor, Submit

Tensors = Sequence[torch.Tensor]


class StateMisshaped(Exception):
    """A model gave a state of another shape than its artifact declares."""


class _Slot:
    __slots__ = ("committed", "size_bytes", "spare", "tenant")

    def __init__(self, tenant: str, tensors: Sequence[StateTensor], size_bytes: int) -> None:
        """A state of zeros. Raises RuntimeError without memory."""
        self.tenant = tenant
        self.size_bytes = size_bytes
        self.committed = _zeros(tensors)
        self.spare = _zeros(tensors)


class Sequences:
    """All slots of one device."""

    def __init__(self, why_no_room: Callable[[int, str], str]) -> None:
        """`why_no_room` says why so many bytes can't be held for a tenant; "": they can."""
        self._why_no_room = why_no_room
        self._slots: dict[tuple[str, int], _Slot] = {}
        self._bytes_of: defaultdict[str, int] = defaultdict(int)

    @property
    def held_bytes(self) -> int:
        return sum(self._bytes_of.values())

    def begin(self, frame: Submit) -> str:
        """Make room for a sequence that this step begins, if it does. Returns why there is none."""
        state = frame.sequence
        if state is None or not state.is_start:
            return ""
        size_bytes = 2 * sum(_bytes(tensor) for tensor in state.tensors)
        key = frame.model, state.slot
        assert key not in self._slots, f"slot {state.slot} is begun twice"
        held_bytes = self.held_bytes + size_bytes
        reason = self._why_no_room(self._bytes_of[frame.tenant] + size_bytes, frame.tenant)
        # Twice: the books know weights and frames alone, and frames need what they leave free.
        reason = reason or self._why_no_room(2 * held_bytes, "")
        if not reason:
            try:
                self._slots[key] = _Slot(frame.tenant, state.tensors, size_bytes)
            except RuntimeError:
                reason = "the process of the device is at its limit"
        if reason:
            mib = size_bytes / MIB
            held = self.held_bytes / MIB
            return (
                f"the state of a sequence takes {mib:.3f} MiB and does not fit: {reason}; those "
                f"of other sequences take {held:.1f} MiB"
            )
        self._bytes_of[frame.tenant] += size_bytes
        return ""

    def drop(self, model: str, slot: int) -> None:
        """Forget a state. Unknown slots are no error."""
        dropped = self._slots.pop((model, slot), None)
        if dropped is not None:
            self._bytes_of[dropped.tenant] -= dropped.size_bytes
            if not self._bytes_of[dropped.tenant]:
                del self._bytes_of[dropped.tenant]

    def drop_model(self, model: str) -> None:
        """Forget all states of a model that is gone."""
        for key in [key for key in self._slots if key[0] == model]:
            self.drop(*key)

    # One step

    def bound(self, frame: Submit, given: Tensors, reserved: Tensors) -> tuple[Tensors, Tensors]:
        """All inputs of a step and regions for all its outputs, in the program's order: what was
        given and reserved, and what is kept. An output that is kept goes to its slot, also if it is
        told."""
        assert frame.sequence is not None
        slot, tensors = self._slots[frame.model, frame.sequence.slot], frame.sequence.tensors
        untold = [
            region
            for place, region in zip(_places_of_blocks(frame), reserved, strict=True)
            if all(place != tensor.output for tensor in tensors)
        ]
        inputs = dict(zip([tensor.input for tensor in tensors], slot.committed, strict=True))
        outputs = dict(zip([tensor.output for tensor in tensors], slot.spare, strict=True))
        return _merged(given, inputs), _merged(untold, outputs)

    def commit(
        self, frame: Submit, regions: Tensors, results: Tensors, reserved: Tensors
    ) -> tuple[Tensors, Tensors]:
        """A step completed: what it wrote is the state from now on. Returns the regions and results
        of what was reserved. Raises StateMisshaped and commits nothing."""
        assert frame.sequence is not None
        for tensor in frame.sequence.tensors:
            if results[tensor.output] is not regions[tensor.output]:
                raise StateMisshaped(
                    f"output {tensor.output}, which its sequence keeps, came as "
                    f"{list(results[tensor.output].shape)}, expected {list(tensor.shape)}"
                )
        slot = self._slots.get((frame.model, frame.sequence.slot))
        if slot is not None:  # else nobody waits for this step, nor does another come
            slot.committed, slot.spare = slot.spare, slot.committed
        regions, results = list(regions), list(results)
        places = _places_of_blocks(frame)
        for place, told in zip(places, reserved, strict=True):
            if any(place == tensor.output for tensor in frame.sequence.tensors):
                regions[place] = results[place] = told.copy_(results[place])
        return [regions[place] for place in places], [results[place] for place in places]


def _zeros(tensors: Sequence[StateTensor]) -> Tensors:
    return [torch.zeros(each.shape, dtype=DTYPES[each.datatype]) for each in tensors]


def _bytes(tensor: StateTensor) -> int:
    count = DTYPES[tensor.datatype].itemsize
    for size in tensor.shape:
        count *= size
    return count


def _places_of_blocks(frame: Submit) -> list[int]:
    """Where the outputs that a step has blocks for stand among those of its program."""
    assert frame.sequence is not None
    untold = [tensor.output for tensor in frame.sequence.tensors if not tensor.is_told]
    return [place for place in range(len(frame.outputs) + len(untold)) if place not in untold]


def _merged(others: Tensors, kept: dict[int, torch.Tensor]) -> Tensors:
    """Tensors in the program's order: these at their places, the others at those that are left."""
    rest = iter(others)
    return [
        kept[place] if place in kept else next(rest) for place in range(len(others) + len(kept))
    ]
