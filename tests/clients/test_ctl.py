"""`gpumuxctl` on the command line: what it prints, and its exit codes."""

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from gpumuxd import __version__
from gpumuxd.ctl import tables
from gpumuxd.ctl.main import main
from gpumuxd.node.api import InferCall, Tenant, UnloadedReplica
from tests.rpc.fake_node import FakeNode
from tests.rpc.front import CAMERA_TOKEN, Front


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ("GPUMUXD_TLS_CA", "GPUMUXD_TLS_CERTIFICATE", "GPUMUXD_TLS_KEY")
    for name in ("GPUMUXD_TARGET", "GPUMUXD_TOKEN", *tls):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


async def run(front: Front, *arguments: str) -> int:
    return await asyncio.to_thread(main, ["--target", front.target, *arguments])


async def test_status(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(front, "status") == 0
    text = capsys.readouterr().out
    assert "gpumuxd 0.1, up 5.0 s, ready" in text
    assert "cpu:0" in text
    assert "4711" in text
    for arguments in (("--json", "status"), ("status", "--json")):
        assert await run(front, *arguments) == 0
        (device,) = json.loads(capsys.readouterr().out)["devices"]
        told = ("preemptions", "best_effort_grants", "best_effort_granted_ns")
        assert [device[name] for name in told] == [3, 5, 6_000_000]


async def test_options_of_all_commands_stand_before_or_after_them(
    front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ("--target", front.shared, "--token", CAMERA_TOKEN, "--json")
    for arguments in ((*shared, "models"), ("models", *shared), (*shared[:2], "models", *shared)):
        assert await asyncio.to_thread(main, arguments) == 0
        assert json.loads(capsys.readouterr().out)
    await asyncio.to_thread(main, ["--target", "unix:/absent", "models", *shared])
    assert json.loads(capsys.readouterr().out), "the later target wins"


@pytest.mark.parametrize("arguments", [("--version",), ("status", "--version")])
def test_version(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"gpumuxctl {__version__}\n"


async def test_status_says_why_the_node_is_not_ready(
    front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    front.node.ready = False
    assert await run(front, "status") == 0
    assert "not ready\n  model 'm': [unloaded]\n" in capsys.readouterr().out
    assert await run(front, "--json", "status") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["is_ready"], status["reason"]) == (False, "model 'm': [unloaded]")


async def test_drain_and_undrain(
    front: Front, node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(front, "drain", "--device", "cpu:0") == 0
    text = capsys.readouterr().out
    assert text.startswith("cpu:0 drained\n")
    assert "moved  cpu:1" in text
    assert await run(front, "drain") == 0
    assert capsys.readouterr().out == "the node drained\n"
    assert node.drained == {"", "cpu:0"}
    assert await run(front, "--json", "undrain", "--device", "cpu:0") == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model == {"name": "echo", "version": "1", "fate": "left", "reason": "no room"}
    assert await run(front, "undrain") == 0
    assert node.drained == set()


async def test_models(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(front, "models") == 0
    text = capsys.readouterr().out
    assert "x FP32[?, 4]" in text
    assert "inputs (? varies)" in text
    assert await run(front, "--json", "models") == 0
    models = {model["name"]: model for model in json.loads(capsys.readouterr().out)}
    assert models["unloaded"]["state"] == "UNAVAILABLE"
    assert models["identity_int8"]["inputs"] == [
        {"name": "x", "datatype": "INT8", "shape": [-1, 4]}
    ]


async def test_on_a_pipe_a_row_is_a_line_and_is_never_cut(
    front: Front,
    node: FakeNode,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name = "a-model-with-a-name-longer-than-lines-are" * 4
    node.models[name] = node.models["identity_fp32"]
    node.loaded.add(name)
    assert await run(front, "models") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(node.models)
    (row,) = (line for line in lines if line.startswith(name))
    assert row.split() == [name, "1", "READY", "x", "FP32[?,", "4]", "y", "FP32[?,", "4]"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_tables_fit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert tables.console_of(Terminal()).width == 40
    assert tables.console_of(io.StringIO()).width == tables.PIPE_COLUMNS


async def test_load_and_unload(
    front: Front,
    node: FakeNode,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def says_yes(tenant: Tenant, name: str) -> Sequence[UnloadedReplica]:
        return ()

    assert await run(front, "load", "unloaded") == 0
    assert "unloaded" in node.loaded
    assert await run(front, "unload", "unloaded") == 0
    assert "unloaded" not in node.loaded
    loaded, unloaded, headings, row = capsys.readouterr().out.splitlines()
    assert (loaded, unloaded) == ("unloaded loaded", "unloaded unloaded")
    assert " ".join(headings.split()) == "version device weights process before after came back"
    assert " ".join(row.split()) == "1 cpu:0 12.0 MiB 200.0 MiB 187.0 MiB 13.0 MiB"
    monkeypatch.setattr(node, "unload", says_yes)  # as the daemon of a model that is not loaded
    assert await run(front, "unload", "unloaded") == 0
    assert capsys.readouterr().out == "unloaded was not loaded\n"
    assert await run(front, "load", "nobody") == 1
    assert "NOT_FOUND: model 'nobody'" in capsys.readouterr().err


async def test_infer_from_the_command_line_and_from_files(
    front: Front, node: FakeNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = np.array([[1, 2, 3, 4]], np.float32)
    np.save(tmp_path / "x.npy", array)
    json_file = tmp_path / "x.json"
    json_file.write_text("[[1, 2, 3, 4]]")
    for value in ("[[1, 2, 3, 4]]", f"{tmp_path}/x.npy", str(json_file)):
        arguments = ("infer", "identity_fp32", "--input", f"x={value}", "--priority", "2")
        assert await run(front, "--json", *arguments, "--deadline-ms", "10000") == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["outputs"]["y"] == {
            "dtype": "float32",
            "shape": [1, 4],
            "values": [[1, 2, 3, 4]],
        }
        assert answer["report"]["preemptions"] == 3
    assert [(call.priority, call.deadline_ns is None) for call in node.calls] == [(2, False)] * 3
    assert await run(front, "infer", "identity_fp32", "--input", "x=[[1,2,3,4]]") == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0] == "y float32[1, 4]: 1 2 3 4"
    assert "preempted 3 times" in text


async def test_a_large_output_is_shortened_and_whole_in_json(
    front: Front, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.arange(32, dtype=np.float32).reshape(8, 4) / 2)
    arguments = ("infer", "identity_fp32", "--input", f"x={tmp_path}/x.npy")
    assert await run(front, *arguments) == 0
    shown = "y float32[8, 4]: 0 0.5 1 1.5 2 2.5 3 3.5 ... (32 values)"
    assert capsys.readouterr().out.splitlines()[0] == shown
    assert await run(front, *arguments, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["outputs"]["y"]["values"]) == 8


async def test_json_is_strict(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("infer", "identity_fp32", "--input", "x=[[NaN, Infinity, -Infinity, 1]]")
    assert await run(front, *arguments) == 0
    assert "nan inf -inf 1" in capsys.readouterr().out
    assert await run(front, *arguments, "--json") == 0
    answer = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert answer["outputs"]["y"]["values"] == [["NaN", "Infinity", "-Infinity", 1.0]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--input", "x"), "expected NAME=FILE.npy"),
        (("--input", "x=[[1, 2"), "--input x:"),
        (("--input", "x=/absent.npy"), "No such file"),
        (("--input", "x=[[1, 300, 3, 4]]"), "does not fit int8"),
        (("--input", "x=[[1.5, 2, 3, 4]]"), "does not fit int8"),
        (("--input", 'x=["a"]'), "expected numbers"),
        (("--input", "x=[[1], [1, 2]]"), "--input x:"),
        (("--input", "z=[1]"), "it takes x"),
        (("--input", "x=[[1, 2, 3, 4]]", "--priority", "-1"), "--priority"),
        (("--input", "x=[[1, 2, 3, 4]]", "--deadline-ms", "0"), "--deadline-ms"),
        (("--input", "x=[[1, 2, 3, 4]]", "--deadline-ms", "nan"), "--deadline-ms"),
        (("--input", "x=[[1, 2, 3, 4]]", "--priority", str(2**70)), "range"),
    ],
)
async def test_wrong_usage_is_2_and_reaches_no_model(
    front: Front,
    node: FakeNode,
    arguments: tuple[str, ...],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await run(front, "infer", "identity_int8", *arguments) == 2
    assert told in capsys.readouterr().err
    assert node.calls == []


@pytest.mark.parametrize("arguments", [(), ("frobnicate",), ("load",), ("infer", "m", "--input")])
def test_arguments_that_make_no_sense_are_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: gpumuxctl" in capsys.readouterr().err


async def test_a_refusal_is_1(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(front, "infer", "nobody", "--input", "x=[1]") == 1
    assert await run(front, "infer", "identity_int8") == 1  # the daemon misses an input
    assert "INVALID_ARGUMENT" in capsys.readouterr().err


async def test_a_bug_in_the_daemon_is_1(
    front: Front, node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(call: InferCall) -> None:
        raise RuntimeError("secret")

    node.before_reply = fail
    assert await run(front, "infer", "identity_int8", "--input", "x=[[1,2,3,4]]") == 1
    captured = capsys.readouterr()
    assert captured.err == "gpumuxctl: INTERNAL: internal error\n"


def test_nobody_there_is_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"unix:{tmp_path}/absent.sock"
    assert main(["--target", target, "status"]) == 3
    assert f"no daemon at {target}" in capsys.readouterr().err


def test_a_target_without_a_port_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUMUXD_TARGET", "localhost")
    assert main(["status"]) == 2
    assert capsys.readouterr().err == (
        "gpumuxctl: target: host:port or unix:/path expected, got 'localhost' "
        "(--target or GPUMUXD_TARGET)\n"
    )


STATUS = {
    "version": "0.1",
    "uptime_ns": 10**12,
    "is_ready": True,
    "reason": "repository /models can't be read: No such file or directory",
    "devices": [
        {
            "name": "cpu:0",
            "state": "ready",
            "pid": 12345,
            "restarts": 0,
            "queued": 0,
            "requests_in_flight": 3,
            "preemptions": 123,
            "bound_ns": 2_000_000,
            "window": 3,
            "memory_bytes": 300 << 20,
            "device_busy_ns": 10**11,
            "best_effort_grants": 0,
            "best_effort_granted_ns": 0,
        }
    ],
}
IDS = {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]}
MODELS = [
    {"name": "minilm", "version": "1", "state": "READY", "reason": "", "inputs": [IDS, IDS]},
    {
        "name": "a-model-with-a-long-name",
        "version": "7",
        "state": "UNAVAILABLE",
        "reason": "model.toml lists it under versions, and it is not there",
    },
]


@pytest.mark.parametrize(("ns", "told"), [(0, "(not predicted)"), (5_000, "(predicted 5 us)")])
def test_sizes_that_were_never_measured_have_no_prediction(ns: int, told: str) -> None:
    stream = io.StringIO()
    report = dict.fromkeys(("queue_ns", "compute_ns", "preemptions", "preemption_wait_ns"), 0)
    result = {"outputs": {}, "report": report | {"predicted_ns": ns}}
    tables.show_result(tables.console_of(stream), result)
    assert told in stream.getvalue()


def shown(width: int, is_terminal: bool = True) -> list[str]:
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, force_terminal=is_terminal, color_system=None, highlight=False
    )
    tables.show_status(console, STATUS)
    tables.show_models(console, MODELS)
    return stream.getvalue().splitlines()


def test_at_80_columns_nothing_is_broken_inside_and_reasons_have_lines_of_their_own() -> None:
    assert [line.rstrip() for line in shown(80)] == [
        "gpumuxd 0.1, up 16 min 40 s, ready",
        "  repository /models can't be read: No such file or directory",
        "cpu:0  state ready  pid 12345  restarts 0  queued 0  in flight 3",
        "  preemptions 123  bound 2.00 ms  window 3  memory 300.0 MiB  busy 10.0%",
        "minilm  version 1  state READY",
        "  inputs (? varies) input_ids INT64[?, ?], input_ids INT64[?, ?]",
        "a-model-with-a-long-name  version 7  state UNAVAILABLE",
        "  model.toml lists it under versions, and it is not there",
    ]
    assert all(len(line) <= 80 for line in shown(80))


def test_a_wide_terminal_has_tables_and_a_pipe_no_blanks_at_the_ends() -> None:
    assert shown(200)[2].split()[:3] == ["device", "state", "pid"]
    piped = shown(tables.PIPE_COLUMNS, is_terminal=False)
    assert piped == [line.rstrip() for line in piped]
    assert len(piped) == 2 + 2 + 3


def test_grants_of_the_best_effort_share_are_shown_where_there_are_some() -> None:
    stream = io.StringIO()
    tables.show_status(tables.console_of(stream), STATUS)
    assert "grant" not in stream.getvalue()
    granted = {"best_effort_grants": 7, "best_effort_granted_ns": 12_000_000}
    before: Any = STATUS["devices"]
    devices = [*before, {**before[0], "name": "cpu:1", **granted}]
    tables.show_status(tables.console_of(stream), {**STATUS, "devices": devices})
    *_, heading, first, second = stream.getvalue().splitlines()
    assert heading.endswith("busy  best-effort grants   granted")
    assert first.split()[-3:] == ["0", "0", "us"]
    assert second.split()[-3:] == ["7", "12.00", "ms"]


async def test_texts_of_strangers_do_nothing_on_a_terminal(
    front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\x9b\u202eend"
    shown = "\\x1b]0;title\\x07\\x1b[2J\\x9b\\u202eend"
    front.node.models[evil] = next(iter(front.node.models.values()))
    assert await run(front, "models") == 0
    assert await run(front, "infer", "identity_fp32", "--input", evil) == 2
    told = capsys.readouterr()
    assert shown in told.out
    assert all(one.isprintable() for one in (told.out + told.err).replace("\n", ""))
    assert tables.plain({evil: [(evil, 1), None, "two\nlines"]}) == {
        shown: [[shown, 1], None, "two\nlines"]
    }


async def test_the_token_and_the_target_come_from_the_environment(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUMUXD_TARGET", front.shared)
    assert await asyncio.to_thread(main, ["models"]) == 1
    monkeypatch.setenv("GPUMUXD_TOKEN", CAMERA_TOKEN)
    assert await asyncio.to_thread(main, ["models"]) == 0
    assert await asyncio.to_thread(main, ["status"]) == 1  # for admins
