"""Translated or interpreted, core decides the same; and sources that are newer win."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpumuxd import compiled

SEEDS = range(1, 9)

HASHES = f"""
import json
from gpumuxd.core import device_scheduler
from gpumuxd.testing.runner import run
from gpumuxd.testing.swarm import draw
hashes = [run(draw(seed), check=()).trace_hash for seed in {list(SEEDS)}]
print(json.dumps([device_scheduler.__file__, hashes]))
"""

WHERE = "import gpumuxd.core.cursor as c; print(c.__file__)"


def run(code: str, *, interpreted: bool = False, folder: Path | None = None) -> str:
    environment = {**os.environ, compiled.INTERPRETED: "1" if interpreted else ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.skipif(not compiled.is_current(), reason="core is not translated here")
def test_both_forms_give_the_same_commands() -> None:
    translated, theirs = json.loads(run(HASHES))
    interpreted, ours = json.loads(run(HASHES, interpreted=True))
    assert translated.endswith(compiled.SUFFIX)
    assert interpreted.endswith(".py")
    assert theirs == ours


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A package of its own that claims to be translated: its modules would fail to import."""
    package = tmp_path / "gpumuxd"
    shutil.copytree(compiled.PACKAGE / "core", package / "core")
    for path in compiled.PACKAGE.glob("*.py"):
        shutil.copyfile(path, package / path.name)
    shutil.rmtree(package / "core" / "compiled", ignore_errors=True)
    return tmp_path


def claim(copied: Path) -> Path:
    made_of = run("from gpumuxd import compiled as c; print(c.fingerprint())", folder=copied)
    folder = copied / "gpumuxd" / "core" / "compiled" / compiled.folder_of(made_of).name
    folder.mkdir(parents=True)
    (folder / f"cursor{compiled.SUFFIX}").write_bytes(b"no library")
    (folder / compiled.FINGERPRINT).write_text(made_of)
    return folder


def test_what_was_translated_from_these_sources_is_imported(copied: Path) -> None:
    claim(copied)
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(WHERE, folder=copied)
    assert f"cursor{compiled.SUFFIX}" in error.value.stderr


@pytest.mark.parametrize("edited", ["core/slicing.py", "domain.py"])
def test_an_edited_source_runs_as_it_is_written(copied: Path, edited: str) -> None:
    claim(copied)
    with (copied / "gpumuxd" / edited).open("a") as file:
        file.write("\n# edited\n")
    assert run(WHERE, folder=copied) == str(copied / "gpumuxd" / "core" / "cursor.py")


def test_the_sources_run_when_they_are_asked_for(copied: Path) -> None:
    claim(copied)
    found = run(WHERE, interpreted=True, folder=copied)
    assert found == str(copied / "gpumuxd" / "core" / "cursor.py")


def test_without_a_fingerprint_the_sources_run(copied: Path) -> None:
    (claim(copied) / compiled.FINGERPRINT).unlink()
    found = run(WHERE, folder=copied)
    assert found == str(copied / "gpumuxd" / "core" / "cursor.py")


def test_half_a_translation_is_no_reason_to_mix_it_with_sources(copied: Path) -> None:
    """What is not in it is not looked for elsewhere."""
    folder = claim(copied)
    (folder / f"cursor{compiled.SUFFIX}").unlink()
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(WHERE, folder=copied)
    assert "No module named 'gpumuxd.core.cursor'" in error.value.stderr


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for translations in which there is none. The sources are the true ones."""
    monkeypatch.setattr(compiled, "COMPILED", tmp_path / "compiled")
    return tmp_path / "compiled"


def library(tmp_path: Path, size_bytes: int = 1 << 16) -> Path:
    path = tmp_path / f"a{compiled.SUFFIX}"
    path.write_bytes(b"x" * size_bytes)
    return path


def in_threads(*calls: object) -> list[BaseException]:
    """What failed of calls at the same time."""
    failed: list[BaseException] = []

    def attempt(call: object) -> None:
        assert callable(call)
        try:
            call()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=attempt, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return failed


def test_two_that_install_at_once_do_not_disturb_each_other(empty: Path, tmp_path: Path) -> None:
    path = library(tmp_path)

    def install() -> None:
        for number in range(20):
            compiled._install([path], f"{number % 3}")

    assert in_threads(install, install) == []
    assert sorted(one.name for one in empty.iterdir()) == ["0", "1", "2"]
    assert {one.name for one in (empty / "1").iterdir()} == {path.name, compiled.FINGERPRINT}


def test_what_lies_under_the_name_and_is_another_is_replaced(empty: Path, tmp_path: Path) -> None:
    made_of = "f" * 64
    compiled._install([library(tmp_path)], made_of)
    (empty / made_of[:16] / compiled.FINGERPRINT).write_text("cut")
    compiled._install([library(tmp_path)], made_of)
    assert (empty / made_of[:16] / compiled.FINGERPRINT).read_text() == made_of


def test_what_older_translators_left_is_removed(empty: Path, tmp_path: Path) -> None:
    for made_of in ("old", "new"):
        compiled._install([library(tmp_path)], made_of)
    (empty / f"{compiled.ASIDE}killed").mkdir()
    (empty / f"cursor{compiled.SUFFIX}").write_bytes(b"from when there were no folders")
    compiled._remove_all_but(compiled.folder_of("new"))
    assert [one.name for one in empty.iterdir()] == ["new"]


def test_one_translates_and_the_others_find_it_done(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def translate() -> str:
        made.append(1)
        compiled._install([library(tmp_path)], compiled.fingerprint())
        return ""

    monkeypatch.setattr(compiled, "translate", translate)
    results: list[int] = []
    assert in_threads(*[lambda: results.append(compiled.main())] * 3) == []
    assert (made, results) == ([1], [0, 0, 0])


def test_where_nothing_can_be_written_the_sources_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(compiled, "COMPILED", tmp_path / "file" / "compiled")
    assert compiled.main() == 1
    error = capsys.readouterr().err
    assert error.startswith("gpumuxd.core stays interpreted")
    assert "Not a directory" in error
