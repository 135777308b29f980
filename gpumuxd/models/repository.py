"""A model repository on the disk, laid out as Triton does.

    <repository>/<model>/model.toml              optional policy
    <repository>/<model>/<version>/model.pt2     or model.onnx: one of them
    <repository>/<model>/<version>/model.pt2.sha256    optional

Finds artifacts and reads manifests and checksums; must not open an artifact, and never writes. It
belongs to the operator, but tenants may be able to write parts of it, so nothing in it can point
outside: a link that leaves the repository is refused, whatever it is called.

Invariants: a path that comes out of here is a real path under the repository; what is wrong with
one model is said of that model and hides no other.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from gpumuxd.errors import InvalidManifest, InvalidModel, InvalidRequest
from gpumuxd.models.checksum import SUFFIX, read_checksum
from gpumuxd.models.files import FileStamp
from gpumuxd.models.listing import (
    ARTIFACT_FORMATS,
    BrokenEntry,
    ModelListing,
    ModelVersion,
    Scan,
    Silence,
    merge,
)
from gpumuxd.models.manifest import MANIFEST_NAME, Manifest, read_manifest
from gpumuxd.models.names import check_model_name, version_number

_NAMES = " or ".join(ARTIFACT_FORMATS)

MODELS_MAX = 10_000
"""Entries of any kind in a repository. One with more can't be listed, since taking some of them
would hide the others; a model in it is still found by its name."""

VERSIONS_MAX = 1_000
"""Entries of any kind in a model's directory. One with more is broken as a whole: tenants may be
able to write there, and a look at it would keep those waiting who want other models."""


class RepositoryUnreadable(Exception):
    """The repository as a whole can't be looked at: it is missing, or may not be listed."""


class _TooMany(Exception):
    """A directory has more entries than anybody should have to look at."""


class Repository:
    """One directory where models are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def scan(self) -> dict[str, ModelListing]:
        """Everything that is there now, by the names of the models as messages may carry them.
        Raises RepositoryUnreadable."""
        root = self._real()
        try:
            names = _directories(root, MODELS_MAX)
        except OSError as error:
            raise RepositoryUnreadable(error.strerror) from error
        except _TooMany as error:
            raise RepositoryUnreadable(str(error)) from None
        return {_printable(name): _look(root, name) for name in names}

    def find(self, name: str) -> ModelListing | None:
        """What is there under a name; None: nothing. Raises RepositoryUnreadable, and
        InvalidRequest for what can't be a name."""
        check_model_name(name)
        root = self._real()
        try:
            if not stat.S_ISDIR((root / name).stat().st_mode):
                return None
        except FileNotFoundError:
            return None
        except OSError as error:
            return ModelListing(name, broken=(_unreadable(name, error),))
        return _look(root, name)

    def _real(self) -> Path:
        try:
            root = self.path.resolve(strict=True)
            if not stat.S_ISDIR(root.stat().st_mode):
                raise RepositoryUnreadable("not a directory")
        except OSError as error:
            raise RepositoryUnreadable(error.strerror) from error
        except RuntimeError:
            raise RepositoryUnreadable("a link in a circle") from None
        return root


def scan_all(paths: Sequence[Path]) -> Scan:
    """What several repositories have together, one look after the other."""
    return merge([_scan_or_silence(Repository(path)) for path in paths])


def _scan_or_silence(repository: Repository) -> Mapping[str, ModelListing] | Silence:
    try:
        return repository.scan()
    except RepositoryUnreadable as error:
        return Silence(str(error))


def _look(root: Path, name: str) -> ModelListing:
    """All that is under one name; `root` is a real path. Whatever is wrong is its own."""
    shown = _printable(name)
    try:
        check_model_name(name)
        directory = _inside(root / name, root)
        manifest = read_manifest(_inside(directory / MANIFEST_NAME, root))
        versions = _directories(directory, VERSIONS_MAX)
    except (InvalidRequest, InvalidManifest) as error:
        return ModelListing(shown, broken=(BrokenEntry(shown, "", error.message),))
    except OSError as error:
        return ModelListing(shown, broken=(_unreadable(shown, error),))
    except _TooMany as error:
        return ModelListing(shown, broken=(BrokenEntry(shown, "", str(error)),))
    if not versions:
        reason = "no version: expected a directory named by a number"
        return ModelListing(shown, broken=(BrokenEntry(shown, "", reason),))
    found = [_look_at_version(root, name, directory / version, manifest) for version in versions]
    good = [entry for entry in found if isinstance(entry, ModelVersion)]
    broken = [entry for entry in found if isinstance(entry, BrokenEntry)]
    return ModelListing(
        name,
        manifest,
        tuple(sorted(good, key=lambda version: version.version)),
        tuple(sorted(broken, key=lambda entry: entry.version)),
    )


def _look_at_version(
    root: Path, name: str, path: Path, manifest: Manifest
) -> ModelVersion | BrokenEntry:
    try:
        version = version_number(path.name)
    except InvalidRequest as error:
        return BrokenEntry(name, _printable(path.name), error.message)
    artifact_name = "the artifact"
    try:
        directory = _inside(path, root)
        there = [found for found in ARTIFACT_FORMATS if _exists(directory / found)]
        if not there:
            return BrokenEntry(name, path.name, f"{_NAMES} is missing")
        if len(there) > 1:
            raise InvalidModel(f"it has {' and '.join(there)}: expected one artifact")
        (artifact_name,) = there
        artifact = _inside(directory / artifact_name, root)
        status = artifact.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidModel(f"{artifact_name} is not a regular file")
        checksum = _inside(directory / (artifact_name + SUFFIX), root)
        return ModelVersion(
            name,
            version,
            root,
            artifact,
            artifact_name,
            FileStamp.of(status),
            manifest,
            read_checksum(checksum, artifact_name),
        )
    except InvalidModel as error:
        reason = error.message
    except OSError as error:
        reason = f"{artifact_name} can't be read: {error.strerror}"
    return BrokenEntry(name, path.name, reason, is_published=True)


def _unreadable(name: str, error: OSError) -> BrokenEntry:
    return BrokenEntry(name, "", f"can't be read: {error.strerror}")


def _directories(root: Path, entries_max: int) -> list[str]:
    """Directories in a directory, by name; hidden ones, such as unfinished copies, don't count.
    Raises OSError when it can't be read, and _TooMany without looking at the rest."""
    with os.scandir(root) as entries:
        found = list(islice(entries, entries_max + 1))
    if len(found) > entries_max:
        raise _TooMany(f"it has more than {entries_max} files and directories")
    return sorted(entry.name for entry in found if _counts(entry))


def _counts(entry: "os.DirEntry[str]") -> bool:
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:  # a link that leads nowhere
        return False


def _exists(path: Path) -> bool:
    """Is there anything of this name? Raises OSError when that can't be told."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


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
