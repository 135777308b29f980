"""One generated Python function per kernel group.

A group gets the frame's slot list. Values that live and die inside the group become locals, what
outlives it is stored in its slot, and everything is dropped right after its last use, so memory is
what the whole exported program would use. Weights, operators and constants are globals of the
generated function.

Code is made of integers and literals only: operators, keywords' values, strings and floats enter as
globals under numbered names. The one text from outside is a keyword's name, which must be an
identifier. Each group is compiled by itself: a long `compile()` would keep the GIL from the device
loop.
"""

import keyword
from collections.abc import Callable, Mapping
from typing import Any

from gpumuxd.errors import InvalidModel
from gpumuxd.models.plan import Argument, Many, Node, Slot, Weight, operands

Group = Callable[[list[Any]], None]


class GroupWriter:
    """Writes the function of the nodes `first <= i < end`."""

    def __init__(self, bind: Callable[[str, Any], str]) -> None:
        self._bind = bind
        self._lines: list[str] = []
        self._locals: set[int] = set()

    def write(self, nodes: tuple[Node, ...]) -> str:
        """The source of a group. A slot written here and not cleared here outlives the group."""
        cleared = {slot for node in nodes for slot in node.clears}
        stored: set[int] = set()
        for node in nodes:
            for item in operands(node):
                if isinstance(item, Slot) and item.index not in self._locals:
                    self._lines.append(f"v{item.index} = s[{item.index}]")
                    self._locals.add(item.index)
                    stored.add(item.index)
            self._write_call(node, cleared)
            for slot in node.clears:
                if slot in stored:
                    self._lines.append(f"s[{slot}] = None")
                self._lines.append(f"v{slot} = None")
        return "def group(s):\n" + "".join(f"    {line}\n" for line in self._lines)

    def _write_call(self, node: Node, cleared: set[int]) -> None:
        operator = self._bind("operator", node.operator)
        arguments = [self._argument(argument) for argument in node.arguments]
        for name, argument in node.keywords:
            check_keyword(name)
            arguments.append(f"{name}={self._argument(argument)}")
        call = f"{operator}({', '.join(arguments)})"
        results = [(i, slot) for i, slot in enumerate(node.results) if slot is not None]
        if not results:
            self._lines.append(call)
        elif node.returns_list:
            self._lines.append(f"r = {call}")
            for i, slot in results:
                self._lines.append(f"{self._target(slot, cleared)} = r[{i}]")
            self._lines.append("r = None")
        else:
            ((_, slot),) = results
            self._lines.append(f"{self._target(slot, cleared)} = {call}")

    def _target(self, slot: int, cleared: set[int]) -> str:
        self._locals.add(slot)
        return f"v{slot}" if slot in cleared else f"v{slot} = s[{slot}]"

    def _argument(self, argument: Argument) -> str:
        match argument:
            case Slot(index=index):
                return f"v{index}"
            case Weight(index=index):
                return self._bind("weight", index)
            case None | bool() | int():
                return repr(argument)
            case Many(items=items) if any(isinstance(item, Slot | Weight) for item in items):
                return "[" + ", ".join(self._argument(item) for item in items) + "]"
            case _:
                return self._bind("constant", argument)


def check_keyword(name: str) -> None:
    """Raise InvalidModel unless `name=` may stand in a call."""
    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        raise InvalidModel(f"{name[:40]!r} can't be the keyword of an argument")


def compile_group(source: str, namespace: Mapping[str, Any], label: str) -> Group:
    """The function of a source, with these globals."""
    # torch imports a module of its own to convert some arguments (an optional bool, for one), and
    # Python looks for `__import__` in the globals of whoever called. The code itself has no names.
    scope: dict[str, Any] = {"__builtins__": {"__import__": __import__}, **namespace}
    exec(compile(source, f"<{label}>", "exec"), scope)
    # Taken out of its own globals: a cycle would keep the weights until somebody collects garbage,
    # which is never done while the device serves.
    group: Group = scope.pop("group")
    return group
