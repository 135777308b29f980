"""`python -m tests.faults.starter <fd>`: a starter whose loaders stop themselves when told to.

The production starter, but that a loader looks first whether it is to stand still, so that tests
can kill it in the middle of a load.
"""

import os
import signal
import sys
from pathlib import Path

from gpumuxd.loader import main as loader
from gpumuxd.loader.starter import main
from tests.faults.ask import STOP_LOADERS


def _stop_when_told(folder: Path) -> None:
    run = loader.run

    def stop_and_run(channel_fd: int, parent_pid: int) -> int:
        if (folder / STOP_LOADERS).exists():
            os.kill(os.getpid(), signal.SIGSTOP)
        return run(channel_fd, parent_pid)

    loader.run = stop_and_run


if __name__ == "__main__":
    # Its environment is nearly empty; its temporary folder is the one of the test.
    _stop_when_told(Path(os.environ["TMPDIR"]))
    sys.exit(main(sys.argv[1:]))
