"""The model repository, laid out as Triton does: `<repository>/<model>/<version>/model.pt2`.

Finds artifacts and reads manifests; must not open an artifact. It belongs to the operator, but
tenants may be able to write parts of it, so nothing in it can point outside: a link that leaves the
repository is refused, whatever it is called.

Invariants: a path that comes out of here is a real path under one of the repositories; what is
wrong with one model is said of that model and hides no other.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpumuxd.errors import InvalidManifest, InvalidModel, InvalidRequest, UnknownModel
from gpumuxd.models.manifest import MANIFEST_NAME, Manifest, read_manifest
from gpumuxd.models.names import check_model_name, version_number

ARTIFACT_NAME = "model.pt2"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of one model that can be loaded."""

    name: str
    version: int
    artifact: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class BrokenEntry:
    """What looks like a model and is none; version is "" when the model itself is broken."""

    name: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """All that is in the repository, sorted by name and version."""

    models: Sequence[ModelVersion] = field(default_factory=tuple)
    broken: Sequence[BrokenEntry] = field(default_factory=tuple)


class Repository:
    """The directories where models are. Earlier ones win where a name is in several."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def scan(self) -> Scan:
        """Everything that is there now. A directory that can't be read counts as empty."""
        models: dict[tuple[str, int], ModelVersion] = {}
        broken: list[BrokenEntry] = []
        seen: set[str] = set()
        for root in filter(None, map(_real, self._paths)):
            try:
                names = _directories(root)
            except OSError:
                continue
            for name in names:
                if name in seen:
                    reason = "another repository before this one has this name"
                    broken.append(BrokenEntry(_printable(name), "", reason))
                    continue
                for entry in self._scan_model(root, name):
                    if isinstance(entry, ModelVersion):
                        models[entry.name, entry.version] = entry
                    else:
                        broken.append(entry)
            seen.update(names)
        return Scan(
            tuple(models[key] for key in sorted(models)),
            tuple(sorted(broken, key=lambda entry: (entry.name, entry.version))),
        )

    def find(self, name: str, version: str = "") -> ModelVersion:
        """One version of a model, the newest if none is named.

        Raises InvalidRequest for what can't be a name or a version, InvalidModel for one that is
        broken, UnknownModel.
        """
        check_model_name(name)
        wanted = version_number(version) if version else None
        for root in self._paths:
            real_root = _real(root)
            if real_root is None or not _is_directory(real_root / name):
                continue
            entries = list(self._scan_model(real_root, name))
            found = [entry for entry in entries if isinstance(entry, ModelVersion)]
            if wanted is not None:
                found = [entry for entry in found if entry.version == wanted]
            if found:
                return max(found, key=lambda entry: entry.version)
            self._raise_reason(entries, version)
            asked = f"no version {version!r}" if version else "no version that can be loaded"
            raise UnknownModel(f"model {name!r} has {asked}")
        raise UnknownModel(f"no model {name!r} in the repository")

    def _raise_reason(self, entries: Sequence[ModelVersion | BrokenEntry], version: str) -> None:
        """Say why, if the repository knows: a broken model is not an unknown one.

        Where no version is named and none can be loaded, the newest is the one that is meant.
        """
        broken = [entry for entry in entries if isinstance(entry, BrokenEntry)]
        if version:
            broken = [entry for entry in broken if entry.version in ("", version)]
        if not broken:
            return
        entry = max(broken, key=lambda entry: (entry.version.isdecimal(), entry.version.zfill(9)))
        if entry.version:
            raise InvalidModel(f"model {entry.name!r} version {entry.version}: {entry.reason}")
        raise InvalidManifest(f"model {entry.name!r}: {entry.reason}")

    def _scan_model(self, root: Path, name: str) -> Iterator[ModelVersion | BrokenEntry]:
        """All that is under one name; `root` is a real path. Whatever is wrong is its own."""
        shown = _printable(name)
        try:
            check_model_name(name)
            directory = _inside(root / name, root)
            manifest = read_manifest(_inside(directory / MANIFEST_NAME, root))
            versions = _directories(directory)
        except (InvalidRequest, InvalidManifest) as error:
            yield BrokenEntry(shown, "", error.message)
            return
        except OSError as error:
            yield BrokenEntry(shown, "", f"can't be read: {error.strerror}")
            return
        if not versions:
            yield BrokenEntry(shown, "", "no version: expected a directory named by a number")
        for version in versions:
            yield self._scan_version(root, name, directory / version, manifest)

    def _scan_version(
        self, root: Path, name: str, path: Path, manifest: Manifest
    ) -> ModelVersion | BrokenEntry:
        try:
            version = version_number(path.name)
            artifact = _inside(_inside(path, root) / ARTIFACT_NAME, root)
            if stat.S_ISREG(artifact.lstat().st_mode):
                return ModelVersion(name, version, artifact, manifest)
        except (InvalidRequest, InvalidManifest) as error:
            return BrokenEntry(name, _printable(path.name), error.message)
        except FileNotFoundError:
            pass
        except OSError as error:
            return BrokenEntry(name, path.name, f"{ARTIFACT_NAME} can't be read: {error.strerror}")
        return BrokenEntry(name, path.name, f"{ARTIFACT_NAME} is missing or not a file")


def _real(root: Path) -> Path | None:
    """A repository's real path; None for one that is not there."""
    try:
        return root.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return None


def _directories(root: Path) -> list[str]:
    """Directories in a directory, by name; hidden ones, such as unfinished copies, don't count.
    Raises OSError when it can't be read."""
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if _counts(entry))


def _counts(entry: "os.DirEntry[str]") -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:  # a link that leads nowhere
        return False


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _inside(path: Path, root: Path) -> Path:
    """The real path of what lies at `path`, whose parent is a real path under `root`.

    Raises InvalidManifest for a link that leaves the root. What is missing is inside.
    """
    try:
        if not stat.S_ISLNK(path.lstat().st_mode):
            return path  # the common case: one look instead of one for each part of the path
        real = path.resolve()
    except FileNotFoundError:
        return path
    except RuntimeError:  # a loop of links
        raise InvalidManifest(f"{path.name} is a link in a circle") from None
    if not real.is_relative_to(root):
        raise InvalidManifest(f"{path.name} is a link that leaves the repository")
    return real


def _printable(name: str) -> str:
    """A name as a message may carry it; file names need not be text."""
    return name.encode("utf-8", "backslashreplace").decode()
