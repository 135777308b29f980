"""Make the committed protobuf modules from the .proto files, or check that they are current.

    python protos/generate.py           write them
    python protos/generate.py --check   exit 1 and name what differs

The server and the client package each carry their own copy, since neither may need the other's
source to be installed. The generator is pinned: grpcio-tools 1.81.1 makes code for protobuf 6,
which the runtimes of majors 6 and 7 accept.
"""

import argparse
import importlib.metadata
import importlib.resources
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
ROOT = PROTOS.parent
TARGETS = (ROOT / "gpumuxd/rpc/generated", ROOT / "clients/python/gpumuxd_client/generated")
SOURCES = (
    "gpumuxd/inference/v2/inference.proto",
    "gpumuxd/rpc/v1/status.proto",
    "gpumuxd/v1/control.proto",
)
GENERATOR_VERSION = "1.81.1"
PACKAGE_INIT = '"""Made by protos/generate.py from protos/: change those, not these."""\n'


def generate() -> dict[str, bytes]:
    """The content of every generated file, by its name in a target directory."""
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [
            "protoc",
            f"--proto_path={PROTOS}",
            f"--proto_path={well_known}",
            f"--python_out={scratch}",
            f"--pyi_out={scratch}",
            *SOURCES,
        ]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc failed")
        # Flat: the sources import nothing of each other, so a module works wherever it lies.
        files = {
            path.name: path.read_bytes() for path in Path(scratch).rglob("*") if path.is_file()
        }
    assert len(files) == 2 * len(SOURCES), f"two files of one name among {SOURCES}"
    return {"__init__.py": PACKAGE_INIT.encode(), **files}


def differences(files: dict[str, bytes]) -> list[str]:
    """What is not as it should be, one line each."""
    found = []
    for target in TARGETS:
        present = {path.name for path in target.glob("*.py*") if path.is_file()}
        found += [f"{target / name} has no source" for name in sorted(present - files.keys())]
        for name, content in files.items():
            path = target / name
            if not path.is_file():
                found.append(f"{path} is missing")
            elif path.read_bytes() != content:
                found.append(f"{path} is not current")
    return found


def write(files: dict[str, bytes]) -> None:
    """Make both targets hold exactly these files."""
    for target in TARGETS:
        target.mkdir(parents=True, exist_ok=True)
        for path in target.glob("*.py*"):
            if path.name not in files:
                path.unlink()
        for name, content in files.items():
            (target / name).write_bytes(content)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="make the protobuf modules, or check them")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    options = parser.parse_args(argv)
    version = importlib.metadata.version("grpcio-tools")
    if version != GENERATOR_VERSION:
        print(f"grpcio-tools {GENERATOR_VERSION} is needed, this is {version}", file=sys.stderr)
        return 1
    files = generate()
    if not options.check:
        write(files)
        return 0
    found = differences(files)
    for line in found:
        print(line, file=sys.stderr)
    if found:
        print("run: python protos/generate.py", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
