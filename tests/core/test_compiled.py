"""Translated or interpreted, core decides the same; and sources that are newer win."""

import json
import os
import shutil
import subprocess
import sys
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
    (package / "core" / "compiled").mkdir()
    (package / "core" / "compiled" / f"cursor{compiled.SUFFIX}").write_bytes(b"no library")
    return tmp_path


def claim(copied: Path) -> None:
    made_of = run("from gpumuxd import compiled as c; print(c.fingerprint())", folder=copied)
    (copied / "gpumuxd" / "core" / "compiled" / compiled.FINGERPRINT).write_text(made_of)


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
    found = run(WHERE, folder=copied)
    assert found == str(copied / "gpumuxd" / "core" / "cursor.py")
