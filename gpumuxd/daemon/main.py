"""The command line: `gpumuxd serve | check-config | export | demo | replay`.

Torch is imported by none of the first two, nor by `replay`; `export` and `demo` import what they
need when they are asked for. Exit codes: 0 stopped as asked, 78 the configuration can't be used
(systemd does not try again), 1 anything else that kept it from serving.
"""

import argparse
import asyncio
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Read by gRPC when it is first imported: its fork handlers would make every child that is spawned
# later wait for its threads, and children here are exec'ed at once and share nothing with it.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# Else it writes a line of its own for each handshake that fails: any stranger could fill the log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import gpumuxd
from gpumuxd.daemon.config import DEFAULT_PATH, Config, load_config
from gpumuxd.daemon.notify import Notifier
from gpumuxd.errors import ConfigError

EXIT_FAILED = 1

_FORWARDED = {
    "export": "gpumuxd.programs.export",
    "demo": "gpumuxd.demo.run",
    "replay": "gpumuxd.replay.command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in _FORWARDED:
        return int(importlib.import_module(_FORWARDED[arguments[0]]).main(arguments[1:]) or 0)
    parsed = _parser().parse_args(arguments)
    path = parsed.config or getattr(parsed, "file", None)
    try:
        config = load_config(path)
    except ConfigError as error:
        print(f"gpumuxd: configuration: {error}", file=sys.stderr)
        return ConfigError.EXIT_CODE
    if parsed.command == "check-config":
        return _check(config)
    return _serve(config, path, parsed.log_level)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpumuxd", description="One daemon that shares a node's GPUs between tenants."
    )
    parser.add_argument("--version", action="version", version=f"gpumuxd {gpumuxd.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the daemon in the foreground")
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    check = commands.add_parser("check-config", help="say whether a configuration can be used")
    checked = check.add_mutually_exclusive_group()
    for command in (serve, checked):
        command.add_argument(
            "--config", type=Path, metavar="FILE", help=f"a TOML file; default: {DEFAULT_PATH}"
        )
    checked.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the same")
    commands.add_parser("export", help="export a torch module to a .pt2 artifact", add_help=False)
    commands.add_parser("demo", help="two models, one preempting the other", add_help=False)
    commands.add_parser("replay", help="replay what gpumuxctl record wrote", add_help=False)
    return parser


def _serve(config: Config, path: Path | None, log_level: str) -> int:
    # Imported here: `check-config` and the errors of a configuration need none of it.
    import structlog

    from gpumuxd.daemon.logging import configure_logging

    configure_logging(log_level)
    # Before gRPC is imported, which takes a while, and torch in the children, which takes longer.
    structlog.get_logger().info(
        "starting",
        version=gpumuxd.__version__,
        pid=os.getpid(),
        devices=[device.device for device in config.node.devices],
    )
    from gpumuxd.daemon.workers import Workers, end_process
    from gpumuxd.wire.slices import PROMPT_NS, set_slice

    # Before there are threads of gRPC and children, which inherit it: both are waited for.
    set_slice(PROMPT_NS)

    # The children must not talk to systemd in our name.
    notifier = Notifier()
    os.environ.pop("NOTIFY_SOCKET", None)
    workers = Workers()
    code = _run(config, path, notifier, workers)
    notifier.close()
    if workers.hanging:
        structlog.get_logger().warning("threads_left_behind", threads=workers.hanging)
        end_process(code)
    return code


def _run(config: Config, path: Path | None, notifier: Notifier, workers: ThreadPoolExecutor) -> int:
    import structlog
    import uvloop

    from gpumuxd.daemon.lifecycle import serve
    from gpumuxd.daemon.lock import AlreadyRunning
    from gpumuxd.errors import DeviceLost
    from gpumuxd.rpc.listener import AddressInUse

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.get_loop().set_default_executor(workers)
            runner.run(serve(config, functools.partial(load_config, path), notifier))
    except ConfigError as error:
        print(f"gpumuxd: configuration: {error}", file=sys.stderr)
        return ConfigError.EXIT_CODE
    except (AlreadyRunning, AddressInUse, DeviceLost, OSError) as error:
        structlog.get_logger().critical("can_not_serve", reason=str(error))
        return EXIT_FAILED
    return 0


def _check(config: Config) -> int:
    from gpumuxd.daemon.check import describe, why_no_start

    try:
        print(describe(config), flush=True)
    except BrokenPipeError:
        # Whoever read it has seen enough; the interpreter must not try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ConfigError.EXIT_CODE if why_no_start(config) else 0


if __name__ == "__main__":
    sys.exit(main())
