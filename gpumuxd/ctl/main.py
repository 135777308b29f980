"""`gpumuxctl`: what an operator asks of a running daemon.

Talks to it with `gpumuxd_client` and knows nothing else of gpumuxd. Exit codes:

    0  done
    1  the daemon refused or failed the call
    2  wrong usage: arguments, an input file that can't be read
    3  no daemon answered

`--json` prints strict JSON: NaN and the infinities, which JSON has no numbers for, are the strings
"NaN", "Infinity" and "-Infinity", as in protobuf's JSON. -1 in a shape is a size that may vary.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from gpumuxd_client import Client, Tls
from gpumuxd_client.errors import GpumuxdError, Unreachable
from rich.console import Console

from gpumuxd import __version__
from gpumuxd.ctl import explain_page, memory_page, model_page, record, tables
from gpumuxd.ctl.inputs import UsageError, read_input, read_sizes

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3

TARGET_DEFAULT = "127.0.0.1:8001"
_EPILOG = (
    "exit codes: 0 done, 1 the daemon refused or failed the call, 2 wrong usage, "
    "3 no daemon answered"
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    # The parsers have no defaults for these: a command's would hide what stands before it.
    environment = argparse.Namespace(
        target=os.environ.get("GPUMUXD_TARGET", TARGET_DEFAULT),
        token=os.environ.get("GPUMUXD_TOKEN"),
        tls_ca=os.environ.get("GPUMUXD_TLS_CA"),
        tls_certificate=os.environ.get("GPUMUXD_TLS_CERTIFICATE"),
        tls_key=os.environ.get("GPUMUXD_TLS_KEY"),
        json=False,
    )
    options = _parser().parse_args(argv, environment)
    command: Callable[[Client, argparse.Namespace], Any] = options.command
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        with _client(options) as client:
            answer = command(client, options)
    except UsageError as error:
        errors.print(tables.plain(f"gpumuxctl: {error}"), markup=False)
        return EXIT_USAGE
    except Unreachable as error:
        told = f"gpumuxctl: no daemon at {options.target}: {error}"
        if "Socket closed" in str(error):
            told += (
                " (something is there and hung up: an encrypted address needs --tls-ca, and where "
                "certificates are asked for --tls-certificate and --tls-key)"
            )
        errors.print(tables.plain(told), markup=False)
        return EXIT_UNREACHABLE
    except GpumuxdError as error:
        errors.print(tables.plain(f"gpumuxctl: {error.status}: {error}"), markup=False)
        return EXIT_FAILED
    try:
        if options.json:
            print(json.dumps(_strict(answer), indent=2, allow_nan=False))
        else:
            options.show(tables.console_of(sys.stdout), tables.plain(answer))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough: `gpumuxctl explain NAME | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
    return EXIT_OK


def _client(options: argparse.Namespace) -> Client:
    tls = None
    try:
        if options.tls_ca or options.tls_certificate or options.tls_key:
            tls = Tls(options.tls_ca, options.tls_certificate, options.tls_key)
    except ValueError as error:
        raise UsageError(f"{error} (--tls-certificate and --tls-key)") from None
    try:
        return Client(options.target, token=options.token, tls=tls, retries=0)
    except ValueError as error:
        raise UsageError(f"{error} (--target or GPUMUXD_TARGET)") from None
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None


def _strict(answer: Any) -> Any:
    """The answer without numbers that JSON can't hold."""
    match answer:
        case dict():
            return {key: _strict(value) for key, value in answer.items()}
        case list() | tuple():
            return [_strict(value) for value in answer]
        case float() if math.isnan(answer):
            return "NaN"
        case float() if math.isinf(answer):
            return "Infinity" if answer > 0 else "-Infinity"
    return answer


def _parser() -> argparse.ArgumentParser:
    shared = _shared_options()
    parser = argparse.ArgumentParser(
        prog="gpumuxctl", description="Ask a running gpumuxd.", epilog=_EPILOG, parents=[shared]
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    status = commands.add_parser(
        "status", help="the node and its devices (for admins)", parents=[shared]
    )
    status.set_defaults(command=_status, show=tables.show_status)

    models = commands.add_parser(
        "models",
        help="every model in the repository",
        epilog="`gpumuxctl model NAME` shows all that is known of one.",
        parents=[shared],
    )
    models.set_defaults(command=_models, show=tables.show_models)

    model = commands.add_parser(
        "model",
        help="one model: what it takes, how long it runs, how well it yields",
        epilog=_EPILOG,
        parents=[shared],
    )
    model.add_argument("model")
    model.add_argument("--version", default="", help="of the model; default: all")
    model.set_defaults(command=_model, show=model_page.show_model)

    explain = commands.add_parser(
        "explain",
        help="why a model's work is cut as it is: mode, bound, slices, delay",
        epilog=_EPILOG,
        parents=[shared],
    )
    explain.add_argument("model")
    explain.add_argument("--version", default="", help="of the model; default: the newest loaded")
    explain.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="of a dimension that varies, such as batch=4; default: as in the longest measured run",
    )
    explain.set_defaults(command=_explain, show=explain_page.show_explanation)

    memory = commands.add_parser(
        "memory",
        help="who holds the memory of each device: models, tenants, frames",
        epilog=_EPILOG,
        parents=[shared],
    )
    memory.set_defaults(command=_memory, show=memory_page.show_memory)

    load = commands.add_parser(
        "load", help="load a model; returns when it serves", parents=[shared]
    )
    load.add_argument("model")
    load.set_defaults(command=_load, show=tables.show_done)

    unload = commands.add_parser(
        "unload", help="unload a model; what runs finishes first", parents=[shared]
    )
    unload.add_argument("model")
    unload.set_defaults(command=_unload, show=tables.show_unloaded)

    drain = commands.add_parser(
        "drain",
        help="take a device or the node out of service; what was admitted finishes (for admins)",
        parents=[shared],
    )
    undrain = commands.add_parser(
        "undrain", help="put a device or the node back in service (for admins)", parents=[shared]
    )
    for one, command in ((drain, _drain), (undrain, _undrain)):
        one.add_argument("--device", default="", help="such as cpu:1; default: the whole node")
        one.set_defaults(command=command, show=tables.show_drained)

    for one in (parser, status, models, memory, load, unload):  # of the others it is the model's
        one.add_argument("--version", action="version", version=f"gpumuxctl {__version__}")
    _add_infer(commands.add_parser("infer", help="run one inference", parents=[shared]))
    record.add_options(
        commands.add_parser(
            "record",
            help="write what a device's scheduler does to a file (for admins)",
            parents=[shared],
        )
    )
    return parser


def _shared_options() -> argparse.ArgumentParser:
    """What may stand before and after the command."""
    shared = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument(
        "--target",
        help=f"host:port or unix:/path (environment: GPUMUXD_TARGET; default: {TARGET_DEFAULT})",
    )
    shared.add_argument(
        "--token",
        help="the tenant's token; better in the environment, GPUMUXD_TOKEN, where ps shows it not",
    )
    for name, what in (
        ("ca", "the authority of the daemon's certificate: the address is an encrypted one"),
        ("certificate", "the certificate to show, where the daemon asks for one"),
        ("key", "its private key"),
    ):
        told = f"{what}, a file of PEM (environment: GPUMUXD_TLS_{name.upper()})"
        shared.add_argument(f"--tls-{name}", metavar="FILE", help=told)
    shared.add_argument(
        "--json",
        action="store_true",
        help='print the answer as JSON, with all values; "NaN", "Infinity", "-Infinity" as strings',
    )
    return shared


def _add_infer(infer: argparse.ArgumentParser) -> None:
    infer.epilog = _EPILOG
    infer.add_argument("model")
    infer.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="FILE.npy, FILE.json or JSON itself, such as x=[[1,2]]; once for each input",
    )
    infer.add_argument("--version", default="", help="of the model; default: the newest")
    infer.add_argument("--priority", type=int, default=0, help="1 the most urgent, 0 the default")
    infer.add_argument("--deadline-ms", type=float, help="give up after this time")
    infer.set_defaults(command=_infer, show=tables.show_result)


def _status(client: Client, options: argparse.Namespace) -> Any:
    return asdict(client.node_status())


def _models(client: Client, options: argparse.Namespace) -> Any:
    """The index; what serves also with its inputs and outputs."""
    answer = []
    for entry in client.index():
        model = asdict(entry)
        if entry.state == "READY":
            try:
                metadata = client.model_metadata(entry.name, version=entry.version)
            except Unreachable:
                raise
            except GpumuxdError as error:  # it was unloaded meanwhile
                model["reason"] = str(error)
            else:
                model["inputs"] = [asdict(tensor) for tensor in metadata.inputs]
                model["outputs"] = [asdict(tensor) for tensor in metadata.outputs]
        answer.append(model)
    return answer


def _model(client: Client, options: argparse.Namespace) -> Any:
    return asdict(client.model_detail(options.model, version=options.version))


def _explain(client: Client, options: argparse.Namespace) -> Any:
    sizes = read_sizes(options.size)
    return asdict(client.explain(options.model, version=options.version, sizes=sizes))


def _memory(client: Client, options: argparse.Namespace) -> Any:
    return [asdict(device) for device in client.memory()]


def _load(client: Client, options: argparse.Namespace) -> Any:
    client.load(options.model)
    return {"model": options.model, "done": "loaded"}


def _unload(client: Client, options: argparse.Namespace) -> Any:
    # The daemon says yes either way; a script wants that, a person a typo pointed out.
    was_loaded = any(
        entry.name == options.model and entry.state != "UNAVAILABLE" for entry in client.index()
    )
    replicas = [asdict(replica) for replica in client.unload(options.model)]
    done = "unloaded" if was_loaded else "was not loaded"
    return {"model": options.model, "done": done, "replicas": replicas}


def _drain(client: Client, options: argparse.Namespace) -> Any:
    models = [asdict(model) for model in client.drain(options.device)]
    return {"device": options.device, "done": "drained", "models": models}


def _undrain(client: Client, options: argparse.Namespace) -> Any:
    models = [asdict(model) for model in client.undrain(options.device)]
    return {"device": options.device, "done": "back in service", "models": models}


def _infer(client: Client, options: argparse.Namespace) -> Any:
    if options.priority < 0:
        raise UsageError(f"--priority: expected 0 or more, got {options.priority}")
    if options.deadline_ms is not None and not 0 < options.deadline_ms < math.inf:
        raise UsageError(f"--deadline-ms: expected more than 0, got {options.deadline_ms}")
    metadata = client.model_metadata(options.model, version=options.version)
    datatypes = {tensor.name: tensor.datatype for tensor in metadata.inputs}
    inputs = dict(read_input(argument, datatypes) for argument in options.input)
    deadline = None if options.deadline_ms is None else options.deadline_ms / 1000
    try:
        result = client.infer(
            options.model,
            inputs,
            version=options.version,
            priority=options.priority,
            deadline=deadline,
        )
    except (TypeError, ValueError) as error:  # an array or a number that can't be sent
        raise UsageError(str(error)) from None
    outputs = {
        name: {"dtype": array.dtype.name, "shape": list(array.shape), "values": array.tolist()}
        for name, array in result.items()
    }
    return {
        "model": result.model,
        "version": result.model_version,
        "outputs": outputs,
        "report": asdict(result.report),
    }


if __name__ == "__main__":
    sys.exit(main())
