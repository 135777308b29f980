"""One target in this process: `python -m tests.fuzz.one NAME --seconds N [--seed N] [--runs N]`.

With atheris (extra `fuzz`) it is guided by coverage of the package; without, or with `--runs`, by
nothing: a fixed seed and a fixed number of mutations. Memory is bounded, since inputs mean harm. A
finding is left in `--findings` and ends the process with status 1.
"""

import argparse
import hashlib
import importlib
import importlib.util
import random
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path

DATA_BYTES_MAX = 2 << 30
"""For the whole process; torch and its maps take about 0.3 GiB."""

IMPORTED_LATE = {
    "onnx": ("gpumuxd.models.onnx_reader", "gpumuxd.models.onnx_plan"),
    "plan": ("gpumuxd.programs.model", "gpumuxd.programs.program"),
}
"""What a target imports when it runs, which is too late to be seen by the coverage."""

INPUT_S_MAX = 20
INPUT_BYTES_MAX = 1 << 20
POOL_MAX = 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz.one")
    parser.add_argument("target")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.findings.mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    if options.runs == 0 and importlib.util.find_spec("atheris") is not None:
        return guided(options.target, options.seconds, options.seed, options.findings)
    return unguided(options.target, options.seconds, options.seed, options.runs, options.findings)


def guided(name: str, seconds: float, seed: int, findings: Path) -> int:
    """libFuzzer's loop; it ends the process itself."""
    import atheris

    with atheris.instrument_imports(include=["gpumuxd"]):
        from tests.fuzz.targets import TARGETS

        for module in IMPORTED_LATE.get(name, ()):
            importlib.import_module(module)
    target = TARGETS[name]
    folder = findings / f"corpus-{name}"
    folder.mkdir(exist_ok=True)
    for data in target.inputs():
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)

    def mutate(data: bytes, bytes_max: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if draw.randrange(20) == 0:
            return bytes(atheris.Mutate(data, bytes_max))
        return target.mutate(data, draw)[:bytes_max]

    arguments = [
        sys.argv[0],
        str(folder),
        f"-seed={seed}",
        f"-max_total_time={int(seconds)}",
        f"-timeout={INPUT_S_MAX}",
        f"-max_len={INPUT_BYTES_MAX}",
        "-rss_limit_mb=0",  # RLIMIT_DATA is what bounds it
        "-print_final_stats=1",
        f"-artifact_prefix={findings}/{name}-",
    ]
    atheris.Setup(arguments, target.run, custom_mutator=mutate)
    atheris.Fuzz()
    return 0


def unguided(name: str, seconds: float, seed: int, runs: int, findings: Path) -> int:
    """A plain loop; what it prints at its end is libFuzzer's format."""
    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    pool = target.inputs()
    draw = random.Random(seed)
    end = time.monotonic() + seconds
    done = 0
    for data in pool:
        if not _passes(target.run, data, name, findings):
            return 1
    while (done < runs) if runs else (time.monotonic() < end):
        data = draw.choice(pool)
        for _ in range(draw.randint(1, 3)):
            data = target.mutate(data, draw)
        (findings / f"{name}-running").write_bytes(data)  # what is left if torch crashes
        if not _passes(target.run, data, name, findings):
            return 1
        if draw.randrange(50) == 0 and len(pool) < POOL_MAX:
            pool.append(data)
        done += 1
    (findings / f"{name}-running").unlink(missing_ok=True)
    print(f"stat::number_of_executed_units: {done}", flush=True)
    return 0


def _passes(run: object, data: bytes, name: str, findings: Path) -> bool:
    assert callable(run)
    try:
        run(data)
    except Exception:
        path = findings / f"{name}-{hashlib.sha1(data).hexdigest()[:16]}"
        path.write_bytes(data)
        traceback.print_exc()
        print(f"finding: {path}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
