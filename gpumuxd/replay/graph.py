"""The scheduler at one moment as plain data, and back: how a recording can begin while all goes on.

The object graph is written as a list of nodes with numbers for references, in msgpack. Pickle
would be shorter, but a pickle is a program, and a recording is a file that strangers send. Here a
file can name classes of the scheduler's own modules and their fields, and nothing is called:
objects are made without their constructors and their fields are set. What is restored may still be
nonsense, which its user has to expect. It must not know what any class means.

Every value is a scalar, or `[n]`: the node of that number. `[]` is a field that was never set.

    ["l", ...]  list          ["t", ...]  tuple            ["d", key, value, ...]  dictionary
    ["s", ...]  set           ["q", maxlen, ...]  deque    ["i", "123"]  integer over 64 bits
    ["I", bytes] list of integers alone, of 8 bytes each, which most of it is
    ["e", class, value]  member of an enumeration          ["n", class, ...]  named tuple
    ["o", class, ...]    object; its fields in the order of the class's table

Invariant: what is read has the identities of what was written: two references to one object stay
two references to one object. What can't be filled later, a tuple, refers to nodes before it, and no
tuple is deeper than `DEPTH_MAX`: the interpreter hashes and frees them in C, by recursion.
"""

import enum
import sys
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any

import msgspec

OWN_MODULES = frozenset(
    {"gpumuxd.domain", "gpumuxd.settings", "gpumuxd.events", "gpumuxd.commands"}
)
OWN_PACKAGE = "gpumuxd.core."

DEPTH_MAX = 32
"""Of tuples in tuples; a scheduler has less than 5."""

_SCALARS: frozenset[type] = frozenset({int, str, bool, float, type(None)})
_INT: frozenset[type] = frozenset({int})
_INT_MAX = (1 << 63) - 1

_encode = msgspec.msgpack.Encoder().encode


class NotPlain(Exception):
    """Something in the graph can't be written: it names what and where."""


class Graph(msgspec.Struct, array_like=True):
    """What is written: `classes` are names with their fields, node 0 is the root."""

    classes: list[tuple[str, list[str]]]
    nodes: list[list[Any]]


_decoder = msgspec.msgpack.Decoder(Graph)


def freeze(root: object) -> bytes:
    """The object and all that it refers to. Raises NotPlain. Changes nothing."""
    try:
        return _Freezer(_SCALARS).freeze(root)
    except OverflowError:  # some integer has over 64 bits: look at each
        return _Freezer(_SCALARS - _INT).freeze(root)


def is_own(module: str) -> bool:
    """May a class of this module be in a graph?"""
    return module in OWN_MODULES or module.startswith(OWN_PACKAGE)


def fields_of(cls: type) -> tuple[str, ...]:
    """The slots of a class and its bases, sorted; empty for one that keeps a dictionary.

    Translated classes (`gpumuxd.compiled`) have no slots and name what they have elsewhere.
    """
    if cls.__dictoffset__:
        return ()
    slots: set[str] = set()
    for base in cls.__mro__:
        for table in ("__slots__", "__mypyc_attrs__"):
            own = base.__dict__.get(table, ())
            slots.update([own] if isinstance(own, str) else own)
    return tuple(sorted(slots))


class _Freezer:
    def __init__(self, as_they_are: frozenset[type]) -> None:
        self._as_they_are = as_they_are
        self._getters: dict[type, Callable[[Any], tuple[Any, ...]]] = {}
        self._nodes: list[list[Any]] = []
        self._numbers: dict[int, int] = {}  # of objects, by their `id`: all stay alive meanwhile
        self._pending: list[tuple[list[Any], Any]] = []
        self._classes: dict[tuple[type, tuple[str, ...]], int] = {}
        self._fields: dict[type, tuple[str, ...]] = {}

    def freeze(self, root: object) -> bytes:
        assert self._value(root) == [0], "the root is an object of its own"
        while self._pending:
            node, value = self._pending.pop()
            self._fill(node, value)
        classes = [
            (f"{cls.__module__}:{cls.__qualname__}", list(fields)) for cls, fields in self._classes
        ]
        return _encode(Graph(classes, self._nodes))

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in self._as_they_are:
            return value
        if kind is int:
            is_large = not -_INT_MAX <= value <= _INT_MAX
            return [self._append(["i", str(value)])] if is_large else value
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = self._add(value, kind)
        return [number]

    def _append(self, node: list[Any]) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _add(self, value: Any, kind: type) -> int:
        if kind is tuple:
            return self._append(["t", *[self._value(item) for item in value]])
        if issubclass(kind, tuple):
            content = [self._value(item) for item in value]
            return self._append(["n", self._class_no(kind, ()), *content])
        if issubclass(kind, enum.Enum):
            return self._append(["e", self._class_no(kind, ()), value.value])
        node: list[Any] = []
        self._pending.append((node, value))
        return self._append(node)

    def _fill(self, node: list[Any], value: Any) -> None:
        kind, of = type(value), self._value
        if kind is list:
            if set(map(type, value)) == _INT and (packed := _packed(value)) is not None:
                node += ["I", packed]
            else:
                node += ["l", *map(of, value)]
        elif kind is dict:
            node.append("d")
            for key, item in value.items():
                node += (of(key), of(item))
        elif kind is deque:
            node += ["q", value.maxlen, *map(of, value)]
        elif kind is set:
            node += ["s", *map(of, value)]
        else:
            self._fill_object(node, value, kind)

    def _fill_object(self, node: list[Any], value: Any, kind: type) -> None:
        fields = self._fields.get(kind)
        if fields is None:
            fields = fields_of(kind)
            self._fields[kind] = fields
            if len(fields) > 1:
                self._getters[kind] = attrgetter(*fields)
        fields = fields or tuple(sorted(getattr(value, "__dict__", ())))
        node += ["o", self._class_no(kind, fields)]
        try:
            values = self._getters[kind](value)
            kinds, of = self._as_they_are, self._value
            node += [item if type(item) in kinds else of(item) for item in values]
        except (KeyError, AttributeError, NotPlain):
            del node[2:]
            self._fill_fields(node, value, kind, fields)

    def _fill_fields(
        self, node: list[Any], value: Any, kind: type, fields: tuple[str, ...]
    ) -> None:
        """One by one: some are not set, or one can't be written and has to be named."""
        for field in fields:
            try:
                item = getattr(value, field)
            except AttributeError:
                node.append([])
                continue
            try:
                node.append(self._value(item))
            except NotPlain as error:
                raise NotPlain(f"{kind.__qualname__}.{field}: {error}") from None

    def _class_no(self, cls: type, fields: tuple[str, ...]) -> int:
        number = self._classes.get((cls, fields))
        if number is None:
            if not is_own(cls.__module__):
                raise NotPlain(f"a {cls.__module__}.{cls.__qualname__} is none of the scheduler's")
            number = self._classes[cls, fields] = len(self._classes)
        return number


def _packed(numbers: list[int]) -> bytes | None:
    try:
        return array("q", numbers).tobytes()
    except OverflowError:
        return None


class Unreadable(Exception):
    """Not a graph, or one of another version: the message says which."""


def thaw(data: bytes, modules: Mapping[str, ModuleType]) -> object:
    """The object that was frozen, its classes from these modules. Raises Unreadable."""
    try:
        graph = _decoder.decode(data)
        return _Thawer(graph, modules).thaw()
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("not the state of a scheduler: it is nested too deep") from None
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"not the state of a scheduler: {error}") from error


class _Thawer:
    def __init__(self, graph: Graph, modules: Mapping[str, ModuleType]) -> None:
        self._nodes = graph.nodes
        self._classes = [
            (_class_named(name, fields, modules), fields) for name, fields in graph.classes
        ]
        self._made: list[Any] = [None] * len(graph.nodes)
        self._depths: dict[int, int] = {}  # of tuples with tuples in them, by their nodes

    def thaw(self) -> object:
        for number, node in enumerate(self._nodes):
            self._made[number] = self._make(number, node)
        # Fields before containers: what is a key has to be whole before it is hashed.
        for fill in (self._fill_object, self._fill_container):
            for made, node in zip(self._made, self._nodes, strict=True):
                fill(made, node)
        return self._made[0]

    def _make(self, number: int, node: list[Any]) -> Any:
        match node:
            case ["l", *_] | ["I", bytes()]:
                return []
            case ["d", *_]:
                return {}
            case ["s", *_]:
                return set()
            case ["q", int() | None as maxlen, *_]:
                return deque(maxlen=maxlen)
            case ["o", int(index), *_]:
                return _new(self._classes[index][0])
            case ["i", str(text)]:
                return int(text)
            case ["t", *items]:
                return tuple(self._items(items, number))
            case ["n", int(index), *items]:
                cls = self._classes[index][0]
                if len(items) != len(getattr(cls, "_fields", ())):
                    raise Unreadable(f"{cls.__qualname__} has another number of fields here")
                return tuple.__new__(cls, self._items(items, number))
            case ["e", int(index), int() | str() as value]:
                return _member(self._classes[index][0], value)
        raise Unreadable(f"node {number} is of no known kind")

    def _items(self, items: list[Any], number: int) -> list[Any]:
        """Of a tuple: nodes before it."""
        found = []
        depth = 0
        for item in items:
            if isinstance(item, list):
                if item[0] >= number:
                    raise Unreadable(f"node {number} refers to one after it")
                if self._nodes[item[0]][0] in ("t", "n"):
                    depth = max(depth, 1 + self._depths.get(item[0], 0))
            found.append(self._value(item))
        if depth > DEPTH_MAX:
            raise Unreadable(f"node {number} is a tuple of more than {DEPTH_MAX} in each other")
        if depth:
            self._depths[number] = depth
        return found

    def _value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        (number,) = value
        if number < 0:
            raise Unreadable(f"there is no node {number}")
        return self._made[number]

    def _fill_object(self, made: Any, node: list[Any]) -> None:
        if node[0] != "o":
            return
        _, fields = self._classes[node[1]]
        for field, value in zip(fields, node[2:], strict=True):
            if value != []:
                object.__setattr__(made, field, self._value(value))

    def _fill_container(self, made: Any, node: list[Any]) -> None:
        of: Callable[[Any], Any] = self._value
        match node:
            case ["I", bytes(packed)]:
                numbers = array("q")
                numbers.frombytes(packed)
                made += numbers
            case ["l", *items]:
                made += map(of, items)
            case ["d", *items]:
                keys, values = items[::2], items[1::2]
                made.update(zip(map(of, keys), map(of, values), strict=True))
            case ["s", *items]:
                made.update(map(of, items))
            case ["q", _, *items]:
                made.extend(map(of, items))


def _class_named(name: str, fields: list[str], modules: Mapping[str, ModuleType]) -> type:
    module, _, qualname = name.partition(":")
    places = sys.modules if module in OWN_MODULES else modules
    cls = getattr(places.get(module), qualname, None) if is_own(module) else None
    if not isinstance(cls, type) or cls.__module__ != module:
        raise Unreadable(f"the scheduler of this version has no {name!r}")
    if any(field.startswith("__") for field in fields):  # those mean something to the interpreter
        raise Unreadable(f"{name} has no fields of the interpreter's")
    if cls.__dictoffset__:
        if any(callable(getattr(cls, field, None)) for field in fields):  # it would hide a method
            raise Unreadable(f"{name} has other fields in this version")
    elif fields and tuple(fields) != fields_of(cls):
        raise Unreadable(f"{name} has other fields in this version")
    return cls


def _new(cls: type) -> object:
    """An object without its constructor."""
    if issubclass(cls, tuple | BaseException | enum.Enum):
        raise Unreadable(f"{cls.__qualname__} is no class of the scheduler's objects")
    return cls.__new__(cls)


def _member(cls: type, value: int | str) -> enum.Enum:
    if not issubclass(cls, enum.Enum):
        raise Unreadable(f"{cls.__qualname__} is no enumeration")
    return cls(value)
