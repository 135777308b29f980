"""What a loader of an ONNX artifact may open to write: memory of its own, nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpumuxd.wire.sandbox import landlock_abi

TIMEOUT_S = 60

PROBE = r"""
import json, os, sys
from gpumuxd.wire import sandbox
folder, kernel = sys.argv[1:]
if kernel == "without Landlock":
    sandbox.landlock_abi = lambda: 0
artifact = os.open(folder + "/model.onnx", os.O_RDONLY)
sandbox.confine(sandbox.Policy(reopens_own_memory=True))
own = os.memfd_create("x")
attempts = {
    "own memory": f"/proc/self/fd/{own}",
    "the artifact": f"/proc/self/fd/{artifact}",
    "a file of everybody": folder + "/model.onnx",
    "a new file": folder + "/new",
    "a device": "/dev/null",
}
results = {}
for name, path in attempts.items():
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
        results[name] = True
    except PermissionError:
        results[name] = False
try:
    os.remove(folder + "/model.onnx")
    results["removing"] = True
except PermissionError:
    results["removing"] = False
print(json.dumps(results))
"""

REFUSED = ("the artifact", "a file of everybody", "a new file", "a device", "removing")


@pytest.mark.parametrize("kernel", ["as it is", "without Landlock"])
def test_only_memory_of_its_own_is_opened_to_write(kernel: str, tmp_path: Path) -> None:
    artifact = tmp_path / "model.onnx"
    artifact.write_bytes(b"weights")
    for each in (artifact, tmp_path):
        os.chmod(each, 0o777)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path), kernel],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    has_landlock = kernel == "as it is" and landlock_abi() > 0
    assert results == {"own memory": has_landlock, **dict.fromkeys(REFUSED, False)}
    assert artifact.read_bytes() == b"weights"
