"""`gpumuxd.core` as extension modules: the same sources, translated by mypyc and a C compiler.

    python -m gpumuxd.compiled      translate; `make setup` does it where a C compiler is found

A decision takes about a third of the time then. The policy stack can be translated as it stands
because it is typed throughout and does nothing but compute. The result lies in core/compiled/, in a
folder that is named by the fingerprint of the sources it was made of and appears there whole; where
there is none for the sources that are there, the sources run. So nobody is ever served by a policy
that is not the one he reads, nor by half of one, and a node without a compiler lacks speed and
nothing else. One translator works at a time.

It must not know what core does. GPUMUXD_INTERPRETED=1 in the environment: run the sources.
"""

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent
CORE = PACKAGE / "core"
COMPILED = CORE / "compiled"
FINGERPRINT = "fingerprint"
LOCK = "lock"

ASIDE = ".aside-"
"""How folders begin that are not in use yet or any more."""

INTERPRETED = "GPUMUXD_INTERPRETED"
"""Name of the variable that asks for the sources."""

VOCABULARY = ("clock", "commands", "domain", "errors", "events", "settings", "units")
"""What core imports: their types are checked at the borders of translated code."""

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]


def fingerprint() -> str:
    """Of all sources that the translation depends on, and of the interpreter."""
    digest = hashlib.sha256(SUFFIX.encode())
    for path in _sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def folder_of(made_of: str) -> Path:
    """Where a translation of the sources with this fingerprint lies."""
    return COMPILED / made_of[:16]


def is_current() -> bool:
    """Is there a translation of the sources that are there?"""
    return _current() is not None


def _current() -> Path | None:
    try:
        made_of = fingerprint()
    except OSError:
        return None
    folder = folder_of(made_of)
    return folder if _is_of(folder, made_of) else None


def _is_of(folder: Path, made_of: str) -> bool:
    try:
        return (folder / FINGERPRINT).read_text() == made_of
    except OSError:
        return False


def search_path(sources: list[str]) -> list[str]:
    """Where the modules of core are looked for: the translation alone, if there is a current one.

    Not in both: should the translation vanish meanwhile, an import fails and nothing is mixed.
    """
    folder = None if os.environ.get(INTERPRETED) else _current()
    if folder is None:
        return sources
    try:
        for path in folder.glob(f"*__mypyc{SUFFIX}"):
            _load_shared(path)
    except (ImportError, OSError):
        if folder.is_dir():  # it is there and broken
            raise
    return [str(folder)] if folder.is_dir() else sources


def _load_shared(path: Path) -> None:
    """What all translated modules share is imported by them as a top-level module."""
    name = path.name.removesuffix(SUFFIX)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def translate() -> str:
    """Translate the sources. Returns why that can't be done, empty when it is done."""
    # Here, because who only runs what was translated pays for each import at its start.
    import shutil
    import subprocess
    import tempfile

    before = fingerprint()
    with tempfile.TemporaryDirectory(prefix="gpumuxd-") as name:
        root = Path(name)
        for path in (PACKAGE / "__init__.py", *_sources()):
            copy = root / path.relative_to(PACKAGE.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        (root / "gpumuxd" / "core" / "__init__.py").write_text("")
        targets = [str(path.relative_to(PACKAGE.parent)) for path in _modules()]
        done = subprocess.run(
            [sys.executable, "-m", "mypyc", *targets],
            cwd=root,
            env={**os.environ, "MYPYC_OPT_LEVEL": "2"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            return (done.stderr.strip() or done.stdout.strip() or "mypyc failed")[-2000:]
        found = [*root.glob(f"*{SUFFIX}"), *(root / "gpumuxd" / "core").glob(f"*{SUFFIX}")]
        _install(found, before)
        _remove_all_but(folder_of(before))
    return ""


def _install(libraries: list[Path], made_of: str) -> None:
    """Aside first, so that no process finds half of it. Those that run keep what they opened."""
    import shutil
    import tempfile

    COMPILED.mkdir(exist_ok=True)
    folder = folder_of(made_of)
    aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=COMPILED))
    try:
        for path in libraries:
            shutil.copyfile(path, aside / path.name)
        (aside / FINGERPRINT).write_text(made_of)
        aside.chmod(0o755)
        if folder.exists() and not _is_of(folder, made_of):
            _remove(folder)
        try:
            aside.rename(folder)
        except OSError:
            if not _is_of(folder, made_of):  # else somebody else has just made the same
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _remove_all_but(folder: Path) -> None:
    """Translations of other sources, and what translators left that were killed."""
    for path in COMPILED.iterdir():
        if path != folder and path.name != LOCK:
            _remove(path)


def _remove(path: Path) -> None:
    """Away from its name first: who looks for it finds all of it or nothing."""
    import shutil
    import tempfile

    if not path.is_dir():
        path.unlink()
        return
    aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=COMPILED))
    path.rename(aside)  # an empty folder may be replaced
    shutil.rmtree(aside)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Alone among those that translate, also of other processes. It ends with the process."""
    import fcntl

    COMPILED.mkdir(exist_ok=True)
    with (COMPILED / LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _modules() -> list[Path]:
    return sorted(path for path in CORE.glob("*.py") if path.name != "__init__.py")


def _sources() -> list[Path]:
    return [*(PACKAGE / f"{name}.py" for name in VOCABULARY), *_modules()]


def main() -> int:
    """Translate unless what is there is current. A failure is told and costs speed only."""
    try:
        if is_current():
            return 0
        with _locked():
            if is_current():  # another one has done it meanwhile
                return 0
            why_not = translate()
    except OSError as error:
        why_not = str(error)
    if why_not:
        print(f"gpumuxd.core stays interpreted, decisions take longer:\n{why_not}", file=sys.stderr)
        return 1
    print(f"gpumuxd.core was translated to {COMPILED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
