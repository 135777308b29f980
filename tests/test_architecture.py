"""The rules of ARCHITECTURE.md hold in this tree, and the checker that says so can say no."""

import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests import architecture
from tests.architecture import Source, read_sources

ROOT = Path(__file__).parent.parent

Check = Callable[[Iterable[Source]], Iterator[str]]

PACKAGE = read_sources(ROOT, "gpumuxd")
CLIENT = read_sources(ROOT / "clients" / "python", "gpumuxd_client")
TESTS = read_sources(ROOT, "tests")
BENCH = read_sources(ROOT, "bench")
PROTOS = read_sources(ROOT, "protos")

OURS = PACKAGE + CLIENT + BENCH + PROTOS

# check, the sources it is for
RULES: list[tuple[Check, list[Source]]] = [
    (architecture.find_layer_violations, PACKAGE),
    (architecture.find_banned_imports, PACKAGE),
    (architecture.find_cycles, PACKAGE),
    (architecture.find_cycles, CLIENT),
    (architecture.find_torch_in_parent, PACKAGE),
    (architecture.find_type_checking, OURS + TESTS),
    (architecture.find_wall_clock, PACKAGE + CLIENT),
    (architecture.find_missing_docstrings, OURS + TESTS),
    (architecture.find_synonyms, PACKAGE + CLIENT),
    (architecture.find_banned_in_tests, TESTS),
]


@pytest.mark.parametrize(
    ("check", "sources"), RULES, ids=[f"{check.__name__}-{i}" for i, (check, _) in enumerate(RULES)]
)
def test_the_tree_keeps_the_rule(check: Check, sources: list[Source]) -> None:
    assert sources, "nothing was found to check"
    findings = list(check(sources))
    assert not findings, "\n" + "\n".join(findings)


def test_the_client_stays_small() -> None:
    allowed = {"gpumuxd_client", "grpc", "google", "numpy", "grpc_health"}
    for source in CLIENT:
        tops = {item.target.split(".")[0] for item in architecture.imports_of(source)}
        foreign = tops - allowed - architecture.sys.stdlib_module_names
        assert not foreign, f"{source.path} imports {foreign}: the client has three dependencies"


def test_what_lies_at_the_root_is_explained() -> None:
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    explained = (ROOT / "ARCHITECTURE.md").read_text()
    entries = {line.partition("/")[0] for line in listing.stdout.splitlines()}
    unexplained = {entry for entry in entries if f"`{entry}" not in explained}
    assert not unexplained, f"say in ARCHITECTURE.md what these are for: {unexplained}"


def source(module: str, text: str) -> Source:
    return Source(module.replace(".", "/") + ".py", module, text)


BAD = [
    # check, module, source, what the finding says
    ("find_layer_violations", "gpumuxd.core.a", "import gpumuxd.node.api", "core may not import"),
    ("find_layer_violations", "gpumuxd.core.a", "from gpumuxd import wire", "may not import wire"),
    ("find_layer_violations", "gpumuxd.domain", "from gpumuxd.events import Event", "messages"),
    ("find_layer_violations", "gpumuxd.wire.a", "from gpumuxd.models.spec import S", "models"),
    ("find_layer_violations", "gpumuxd.core.a", "from . import b", "relative import"),
    ("find_layer_violations", "gpumuxd.core.a", "def f():\n import gpumuxd.rpc.x", "import rpc"),
    ("find_layer_violations", "gpumuxd.node.a", "import gpumuxd.testing.x", "import testing"),
    ("find_layer_violations", "gpumuxd.misc", "", "belongs to no layer"),
    ("find_layer_violations", "gpumuxd.misc.a", "", "belongs to no layer"),
    ("find_banned_imports", "gpumuxd.core.a", "import time", "core imports time"),
    ("find_banned_imports", "gpumuxd.events", "from os import path", "messages imports os"),
    ("find_banned_imports", "gpumuxd.core.a", "import msgspec", "only the standard library"),
    ("find_banned_imports", "gpumuxd.models.a", "import torch.fx", "device child"),
    ("find_banned_imports", "gpumuxd.node.a", "from grpc import aio", "gRPC belongs to rpc/"),
    ("find_banned_imports", "gpumuxd.device.a", "import asyncio", "plain threads"),
    ("find_banned_imports", "gpumuxd.executors.a", "import cuda.bindings", "driver.py alone"),
    ("find_torch_in_parent", "gpumuxd.rpc.a", "import torch", "imports torch (gpumuxd.rpc.a)"),
    ("find_type_checking", "gpumuxd.core.a", "from typing import TYPE_CHECKING\nTYPE_CHECKING", ""),
    ("find_type_checking", "gpumuxd.core.a", "import typing\nif typing.TYPE_CHECKING: pass", "2"),
    ("find_wall_clock", "gpumuxd.node.a", "import time\ntime.time()", ":2: time follows"),
    ("find_wall_clock", "gpumuxd.node.a", "import time\nclock = time.time_ns", "time_ns follows"),
    ("find_wall_clock", "gpumuxd.node.a", "from time import time as now", "time follows"),
    ("find_wall_clock", "gpumuxd.node.a", "datetime.datetime.now(UTC)", "now follows"),
    ("find_wall_clock", "gpumuxd.node.a", "os.stat(x).st_mtime_ns", "st_mtime_ns follows"),
    ("find_wall_clock", "gpumuxd.rpc.a", "context.time_remaining()", "time_remaining follows"),
    ("find_wall_clock", "gpumuxd.rpc.a", "time.clock_gettime(time.CLOCK_REALTIME)", "REALTIME"),
    ("find_wall_clock", "gpumuxd.rpc.call", "x = 1", "strike it from WALL_CLOCK_OK"),
    ("find_missing_docstrings", "gpumuxd.core.a", "x = 1", "no docstring"),
    ("find_synonyms", "gpumuxd.core.a", "def next_job(): pass", "don't say 'job'"),
    ("find_synonyms", "gpumuxd.core.a", "class ReadyList: pass", "say run_queue"),
    ("find_synonyms", "gpumuxd.core.a", "def f(slack_ns): pass", "say laxity"),
    ("find_synonyms", "gpumuxd.core.a", "users = 1", "say tenant"),
    ("find_banned_in_tests", "tests.a", "import time\ntime.sleep(0.1)", "must not sleep"),
    ("find_banned_in_tests", "tests.a", "from asyncio import sleep\nsleep(n)", "must not sleep"),
    ("find_banned_in_tests", "tests.a", "from unittest.mock import patch", "no mocks"),
    ("find_banned_in_tests", "tests.a", "import unittest.mock", "no mocks"),
]

GOOD = [
    (
        "find_layer_violations",
        "gpumuxd.core.a",
        "from gpumuxd import events\nimport gpumuxd.core.b",
    ),
    ("find_layer_violations", "gpumuxd.core.a", "from gpumuxd.domain import Lane"),
    ("find_layer_violations", "gpumuxd.rpc.a", "from gpumuxd import __version__"),
    ("find_layer_violations", "gpumuxd.daemon.a", "def f():\n import gpumuxd.demo.run"),
    ("find_banned_imports", "gpumuxd.clock", "import time"),
    ("find_banned_imports", "gpumuxd.core.a", "import heapq\nimport gpumuxd.domain"),
    ("find_banned_imports", "gpumuxd.executors.cpu", "import os, threading, torch"),
    ("find_banned_imports", "gpumuxd.executors.cuda.driver", "import cuda.bindings"),
    ("find_torch_in_parent", "gpumuxd.daemon.a", "def f():\n import torch"),
    ("find_torch_in_parent", "gpumuxd.device.a", "import torch"),
    ("find_wall_clock", "gpumuxd.a", "import time\ntime.monotonic(), time.perf_counter_ns()"),
    ("find_wall_clock", "gpumuxd.a", "from time import monotonic_ns, sleep"),
    ("find_wall_clock", "gpumuxd.a", "now = self.time\nself.now.set()"),
    ("find_wall_clock", "gpumuxd.daemon.logging", "structlog.processors.TimeStamper()"),
    ("find_missing_docstrings", "gpumuxd.core.a", '"""What it is."""'),
    ("find_synonyms", "gpumuxd.core.a", "def userland_cardinality(jobless): pass"),
    ("find_synonyms", "gpumuxd.device.a", "TIMER_SLACK_NS = 1"),
    ("find_banned_in_tests", "tests.a", "import asyncio\nasyncio.sleep(0)"),
]


@pytest.mark.parametrize(("check", "module", "text", "finding"), BAD)
def test_a_bad_source_is_found(check: str, module: str, text: str, finding: str) -> None:
    findings = list(getattr(architecture, check)([source(module, text)]))
    assert findings
    assert finding in findings[0]


@pytest.mark.parametrize(("check", "module", "text"), GOOD)
def test_a_good_source_is_not(check: str, module: str, text: str) -> None:
    assert not list(getattr(architecture, check)([source(module, text)]))


def test_a_cycle_is_found_also_inside_functions() -> None:
    sources = [
        source("gpumuxd.core.a", "from gpumuxd.core import b"),
        source("gpumuxd.core.b", "import gpumuxd.core.c"),
        source("gpumuxd.core.c", "def f():\n from gpumuxd.core.a import x"),
    ]
    (finding,) = architecture.find_cycles(sources)
    assert "gpumuxd.core.a -> gpumuxd.core.b -> gpumuxd.core.c -> gpumuxd.core.a" in finding
    assert not list(architecture.find_cycles(sources[:2]))


def test_torch_is_found_far_below_the_parent() -> None:
    sources = [
        source("gpumuxd.node.a", "from gpumuxd.models.b import x"),
        source("gpumuxd.models.b", "import gpumuxd.programs.c"),
        source("gpumuxd.programs.c", "import torch"),
    ]
    (finding,) = architecture.find_torch_in_parent(sources)
    assert "gpumuxd.node.a -> gpumuxd.models.b -> gpumuxd.programs.c" in finding


def test_generated_code_is_exempt() -> None:
    generated = Source("gpumuxd/rpc/generated/a.py", "gpumuxd.rpc.generated.a", "import torch")
    assert not list(architecture.find_banned_imports([generated]))
    assert not list(architecture.find_missing_docstrings([generated]))
