"""The command line, in this process: what needs no daemon."""

import sys
from pathlib import Path

import pytest

import gpumuxd
from gpumuxd.daemon.main import main


def test_check_config_says_good_or_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[tenants.voice]\nsocket = '/run/voice.sock'")
    assert main(["check-config", "--config", str(path)]) == 0
    out = capsys.readouterr().out
    assert "configuration: good" in out
    assert "unix:/run/voice.sock (voice)" in out
    assert "127.0.0.1:8001 (by token)" in out
    path.write_text("[x]")
    assert main(["check-config", "--config", str(path)]) == 78
    assert "x: unknown key" in capsys.readouterr().err
    assert main(["check-config", "--config", str(tmp_path / "none")]) == 78


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
