"""The rules of ARCHITECTURE.md that a program can check, on sources as text.

Nothing is imported: the sources are parsed, so a module that can't be imported here (no torch, no
GPU) is checked all the same. Every finding names a file, a line and the remedy. Imports inside
functions count like any other; only the search for torch leaves them out, since they run later.
Generated code is exempt.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "gpumuxd"

LAYERS: Mapping[str, frozenset[str]] = {
    # layer -> the layers it may import, itself aside
    "compiled": frozenset(),  # which form of core is imported: it reads files, core does not
    "vocabulary": frozenset(),
    "messages": frozenset({"vocabulary"}),
    "core": frozenset({"vocabulary", "messages", "compiled"}),
    "models": frozenset({"vocabulary", "messages"}),
    "wire": frozenset({"vocabulary", "messages"}),
    "programs": frozenset({"vocabulary", "messages", "models"}),
    "executors": frozenset({"vocabulary", "messages", "models", "programs"}),
    "loader": frozenset({"vocabulary", "messages", "models", "wire"}),
    # The format of recordings, which a child writes and a command reads, and what is done with one:
    # the scheduler alone, on a virtual device. No process, no channel, no tensor.
    "replay": frozenset({"vocabulary", "messages", "compiled", "core", "executors"}),
    "device": frozenset(
        {"vocabulary", "messages", "core", "models", "programs", "executors", "wire", "replay"}
    ),
    "node": frozenset({"vocabulary", "messages", "core", "models", "wire"}),
    "rpc": frozenset({"vocabulary", "messages", "models", "node"}),
    "testing": frozenset(
        {"vocabulary", "messages", "core", "models", "programs", "executors", "wire", "device"}
        | {"replay"}
    ),
    "zoo": frozenset({"vocabulary", "models", "programs", "demo"}),
    "daemon": frozenset(
        {"vocabulary", "messages", "core", "models", "wire", "node", "rpc"}
        | {"programs", "demo", "replay"}  # `gpumuxd export`, `demo`, `replay`: when asked for
    ),
    "ctl": frozenset({"vocabulary"}),
    "demo": frozenset({"vocabulary", "models", "programs"}),
}

LAYER_OF_MODULE = {
    **dict.fromkeys(
        ["gpumuxd", "gpumuxd.domain", "gpumuxd.units", "gpumuxd.errors", "gpumuxd.clock"],
        "vocabulary",
    ),
    "gpumuxd.settings": "vocabulary",
    "gpumuxd.events": "messages",
    "gpumuxd.commands": "messages",
}

PARENT_LAYERS = frozenset({"node", "rpc", "daemon", "ctl", "loader"})

PURE_LAYERS = frozenset({"vocabulary", "messages", "core"})
IMPURE = frozenset(
    {"asyncio", "concurrent", "datetime", "grpc", "logging", "multiprocessing", "numpy", "os"}
    | {"random", "secrets", "select", "signal", "socket", "subprocess", "threading", "time"}
    | {"torch", "uvloop"}
)

EVERY_LAYER = frozenset(LAYERS)
ONLY_IN: Mapping[str, tuple[frozenset[str], str]] = {
    # package -> the layers that may import it, the remedy for others
    "torch": (
        frozenset({"programs", "executors", "device", "demo", "zoo"}),
        "torch belongs to the device child; the parent must stay small and never wait for it",
    ),
    "grpc": (frozenset({"rpc"}), "gRPC belongs to rpc/ and the clients; pass node/api.py values"),
    "google": (frozenset({"rpc"}), "protobuf belongs to rpc/; pass values of node/api.py"),
    "asyncio": (
        frozenset({"node", "rpc", "daemon", "demo", "ctl"}),
        "the device child and all below it are plain threads and calls",
    ),
    "uvloop": (frozenset({"daemon"}), "who makes the event loop is daemon/"),
    "transformers": (
        frozenset({"demo", "zoo"}),
        "the daemon serves artifacts, it knows no library",
    ),
    "gpumuxd_client": (frozenset({"ctl", "demo"}), "the daemon is not its own client"),
    "random": (
        EVERY_LAYER - PURE_LAYERS - {"wire", "models", "programs", "executors", "device"},
        "a daemon that draws lots can't be replayed",
    ),
    **{
        runtime: (frozenset(), "the CUDA runtime is named in executors/cuda/driver.py alone")
        for runtime in ("cuda", "cupy", "pycuda", "numba")
    },
}
CUDA_DRIVER = "gpumuxd.executors.cuda.driver"

WALL_CLOCK_OK: Mapping[str, str] = {
    "gpumuxd/daemon/logging.py": "people read the time of a log line",
    "gpumuxd/device/log.py": "people read the time of a log line",
    "gpumuxd/device/recorder.py": "people read when a recording was made",
    "gpumuxd/models/files.py": "times of a file, compared with each other and with no clock",
    "gpumuxd/node/version_counters.py": "people read when a model was last used",
    "gpumuxd/rpc/call.py": "gRPC's own, of three readings the one in the middle",
    "gpumuxd/rpc/streams.py": "the same of a stream",
}
"""Who may look at the wall clock, and why a jump of it changes no decision there."""

WALL_CLOCK = frozenset(
    {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime", "CLOCK_REALTIME"}
)
"""What of the module `time` follows the wall clock."""

WALL_CLOCK_ANYWHERE = frozenset(
    {"utcnow", "today", "fromtimestamp", "TimeStamper", "time_remaining", "getmtime"}
    | {f"st_{which}time{unit}" for which in "acm" for unit in ("", "_ns")}
)
"""Attributes that follow it, whatever they are of: datetime, os.stat_result, structlog, gRPC."""

SYNONYMS = {
    "card": "device",
    "user": "tenant",
    "job": "cursor (what moves) or request (what was asked)",
    "slack": "laxity",
    "barrier": "sync_point",
    "shed": "reject",
    "ready_list": "run_queue",
    "buffer_pool": "arena",
    "launch_depth": "launch_window",
}
"""Words that ARCHITECTURE.md's glossary replaces, those of them that mean nothing else here."""

FOREIGN_LAYERS = frozenset({"models", "wire"})
"""Layers that speak the language of a file format (`user_input`) or of the kernel."""

FOREIGN_NAMES = ("timer_slack",)
"""Names that others gave: this one is the kernel's."""


@dataclass(frozen=True, slots=True)
class Source:
    """One file. `module` is its dotted name, empty for one that is not importable."""

    path: str
    module: str
    text: str

    @property
    def is_generated(self) -> bool:
        return "generated" in Path(self.path).parts

    @property
    def layer(self) -> str:
        return layer_of(self.module)

    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)


def layer_of(module: str) -> str:
    """The layer of a module of the package; a new top-level module has to be given one."""
    if module in LAYER_OF_MODULE:
        return LAYER_OF_MODULE[module]
    parts = module.split(".")
    if parts[1:3] == ["testing", "zoo"]:  # models to serve; the rest of testing knows no torch
        return "zoo"
    return parts[1] if len(parts) > 1 else ""


def read_sources(root: Path, folder: str) -> list[Source]:
    """All Python files below a folder, with their dotted names seen from `root`."""
    found = []
    for path in sorted((root / folder).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Source(str(path.relative_to(root)), module, path.read_text()))
    return found


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name. `target` is `a.b.c` for `import a.b.c` and `from a.b import c` alike."""

    target: str
    line: int
    is_lazy: bool


@cache
def imports_of(source: Source) -> tuple[Import, ...]:
    """Every import of a file, those inside functions marked lazy. Kept: most rules ask for them."""

    def visit(node: ast.AST, is_lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import():
                    for alias in child.names:
                        yield Import(alias.name, child.lineno, is_lazy)
                case ast.ImportFrom():
                    origin = "." * child.level + (child.module or "")
                    for alias in child.names:
                        yield Import(f"{origin}.{alias.name}", child.lineno, is_lazy)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    yield from visit(child, True)
                case _:
                    yield from visit(child, is_lazy)

    return tuple(visit(source.tree(), False))


def module_of(target: str, modules: Mapping[str, Source]) -> str:
    """The module that an import of `target` loads: the target itself or what defines it."""
    return target if target in modules else target.rpartition(".")[0]


def checked(sources: Iterable[Source]) -> list[Source]:
    """Those that are not generated."""
    return [source for source in sources if not source.is_generated]


def find_layer_violations(sources: Iterable[Source]) -> Iterator[str]:
    """Imports that point up or sideways, and modules that belong to no layer."""
    for source in checked(sources):
        if source.layer not in LAYERS:
            yield (
                f"{source.path}: belongs to no layer; move it into one or name it in "
                "tests/architecture.py and ARCHITECTURE.md"
            )
            continue
        allowed = LAYERS[source.layer] | {source.layer}
        for item in imports_of(source):
            where = f"{source.path}:{item.line}"
            if item.target.startswith("."):
                yield f"{where}: relative import; write the whole name, so that layers can be seen"
            if item.target.split(".")[0] != PACKAGE or item.target == PACKAGE:
                continue
            layer = layer_of(item.target)
            if layer not in LAYERS:
                layer = layer_of(item.target.rpartition(".")[0])
            if layer not in allowed:
                yield (
                    f"{where}: {source.layer} may not import {layer} ({item.target}); move what "
                    "both need to a lower layer, or pass it in as a value or a callable"
                )


def find_banned_imports(sources: Iterable[Source]) -> Iterator[str]:
    """Packages in layers that must not know them."""
    for source in checked(sources):
        for item in imports_of(source):
            top = item.target.split(".")[0]
            where = f"{source.path}:{item.line}"
            is_clock = source.module == "gpumuxd.clock" and top == "time"
            if source.layer in PURE_LAYERS and top in IMPURE and not is_clock:
                yield (
                    f"{where}: {source.layer} imports {top}; this layer is pure: "
                    "take the time, the value or the answer as an argument"
                )
            elif source.layer in PURE_LAYERS and not (
                top in sys.stdlib_module_names or top == PACKAGE
            ):
                yield f"{where}: {source.layer} imports {top}; only the standard library is allowed"
            elif top in ONLY_IN and source.module != CUDA_DRIVER:
                layers, remedy = ONLY_IN[top]
                if source.layer not in layers:
                    yield f"{where}: {source.layer} imports {top}; {remedy}"


def find_cycles(sources: Iterable[Source]) -> Iterator[str]:
    """Modules that import each other, also by way of others and inside functions."""
    modules = {source.module: source for source in checked(sources)}
    graph = {
        name: {module_of(item.target, modules) for item in imports_of(source)} & modules.keys()
        for name, source in modules.items()
    }
    finished: set[str] = set()

    def search(module: str, path: list[str]) -> Iterator[str]:
        if module in path:
            cycle = " -> ".join([*path[path.index(module) :], module])
            yield f"import cycle: {cycle}; move what both need into a module below them"
            return
        if module not in finished:
            for target in sorted(graph[module] - {module}):
                yield from search(target, [*path, module])
            finished.add(module)

    for module in sorted(modules):
        yield from search(module, [])


def find_torch_in_parent(sources: Iterable[Source]) -> Iterator[str]:
    """Modules of the parent and the loader whose import would import torch, however far down."""
    modules = {source.module: source for source in sources}
    for name, source in sorted(modules.items()):
        if source.layer not in PARENT_LAYERS:
            continue
        seen, waiting = {name}, [(name, [name])]
        while waiting:
            module, path = waiting.pop()
            for item in imports_of(modules[module]):
                if item.is_lazy:
                    continue
                if item.target.split(".")[0] == "torch":
                    yield (
                        f"{source.path}: importing it imports torch ({' -> '.join(path)}); "
                        "import that inside the function that needs it, or move it"
                    )
                target = module_of(item.target, modules)
                if target in modules and target not in seen:
                    seen.add(target)
                    waiting.append((target, [*path, target]))


def find_type_checking(sources: Iterable[Source]) -> Iterator[str]:
    """`TYPE_CHECKING`, which hides a cycle instead of removing it."""
    for source in checked(sources):
        if "TYPE_CHECKING" not in source.text:
            continue  # parsing them all would take seconds
        for node in ast.walk(source.tree()):
            if not isinstance(node, ast.Name | ast.Attribute):
                continue
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name == "TYPE_CHECKING":
                yield (
                    f"{source.path}:{node.lineno}: TYPE_CHECKING hides an import that points up; "
                    "declare a Protocol below or move the type"
                )


def find_wall_clock(sources: Iterable[Source]) -> Iterator[str]:
    """Looks at the wall clock, which people and NTP set."""
    for source in checked(sources):
        found = sorted(_wall_clock_lines(source))
        if source.path in WALL_CLOCK_OK:
            if not found:
                yield f"{source.path}: looks at no wall clock; strike it from WALL_CLOCK_OK"
            continue
        for line, name in found:
            yield (
                f"{source.path}:{line}: {name} follows the wall clock, which jumps; ask clock.py, "
                "or say in WALL_CLOCK_OK of tests/architecture.py why a jump is harmless here"
            )


def _wall_clock_lines(source: Source) -> Iterator[tuple[int, str]]:
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            follows = WALL_CLOCK if owner == "time" else {"now"} if owner == "datetime" else ()
            if node.attr in WALL_CLOCK_ANYWHERE or node.attr in follows:
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            for alias in node.names:
                if alias.name in WALL_CLOCK:
                    yield node.lineno, alias.name


def find_missing_docstrings(sources: Iterable[Source]) -> Iterator[str]:
    """Modules that don't say what they are."""
    for source in checked(sources):
        if not ast.get_docstring(source.tree()):
            yield (
                f"{source.path}: no docstring; begin with what the module is, what it must not "
                "know and its invariant"
            )


def find_synonyms(sources: Iterable[Source]) -> Iterator[str]:
    """Names defined here that say in another word what the glossary has a word for."""
    for source in checked(sources):
        if source.layer in FOREIGN_LAYERS:
            continue
        for name, line in _defined_names(source):
            spelled = f"_{_snake(name)}_"
            for foreign in FOREIGN_NAMES:
                spelled = spelled.replace(f"_{foreign}_", "_")
            for synonym, word in SYNONYMS.items():
                if f"_{synonym}_" in spelled or f"_{synonym}s_" in spelled:
                    yield f"{source.path}:{line}: {name}: don't say {synonym!r}, say {word}"


def _defined_names(source: Source) -> Iterator[tuple[str, int]]:
    """Functions, classes, arguments and variables of a file, with their lines."""
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def _snake(name: str) -> str:
    """`ReadyList` and `ready_list` as `ready_list`."""
    return "".join(
        f"_{letter.lower()}" if letter.isupper() and i and name[i - 1].islower() else letter
        for i, letter in enumerate(name)
    ).lower()


def find_banned_in_tests(sources: Iterable[Source]) -> Iterator[str]:
    """Sleeps and mocks."""
    for source in checked(sources):
        for node in ast.walk(source.tree()):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            is_zero = (
                len(node.args) == 1
                and isinstance(node.args[0], ast.Constant)
                and node.args[0].value == 0
            )
            if name == "sleep" and not is_zero:
                yield (
                    f"{source.path}:{node.lineno}: a test must not sleep; wait for the event, "
                    "the socket or the process, with a time limit"
                )
        for item in imports_of(source):
            if item.target.startswith(("unittest.mock", "mock.", "pytest_mock")):
                yield (
                    f"{source.path}:{item.line}: no mocks; write a small fake that passes the "
                    "suite of the real thing"
                )
