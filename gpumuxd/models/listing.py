"""What a repository has under a model's name, and what of several repositories counts.

Values only: they are made by `repository.py`, and two that are equal say that nothing changed on
the disk between two looks. It must not touch a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpumuxd.errors import InvalidManifest, InvalidModel, UnknownModel
from gpumuxd.models.files import FileStamp
from gpumuxd.models.manifest import DEFAULT_MANIFEST, Manifest

ARTIFACT_FORMATS = {"model.pt2": "pt2", "model.onnx": "onnx"}
"""The names that an artifact may have in its version's directory, one of them at a time."""


ABSENT = "model.toml lists it under versions, and it is not there"


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of one model that can be loaded. `artifact_name` is what it is called there;
    `artifact` is the real path, which a link may have led to. `sha256`: what it has to be."""

    name: str
    version: int
    repository: Path
    artifact: Path
    artifact_name: str
    stamp: FileStamp
    manifest: Manifest
    sha256: str | None = None

    @property
    def artifact_format(self) -> str:
        return ARTIFACT_FORMATS[self.artifact_name]


@dataclass(frozen=True, slots=True)
class BrokenEntry:
    """What looks like a model or a version and is none. `version` is "" when the model itself is
    broken. `is_published`: it is a version that somebody means to be loaded, as opposed to a
    directory that is no version or that has no artifact yet."""

    name: str
    version: str
    reason: str
    is_published: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """What a model's policy wants to serve: what can be loaded, and what can't and why."""

    versions: tuple[ModelVersion, ...]
    broken: tuple[BrokenEntry, ...]


@dataclass(frozen=True, slots=True)
class ModelListing:
    """All that is in one repository under one name, sorted by version."""

    name: str
    manifest: Manifest = DEFAULT_MANIFEST
    versions: tuple[ModelVersion, ...] = ()
    broken: tuple[BrokenEntry, ...] = ()

    @property
    def is_readable(self) -> bool:
        """Is it known what its manifest says?"""
        return all(entry.version for entry in self.broken)

    @property
    def selected(self) -> list[int]:
        """The versions that the policy wants to serve."""
        published = [version.version for version in self.versions]
        published += [int(entry.version) for entry in self.broken if entry.is_published]
        return self.manifest.versions.select(published)

    @property
    def absent(self) -> tuple[BrokenEntry, ...]:
        """Versions that `model.toml` names and of which nothing is there."""
        there = {str(version.version) for version in self.versions}
        there |= {entry.version for entry in self.broken}
        wanted = [str(number) for number in self.selected]
        return tuple(BrokenEntry(self.name, n, ABSENT) for n in wanted if n not in there)

    def select(self) -> Selection:
        """What should serve. Raises InvalidManifest for a model that is broken as a whole, and
        InvalidModel or UnknownModel for one without any version to serve."""
        self.check_readable()
        there = {version.version: version for version in self.versions}
        wanted = self.selected
        if not wanted:
            raise self._nothing()
        reasons = {e.version: e for e in (*self.broken, *self.absent)}
        return Selection(
            tuple(there[number] for number in wanted if number in there),
            tuple(reasons[str(number)] for number in wanted if number not in there),
        )

    def version(self, number: int) -> ModelVersion:
        """One version, whatever the policy says. Raises as `select`."""
        self.check_readable()
        for found in self.versions:
            if found.version == number:
                return found
        for entry in self.broken:
            if entry.version == str(number):
                raise InvalidModel(f"model {self.name!r} version {number}: {entry.reason}")
        raise UnknownModel(f"model {self.name!r} has no version {str(number)!r}")

    def check_readable(self) -> None:
        """Raises InvalidManifest for a model that is broken as a whole."""
        for entry in self.broken:
            if not entry.version:
                raise InvalidManifest(f"model {self.name!r}: {entry.reason}")

    def _nothing(self) -> Exception:
        """Why there is nothing to serve: as its newest version says, if there is one."""
        versions = [entry for entry in self.broken if entry.version.isdecimal()]
        if not versions:
            versions = list(self.broken)
        if not versions:
            return UnknownModel(f"model {self.name!r} has no version that can be loaded")
        newest = max(versions, key=lambda entry: entry.version.zfill(9))
        return InvalidModel(f"model {self.name!r} version {newest.version}: {newest.reason}")


@dataclass(frozen=True, slots=True)
class Scan:
    """All that the repositories have together.

    shadowed   names that an earlier repository has too
    unknown    names that were last seen in a repository that can't be looked at now, with why:
               they are neither there nor gone
    """

    models: Mapping[str, ModelListing] = field(default_factory=dict)
    shadowed: tuple[BrokenEntry, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def broken(self) -> list[BrokenEntry]:
        """All that is wrong somewhere, sorted by name and version."""
        entries = [*self.shadowed, *(e for model in self.models.values() for e in model.broken)]
        return sorted(entries, key=lambda entry: (entry.name, entry.version))

    @property
    def versions(self) -> list[ModelVersion]:
        """All that can be loaded, sorted by name and version."""
        return [version for name in sorted(self.models) for version in self.models[name].versions]


@dataclass(frozen=True, slots=True)
class Silence:
    """A repository that can't be looked at now: why, and the names it had when it could."""

    reason: str
    names: frozenset[str] = frozenset()


def merge(scans: Sequence[Mapping[str, ModelListing] | Silence]) -> Scan:
    """What counts, one scan for each repository in their order: the first that has a name wins,
    also while it can't be looked at."""
    models: dict[str, ModelListing] = {}
    shadowed: list[BrokenEntry] = []
    unknown: dict[str, str] = {}
    owner: dict[str, int] = {}
    for number, scan in enumerate(scans, start=1):
        for name in sorted(scan.names if isinstance(scan, Silence) else scan):
            if name in owner:
                shadowed.append(BrokenEntry(name, "", shadowed_reason(number, owner[name])))
                continue
            owner[name] = number
            if isinstance(scan, Silence):
                unknown[name] = scan.reason
            else:
                models[name] = scan[name]
    return Scan(models, tuple(shadowed), unknown)


def no_model(name: str) -> UnknownModel:
    """The one answer for what is not there and for what is not for the tenant that asks: any
    difference would tell that it is there."""
    return UnknownModel(f"no model {name!r} in the repository")


def shadowed_reason(number: int, winner: int) -> str:
    """Why an entry of a repository does not count. Paths are no matter of a client's."""
    return (
        f"repository {number} in [repository].paths has this name too; "
        f"the one in repository {winner} counts"
    )
