"""A program: a model cut into kernel groups, in a form that an executor can launch.

A frame's content is a plain list with one place per slot; a group reads and writes it. A program
holds no state of a run, so any number of cursors may share it. It must not know time: where to cut
was decided before.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from gpumuxd.models.plan import Plan, Slot
from gpumuxd.programs.codegen import Group, GroupWriter, check_keyword, compile_group


class Bindings:
    """What the numbered globals of generated code stand for. One per model, shared by its programs.

    `operators` by plan name, `weights` by index, `constants` any hashable argument of a plan.
    """

    def __init__(
        self,
        operators: dict[str, Any],
        weights: Sequence[torch.Tensor],
        constants: dict[Any, Any],
    ) -> None:
        self.operators = operators
        self.weights = weights
        self.constants = constants
        self._numbers: dict[tuple[str, Any], int] = {}

    def name(self, kind: str, key: Any) -> str:
        """The global that stands for this thing."""
        # 0.0 == -0.0 and 1 == 1.0 == True are different arguments: the repr keeps them apart.
        return f"{kind[0]}{self._numbers.setdefault((kind, repr(key)), len(self._numbers))}"

    def value(self, kind: str, key: Any) -> Any:
        match kind:
            case "operator":
                return self.operators[key]
            case "weight":
                return self.weights[key]
            case _:
                return self.constants[repr(key)]


class Program:
    """The launchable form of a model for one choice of cuts.

    `cuts[i]` is the end node (exclusive) of group i; the last one is the number of nodes.
    """

    def __init__(self, plan: Plan, bindings: Bindings, cuts: Sequence[int]) -> None:
        starts = [0, *cuts[:-1]]
        assert [*cuts[-1:]] == [len(plan.nodes)], "the last cut is the end of the program"
        assert all(a < b for a, b in zip(starts, cuts, strict=True)), "a group has a node at least"
        for node in plan.nodes:
            for name, _ in node.keywords:
                check_keyword(name)  # here too: a refusal belongs to the load, not to a run
        self._plan = plan
        self._weights = bindings.weights
        self._weight_storages = {weight.untyped_storage().data_ptr() for weight in bindings.weights}
        self.cuts = tuple(cuts)
        self.groups: list[Group] = [
            self._uncompiled(bindings, group, start, end)
            for group, (start, end) in enumerate(zip(starts, cuts, strict=True))
        ]

    def _uncompiled(self, bindings: Bindings, group: int, start: int, end: int) -> Group:
        """A group that is compiled by its first run and then takes this one's place.

        A quarter of a millisecond each: all at once, they would keep the GIL from a device that
        serves for as long as all take. So they are part of the first run, which is a measurement's.
        """

        # Weakly, since the program holds this: without cycles it goes when nobody needs it.
        program = weakref.ref(self)

        def compile_and_run(slots: list[Any]) -> None:
            owner = program()
            assert owner is not None, "whoever runs a group holds its program"
            owner.groups[group] = compiled = owner._compile(bindings, start, end)
            compiled(slots)

        return compile_and_run

    def _compile(self, bindings: Bindings, start: int, end: int) -> Group:
        namespace: dict[str, Any] = {}

        def bind(kind: str, key: Any) -> str:
            name = bindings.name(kind, key)
            namespace[name] = bindings.value(kind, key)
            return name

        source = GroupWriter(bind).write(self._plan.nodes[start:end])
        return compile_group(source, namespace, f"kernel group of nodes {start} to {end - 1}")

    @property
    def group_count(self) -> int:
        return len(self.groups)

    def start(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """The content of a new frame. `inputs` are in the order of the spec, validated before."""
        assert len(inputs) == len(self._plan.spec.inputs), "inputs are validated at the edge"
        return [*inputs, *([None] * (self._plan.slot_count - len(inputs)))]

    def outputs(self, slots: Sequence[Any]) -> list[torch.Tensor]:
        """The results, dense, in the order of the spec. Only after the last group."""
        return [
            (
                slots[item.index] if isinstance(item, Slot) else self._weights[item.index]
            ).contiguous()
            for item in self._plan.outputs
        ]

    def bytes_held(self, slots: Sequence[Any]) -> int:
        """Bytes that a frame keeps alive now: distinct storages, weights not counted."""
        storages: dict[int, int] = {}
        for value in slots:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        return sum(
            size for pointer, size in storages.items() if pointer not in self._weight_storages
        )
