"""Each target for a moment, with a fixed seed and without atheris, and every input of the corpus.

In processes of their own: an input that crashes torch must not end the test run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import CORPUS, TARGETS

RUNS = {
    **{"pt2": 150, "expressions": 1500, "plan": 100, "onnx": 300, "manifest": 2000},
    **{"request": 2000, "frame": 3000, "config": 1500},
}
CORPUS_BYTES_MAX = 200 * 1024


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_nothing_is_found(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.one", name, "--seed", "1"]
    command += ["--runs", str(RUNS[name]), "--findings", str(tmp_path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"stat::number_of_executed_units: {RUNS[name]}" in done.stdout


def test_the_corpus_belongs_to_targets_and_is_small() -> None:
    folders = [folder for folder in CORPUS.iterdir() if folder.is_dir()]
    assert {folder.name for folder in folders} <= set(TARGETS)
    size = sum(path.stat().st_size for folder in folders for path in folder.iterdir())
    assert 0 < size < CORPUS_BYTES_MAX
