"""Triton's load generator, where it can run: its binary needs a C library of 2.38 or newer, and
what pip installs elsewhere under its name is an empty package."""

import shutil
import subprocess

import pytest

from tests.daemon.harness import Daemon, Site

LIMIT_S = 60.0

WAYS = {
    "blocking": (),
    "async": ("--async",),
    "streaming": ("--streaming", "--async"),
    "rate": ("--request-rate-range", "50"),
    "shared memory": ("--shared-memory", "system", "--output-shared-memory-size", "64"),
}


@pytest.fixture(scope="module")
def perf_analyzer() -> str:
    path = shutil.which("perf_analyzer")
    if path is None:
        pytest.skip("perf_analyzer is NOT TESTED: there is none here (PyPI: perf-analyzer 2.60)")
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        pytest.skip(f"perf_analyzer is NOT TESTED: it can't run here: {told.stderr[-300:]}")
    return path


@pytest.mark.parametrize("way", WAYS)
def test_a_measurement(perf_analyzer: str, served: tuple[Site, Daemon], way: str) -> None:
    done = subprocess.run(
        [
            *(perf_analyzer, "-m", "tiny", "-i", "grpc", "-u", served[0].target),
            *("--request-count", "50", "--request-parameter", "priority:1:int", *WAYS[way]),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Throughput:" in done.stdout
