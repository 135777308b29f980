"""Which models clients asked for, on disk, so that they serve again after a restart.

    {"version": 1, "models": ["minilm", "vad"]}

Written whole to a file beside it, synced and renamed: a crash leaves the old one or the new one. It
is a convenience and never a reason not to serve: one that can't be read is moved aside, and one
that can't be written costs a warning. It must not know what a model is.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from gpumuxd.errors import InvalidRequest
from gpumuxd.models.files import NotRegular, open_regular
from gpumuxd.models.names import check_model_name

JOURNAL_NAME = "loads.json"
JOURNAL_VERSION = 1
MODELS_MAX = 4096
"""More are not journalled: a client could fill the disk with names."""

FILE_BYTES_MAX = 1024 * 1024
WRITE_S_MAX = 5.0
"""A load waits this long for a disk that hangs."""

_log = structlog.get_logger()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    models: tuple[str, ...]


class Journal:
    """The names of models that clients loaded and did not unload. Used from one event loop."""

    def __init__(self, path: Path | None) -> None:
        """None: nothing is kept."""
        self._path = path
        self._models: dict[str, None] = {}  # in the order of their loads
        self._changes = 0
        self._written = 0
        self._writer: asyncio.Task[None] | None = None
        self._is_told = False

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._models)

    async def open(self) -> None:
        """Read what an earlier run kept. Before anything is added or removed."""
        if self._path is not None:
            self._models = dict.fromkeys(await asyncio.to_thread(_read, self._path))

    async def add(self, name: str) -> None:
        """Keep a model. Returns when that is on disk, or it was logged that it can't be."""
        if name in self._models:
            return
        if len(self._models) >= MODELS_MAX:
            self._tell(f"it has {MODELS_MAX} models already", model=name)
            return
        self._models[name] = None
        await self._write()

    async def remove(self, name: str) -> None:
        """Keep a model no longer. Returns as `add`."""
        if name in self._models:
            del self._models[name]
            await self._write()

    async def close(self) -> None:
        """Wait for what is being written, but not for a disk that hangs."""
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=WRITE_S_MAX)

    async def _write(self) -> None:
        self._changes += 1
        if self._path is None:
            return
        change = self._changes
        while self._written < change:
            if self._writer is None or self._writer.done():
                work = self._write_all(self._path)
                self._writer = asyncio.get_running_loop().create_task(work, name="journal")
            done, _ = await asyncio.wait([self._writer], timeout=WRITE_S_MAX)
            if not done:
                self._tell(f"its disk did not answer in {WRITE_S_MAX:.0f} s")
                return

    async def _write_all(self, path: Path) -> None:
        """One write of what holds now; for all that wait for one."""
        changes, models = self._changes, self.models
        try:
            await asyncio.to_thread(_replace, path, models)
        except OSError as error:
            self._tell(error.strerror or str(error))
        else:
            self._is_told = False
        self._written = changes

    def _tell(self, reason: str, **fields: str) -> None:
        """Once, until it works again."""
        if not self._is_told:
            self._is_told = True
            meaning = "models that are loaded now may not be loaded again after a restart"
            _log.warning(
                "journal_not_written",
                journal=str(self._path),
                reason=reason,
                meaning=meaning,
                **fields,
            )


def _read(path: Path) -> Sequence[str]:
    """The names in a journal; none, and the file moved aside, when it can't be understood."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        return _names(data)
    except FileNotFoundError:
        return ()
    except (ValueError, OSError, NotRegular, RecursionError) as error:
        _set_aside(path, str(error))
        return ()


def _names(data: bytes) -> Sequence[str]:
    """Raises ValueError saying what is wrong."""
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")
    version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("version")
    if version is None or bytes(version) != b"%d" % JOURNAL_VERSION:
        raise ValueError(f"expected version {JOURNAL_VERSION}, got {bytes(version or b'none')!r}")
    models = msgspec.json.decode(data, type=_File).models
    if len(models) > MODELS_MAX:
        raise ValueError(f"{len(models)} models, expected at most {MODELS_MAX}")
    try:
        for name in models:
            check_model_name(name)
    except InvalidRequest as error:
        raise ValueError(error.message) from error
    return models


def _set_aside(path: Path, reason: str) -> None:
    aside = path.with_name(f"{path.name}.bad")
    try:
        path.replace(aside)
    except OSError as error:
        _log.error("journal_unusable", journal=str(path), reason=reason, kept=error.strerror)
    else:
        _log.error("journal_unusable", journal=str(path), reason=reason, kept=str(aside))


def _replace(path: Path, models: Sequence[str]) -> None:
    data = msgspec.json.encode(_File(JOURNAL_VERSION, tuple(models)))
    # A name that nobody can have put something under; `mkstemp` makes it for us alone.
    fd, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)  # else the name may be the old file's again after a loss of power
    finally:
        os.close(directory)
