"""The model repository, laid out as Triton does: `<repository>/<model>/<version>/model.pt2`.

Finds artifacts and reads manifests; must not open an artifact. It belongs to the operator, but
tenants may be able to write parts of it, so nothing in it can point outside: a link that leaves the
repository is refused, whatever it is called.

Invariant: a path that comes out of here lies under one of the repositories' real paths.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpumuxd.errors import InvalidManifest, InvalidRequest, UnknownModel
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
        for root in self._paths:
            names = [path.name for path in _directories(root)]
            for name in names:
                if name in seen:
                    broken.append(
                        BrokenEntry(name, "", "another repository before this one has this name")
                    )
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

        Raises InvalidRequest for what can't be a name or a version, InvalidManifest, UnknownModel.
        """
        check_model_name(name)
        wanted = version_number(version) if version else None
        for root in self._paths:
            if not _is_inside(root / name, root) or not (root / name).is_dir():
                continue
            entries = list(self._scan_model(root, name))
            found = [entry for entry in entries if isinstance(entry, ModelVersion)]
            if wanted is not None:
                found = [entry for entry in found if entry.version == wanted]
            if found:
                return max(found, key=lambda entry: entry.version)
            self._raise_reason(entries, version)
            raise UnknownModel(f"model {name!r} has no version {version or 'that can be loaded'!r}")
        raise UnknownModel(f"no model {name!r} in the repository")

    def _raise_reason(self, entries: Sequence[ModelVersion | BrokenEntry], version: str) -> None:
        """Say why, if the repository knows: a broken manifest is not an unknown model."""
        for entry in entries:
            if isinstance(entry, BrokenEntry) and entry.version in ("", version):
                raise InvalidManifest(f"model {entry.name!r}: {entry.reason}")

    def _scan_model(self, root: Path, name: str) -> Iterator[ModelVersion | BrokenEntry]:
        directory = root / name
        try:
            check_model_name(name)
        except InvalidRequest as error:
            yield BrokenEntry(name, "", error.message)
            return
        if not _is_inside(directory, root):
            yield BrokenEntry(name, "", "a link that leaves the repository")
            return
        if not _is_inside(directory / MANIFEST_NAME, root):
            yield BrokenEntry(name, "", f"{MANIFEST_NAME} is a link that leaves the repository")
            return
        try:
            manifest = read_manifest(directory / MANIFEST_NAME)
        except InvalidManifest as error:
            yield BrokenEntry(name, "", error.message)
            return
        versions = _directories(directory)
        if not versions:
            yield BrokenEntry(name, "", "no version: expected a directory named by a number")
        for path in versions:
            yield self._scan_version(root, name, path, manifest)

    def _scan_version(
        self, root: Path, name: str, path: Path, manifest: Manifest
    ) -> ModelVersion | BrokenEntry:
        try:
            version = version_number(path.name)
        except InvalidRequest as error:
            return BrokenEntry(name, path.name, error.message)
        artifact = path / ARTIFACT_NAME
        if not _is_inside(artifact, root):
            return BrokenEntry(name, path.name, f"{ARTIFACT_NAME} leaves the repository")
        if not artifact.is_file():
            return BrokenEntry(name, path.name, f"{ARTIFACT_NAME} is missing or not a file")
        return ModelVersion(name, version, artifact, manifest)


def _directories(root: Path) -> list[Path]:
    """Directories in a directory, by name; hidden ones, such as unfinished copies, don't count."""
    try:
        return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    except OSError:
        return []


def _is_inside(path: Path, root: Path) -> bool:
    """Does the path, every link followed, stay under the root? A missing path may."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False
