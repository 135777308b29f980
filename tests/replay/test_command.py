"""`gpumuxd replay` as it is typed: what it prints, and its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpumuxd.daemon.main import main
from gpumuxd.domain import PriorityClass
from gpumuxd.events import RequestArrived, TenantChanged
from gpumuxd.settings import SchedulerSettings
from tests.replay.recorded import Recorded, record

HERE = {"requests", "completed", "late", "latency_ns_p50", "latency_ns_p99", "waits_ns_p99"}


@pytest.fixture(scope="module")
def data() -> bytes:
    return record(1)[0][0].data()


@pytest.fixture
def file(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "one.gpumuxd"
    path.write_bytes(data)
    return path


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main(["replay", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_same_commands_and_a_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(file)]) == 0
    out = capsys.readouterr().out
    assert "The same commands came out" in out
    assert "BEST_EFFORT" in out
    told = run_json(capsys, file)
    assert told["is_same"] is True
    assert [table["name"] for table in told["tables"]] == ["recorded"]
    assert set(told["tables"][0]["rows"][0]) >= HERE
    assert sum(row["requests"] for row in told["tables"][0]["rows"]) > 20


def test_other_settings_stand_beside_what_was_recorded(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run_json(capsys, file, "--slicing", "every(20)", "--slicing", "none", "--order", "fifo")
    assert [table["name"] for table in told["tables"]] == [
        "recorded",
        "predicted, as recorded",
        "predicted, every(20), fifo",
        "predicted, none, fifo",
    ]
    assert main(["replay", str(file), "--slicing", "every(20)"]) == 0
    assert "predicted, every(20)" in capsys.readouterr().out


def test_settings_without_a_slicing_keep_the_recorded_one(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--slice-ms", "0.5", "--window", "1", "--frames", "3"]
    told = run_json(capsys, file, *arguments, "--preemption-delay-ms", "4")
    name = told["tables"][2]["name"]
    assert name.endswith("bound 4 ms, slice 0.5 ms, window 1, 3 frames")


def test_a_difference_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = Recorded(SchedulerSettings())
    device.poll(0)
    device.handle(TenantChanged("t"), 1)
    device.poll(2)
    assert device.recorder is not None
    device.recorder._hash.check ^= 1
    device.poll(3)
    path = tmp_path / "other.gpumuxd"
    path.write_bytes(device.data())
    assert main(["replay", str(path)]) == 1
    assert "differ from the recorded ones before record" in capsys.readouterr().out


def test_a_damaged_file_is_replayed_only_when_asked(
    tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.gpumuxd"
    path.write_bytes(data[: len(data) * 2 // 3])
    assert main(["replay", str(path)]) == 2
    error = capsys.readouterr().err
    assert "it ends in the middle of a block" in error
    assert "good records); --partial replays those" in error
    assert main(["replay", str(path), "--partial"]) == 0
    out = capsys.readouterr().out
    assert "Not whole: it ends in the middle of a block" in out


@pytest.mark.parametrize("content", [b"", b"hello\n", None])
def test_what_is_no_recording_is_exit_code_2(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none"
    if content is not None:
        path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"gpumuxd replay: {path}: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--slicing", "every(0)"], "operators per slice"),
        (["--slicing", "fast"], "'adaptive', 'none', 'layer'"),
        (["--slice-ms", "0"], "a time above 0"),
        (["--slice-ms", "nan"], "--slice-ms"),
        (["--slice-ms", "inf"], "--slice-ms"),
        (["--order", "random"], "--order"),
        (["--window", "x"], "--window"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    file: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["replay", str(file), *arguments])
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--slicing", "window(20, 9)"], 2),
        (["--slicing", "window(20, 9)", "--window", "8"], 2),
        (["--slicing", "window(20, 9)", "--window", "9"], 0),
        (["--slicing", "window(20)", "--window", "2"], 0),
    ],
)
def test_a_window_beyond_window_max_is_refused_as_by_a_daemon(
    file: Path, arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(file), *arguments]) == code
    error = capsys.readouterr().err
    assert ("--slicing 'window(20, 9)': expected at most window_max" in error) == (code == 2)


def test_a_recording_without_requests_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Recorded(SchedulerSettings())
    device.poll(0)
    device.handle(TenantChanged("t"), 1)
    device.poll(2)
    path = tmp_path / "idle.gpumuxd"
    path.write_bytes(device.data())
    assert main(["replay", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("No request both came and ended while this was recorded")


def test_names_of_strangers_do_nothing_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Recorded(SchedulerSettings())
    device.poll(0)
    arrival = RequestArrived(1, "t", "\x1b[2Jevil\n\u202e", PriorityClass.STANDARD, (1,), 0)
    device.handle(TenantChanged("t"), 1)
    device.handle(arrival, 2)
    device.poll(3)
    path = tmp_path / "evil.gpumuxd"
    path.write_bytes(device.data())
    assert main(["replay", str(path), "--slicing", "none"]) in (0, 2)
    told = capsys.readouterr()
    assert all(one.isprintable() for one in (told.out + told.err).replace("\n", ""))
    assert main(["replay", str(path)]) == 0
    assert "\\x1b[2Jevil\\n\\u202e  STANDARD" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--window", "0"], ["--frames", "0"], ["--window", "65"]])
def test_settings_out_of_range_are_exit_code_2(
    file: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(file), *arguments]) == 2
    assert "settings" in capsys.readouterr().err
