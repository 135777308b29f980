"""`python -m tests.faults.daemon serve ...`: the daemon, with children that break when asked to.

Everything but the two commands that start children is the production daemon's.
"""

import sys
from dataclasses import replace
from typing import Any

from gpumuxd.daemon import lifecycle
from gpumuxd.daemon.main import main
from gpumuxd.node import loader_starter
from gpumuxd.node.child_process import spawn_module
from gpumuxd.node.node import Node
from gpumuxd.node.settings import NodeSettings, RestartSettings


def _node(settings: NodeSettings, **arguments: Any) -> Node:
    # A test breaks more in a minute than a node does in a year: the delays do not grow.
    restart = RestartSettings(factor=1)
    spawn = spawn_module("tests.faults.child")
    arguments["spawn_spare"] = None  # it would be one that does not break
    return Node(replace(settings, restart=restart), spawn_device=spawn, **arguments)


if __name__ == "__main__":
    lifecycle.Node = _node  # type: ignore[misc, assignment]  # the seam of this test daemon
    spawn_starter = spawn_module("tests.faults.starter", is_background=True)
    loader_starter.LoaderStarter.__init__.__defaults__ = (spawn_starter,)  # type: ignore[misc]
    sys.exit(main(sys.argv[1:]))
