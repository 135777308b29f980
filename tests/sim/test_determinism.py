"""The same seed gives the same events and commands: in one process and in any other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpumuxd.testing.runner import run
from gpumuxd.testing.swarm import draw

SEEDS = (1, 2, 3, 22, 40)
ROOT = Path(__file__).parents[2]

PROGRAM = """
from gpumuxd.testing.swarm import draw
from gpumuxd.testing.runner import run
print(*(run(draw(seed), check=()).trace_hash for seed in {seeds}))
"""


def hashes() -> list[str]:
    return [run(draw(seed), check=()).trace_hash for seed in SEEDS]


def test_twice_in_one_process() -> None:
    assert hashes() == hashes()


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_in_a_fresh_process_whatever_the_hash_seed(hash_seed: str) -> None:
    fresh = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(seeds=SEEDS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert fresh.stdout.split() == hashes()


def test_seeds_differ() -> None:
    assert len(set(hashes())) == len(SEEDS)


def test_checkers_do_not_change_what_happens() -> None:
    assert run(draw(2)).trace_hash == run(draw(2), check=()).trace_hash


def test_the_parameters_of_a_seed_are_the_same_text() -> None:
    assert list(draw(7).lines()) == list(draw(7).lines())
    assert next(draw(7).lines()).startswith("SEED 7")
