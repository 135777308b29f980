"""Log lines of a device child: one JSON object each on standard error, which is the parent's."""

import json
import os
import sys
from typing import Any


def log(event: str, **fields: Any) -> None:
    """Write one line. Rare by design: nothing on the path of a request logs."""
    line = json.dumps({"event": event, "pid": os.getpid(), **fields}, default=str)
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
