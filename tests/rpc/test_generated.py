"""The committed protobuf modules: current, and at peace with everyone else's in one process."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    pytest.importorskip("grpc_tools")
    spec = importlib.util.spec_from_file_location("generate", ROOT / "protos/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_they_are_current_and_a_stale_one_is_found(generator: ModuleType) -> None:
    files = generator.generate()
    assert generator.differences(files) == []
    changed = {**files, "inference_pb2.py": b"something else", "new_pb2.py": b""}
    del changed["control_pb2.py"]
    found = "\n".join(generator.differences(changed))
    for expected in (
        "inference_pb2.py is not current",
        "new_pb2.py is missing",
        "control_pb2.py has no source",
    ):
        assert found.count(expected) == len(generator.TARGETS)


@pytest.mark.parametrize(
    "order",
    list(itertools.permutations(["tritonclient.grpc", "gpumuxd.rpc.server", "gpumuxd_client"])),
)
def test_all_clients_and_the_server_load_in_one_process(order: tuple[str, ...]) -> None:
    script = "".join(f"import {module}\n" for module in order)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "clients/python")])
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert (loaded.returncode, loaded.stderr) == (0, "")


def test_the_client_needs_neither_torch_nor_the_daemon() -> None:
    script = (
        "import sys, gpumuxd_client\n"
        "found = {'torch', 'gpumuxd', 'ml_dtypes', 'structlog', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(repr(found) if found else 0)\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "clients/python")},
    )
    assert (loaded.returncode, loaded.stderr) == (0, "")
