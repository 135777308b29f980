"""A client in a process of its own: those of different projects can't share one, since their
messages have the same names."""

import subprocess
import sys
import textwrap

LIMIT_S = 90.0
"""The SDK of KServe takes some seconds to be imported."""


def run_script(source: str, *arguments: str) -> str:
    """Run it with this Python and return what it printed. It fails the test if it fails, and what
    it says on stderr is no failure."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
