"""Threads that hang keep neither the loop nor the process from ending."""

import subprocess
import sys
import threading
from pathlib import Path

from gpumuxd.daemon.workers import Workers

LIMIT_S = 60.0

HANGS = """
import asyncio, sys, threading
from gpumuxd.daemon import lifecycle
from gpumuxd.daemon.main import main

async def serve(config, read_again, notifier):
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    def hang():
        loop.call_soon_threadsafe(began.set)
        threading.Event().wait()
    for _ in range(40):  # more than there are threads
        loop.run_in_executor(None, hang)
    await began.wait()

lifecycle.serve = serve
sys.exit(main(["serve", "--config", sys.argv[1]]))
"""


def test_work_that_ends_is_waited_for_and_work_that_hangs_is_counted() -> None:
    workers = Workers(join_s_max=0.05)
    goes_on, began = threading.Event(), threading.Event()

    def hang() -> bool:
        began.set()
        return goes_on.wait(LIMIT_S)

    done, hung = workers.submit(lambda: 7), workers.submit(hang)
    assert done.result(LIMIT_S) == 7
    assert began.wait(LIMIT_S)
    workers.shutdown()
    assert workers.hanging == 1
    goes_on.set()
    assert hung.result(LIMIT_S)
    workers._join_s_max = LIMIT_S
    workers.shutdown()
    assert workers.hanging == 0


def test_the_process_ends_with_its_own_exit_code_though_all_its_threads_hang(
    tmp_path: Path,
) -> None:
    config = tmp_path / "gpumuxd.toml"
    config.write_text(f"[node]\nstate_dir = '{tmp_path}/state'\n")
    command = [sys.executable, "-c", HANGS, str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr
    assert "threads_left_behind" in ended.stderr
