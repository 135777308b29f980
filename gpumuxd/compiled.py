"""`gpumuxd.core` as extension modules: the same sources, translated by mypyc and a C compiler.

    python -m gpumuxd.compiled      translate; `make setup` does it where a C compiler is found

A decision takes about a third of the time then. The policy stack can be translated as it stands
because it is typed throughout and does nothing but compute. The result lies in core/compiled/, with
the fingerprint of the sources it was made of; whenever that is not the fingerprint of the sources
that are there, the sources run. So nobody is ever served by a policy that is not the one he reads,
and a node without a compiler lacks speed and nothing else.

It must not know what core does. GPUMUXD_INTERPRETED=1 in the environment: run the sources.
"""

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent
CORE = PACKAGE / "core"
COMPILED = CORE / "compiled"
FINGERPRINT = "fingerprint"

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


def is_current() -> bool:
    """Was what lies there made of the sources that are there?"""
    try:
        return (COMPILED / FINGERPRINT).read_text() == fingerprint()
    except OSError:
        return False


def search_path(sources: list[str]) -> list[str]:
    """Where the modules of core are looked for: translated first, if they are current."""
    if os.environ.get(INTERPRETED) or not is_current():
        return sources
    for path in COMPILED.glob(f"*__mypyc{SUFFIX}"):
        _load_shared(path)
    return [str(COMPILED), *sources]


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
    """Make core/compiled/ anew. Returns why that can't be done, empty when it is done."""
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
    return ""


def _install(libraries: list[Path], made_of: str) -> None:
    """Aside first, so that no process finds half of it. Those that run keep what they opened."""
    import shutil
    import tempfile

    aside = Path(tempfile.mkdtemp(prefix=".compiled-", dir=CORE))
    try:
        for path in libraries:
            shutil.copyfile(path, aside / path.name)
        (aside / FINGERPRINT).write_text(made_of)
        aside.chmod(0o755)
        shutil.rmtree(COMPILED, ignore_errors=True)
        aside.rename(COMPILED)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _modules() -> list[Path]:
    return sorted(path for path in CORE.glob("*.py") if path.name != "__init__.py")


def _sources() -> list[Path]:
    return [*(PACKAGE / f"{name}.py" for name in VOCABULARY), *_modules()]


def main() -> int:
    """Translate unless what is there is current. A failure is told and costs speed only."""
    if is_current():
        return 0
    why_not = translate()
    if why_not:
        print(f"gpumuxd.core stays interpreted, decisions take longer:\n{why_not}", file=sys.stderr)
        return 1
    print(f"gpumuxd.core was translated to {COMPILED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
