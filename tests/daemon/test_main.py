"""The command line, in this process: what needs no daemon."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpumuxd
from gpumuxd.daemon.main import main
from tests.node.fakes import add_model


def test_check_config_says_good_or_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[tenants.voice]\nsocket = '/run/voice.sock'")
    assert main(["check-config", "--config", str(path)]) == 0
    out = capsys.readouterr().out
    assert "configuration: good" in out
    assert "unix:/run/voice.sock (tenant voice)" in out
    assert "127.0.0.1:8001 (tenants by token)" in out
    path.write_text("[x]")
    assert main(["check-config", "--config", str(path)]) == 78
    assert "x: unknown key" in capsys.readouterr().err
    assert main(["check-config", "--config", str(tmp_path / "none")]) == 78


def test_check_config_doubts_what_is_not_there_and_says_what_it_did_not_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(tmp_path / "models", "here")
    add_model(tmp_path / "models", "bad", manifest="slo = 1")
    path = tmp_path / "c.toml"
    path.write_text(
        f"""
[node]
startup_models = ["here", "bad", "absent"]
[repository]
paths = ["{tmp_path}/models", "{tmp_path}/none"]
[[device]]
threads = 1024
"""
    )
    assert main(["check-config", str(path)]) == 0
    out = capsys.readouterr().out
    assert "  mode           explicit\n" in out
    assert "  startup model  absent\n" in out
    assert "  device         cpu:0, 1024 threads\n" in out
    warnings = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 4
    assert f"warning: repository {tmp_path}/none is not a directory" in warnings
    assert "unknown key 'slo'" in warnings[1]
    assert "startup model 'absent': no model 'absent'" in warnings[2]
    assert "1024 threads together, this machine " in warnings[3]
    assert "not checked: whether addresses are free" in out


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("[node]\nstartup_models = ['*']", "  startup model  all there are\n"),
        ("[repository]\nmode = 'poll'", "  mode           poll, every 15 s\n"),
    ],
)
def test_check_config_doubts_every_model_when_all_are_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, fact: str
) -> None:
    add_model(tmp_path / "one", "good")
    add_model(tmp_path / "one", "listed", manifest="versions = [1, 7]")
    add_model(tmp_path / "two", "good")
    path = tmp_path / "c.toml"
    table = f"paths = ['{tmp_path}/one', '{tmp_path}/two']"
    repository = text if text.startswith("[repository]") else f"{text}\n[repository]"
    path.write_text(f"{repository}\n{table}")
    assert main(["check-config", str(path)]) == 0
    out = capsys.readouterr().out
    assert fact in out
    warnings = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        "warning: model 'listed' version 7: model.toml lists it under versions, and it is not "
        "there",
        "warning: model 'good': repository 2 in [repository].paths has this name too; the one in "
        "repository 1 counts",
    ]


FIFO = "has no effect with order = 'fifo': nobody is ordered ahead of others"
EVERY = "has no effect with slicing = 'every(20)': a baseline cuts by itself"


@pytest.mark.parametrize(
    ("scheduler", "warnings"),
    [
        ("order = 'fifo'", []),
        ("order = 'fifo'\nbest_effort_share_min = 0.1", [f"best_effort_share_min {FIFO}"]),
        ("order = 'fifo'\npreemption_delay_ms_max = 2", [f"preemption_delay_ms_max {FIFO}"]),
        ("order = 'fifo'\npreemption_delay_ms_max = 'auto'\nslice_ms_max = 3", []),
        ("slicing = 'every(20)'\nbest_effort_share_min = 0.1\nwindow_max = 2", []),
        (
            "slicing = 'every(20)'\npreemption_delay_ms_max = 2\nslice_ms_max = 3\n"
            "weigh_preemption_by_arrivals = true",
            [
                f"preemption_delay_ms_max {EVERY}",
                f"slice_ms_max {EVERY}",
                f"weigh_preemption_by_arrivals {EVERY}",
            ],
        ),
        (
            "preemption_delay_ms_max = 2\nslice_ms_max = 3\nbest_effort_share_min = 0.1\n"
            "weigh_preemption_by_arrivals = true",
            [],
        ),
    ],
)
def test_check_config_warns_of_keys_without_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheduler: str, warnings: list[str]
) -> None:
    """Once, however many devices there are."""
    path = tmp_path / "c.toml"
    devices = "[[device]]\nname = 'cpu:0'\n[[device]]\nname = 'cpu:1'"
    path.write_text(f"[repository]\npaths = ['{tmp_path}']\n{devices}\n[scheduler]\n{scheduler}")
    assert main(["check-config", str(path)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "has no effect" in line]
    assert told == [f"warning: [scheduler].{one}" for one in warnings]


def test_check_config_takes_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"[repository]\npaths = ['{tmp_path}']")
    assert main(["check-config", str(path)]) == 0
    assert "warning" not in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["check-config", str(path), "--config", str(path)])
    assert caught.value.code == 2


def test_check_config_into_a_pipe_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        result = subprocess.run(
            [sys.executable, "-m", "gpumuxd.daemon.main", "check-config", "/dev/null"],
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (result.returncode, result.stderr) == (0, "")


def test_version_and_a_wrong_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert gpumuxd.__version__ in capsys.readouterr().out
    for arguments in ([], ["fly"], ["serve", "--fly"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2


@pytest.mark.parametrize("command", ["export", "demo"])
def test_other_commands_get_their_arguments_as_they_are(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    module = {"export": "gpumuxd.programs.export", "demo": "gpumuxd.demo.run"}[command]

    class Fake:
        @staticmethod
        def main(arguments: list[str]) -> int:
            return 7 if arguments == ["--help", "x"] else 1

    monkeypatch.setitem(sys.modules, module, Fake)  # type: ignore[arg-type]  # a fake module
    assert main([command, "--help", "x"]) == 7
