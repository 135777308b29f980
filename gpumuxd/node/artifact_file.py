"""An artifact's file while it is read: opened once, and looked at again when that is done.

Every look is made on a thread, since a disk may hang; one that does keeps a few threads and no
more. It must not know what is in the file. Invariant: what `check_untouched` lets pass is the file
that lies at that path, and nobody wrote to it since it was opened.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from gpumuxd.errors import InvalidModel, ModelNotReady
from gpumuxd.models.files import FileStamp, NotRegular, is_untouched, open_regular

DISK_S_MAX = 10.0
"""A disk that takes longer to open a file, or to tell of one, hangs."""

_T = TypeVar("_T")


class ArtifactFiles:
    """Opens artifacts, and knows which repositories hang."""

    def __init__(self) -> None:
        self._overdue: Counter[Path] = Counter()

    @contextlib.asynccontextmanager
    async def open(self, path: Path, repository: Path) -> "AsyncIterator[ArtifactFile]":
        """The artifact at `path`. Raises InvalidModel or ModelNotReady."""

        def look() -> tuple[int, os.stat_result]:
            fd = open_regular(path)
            return fd, os.fstat(fd)

        try:
            fd, status = await self.ask(repository, look, _close_opened)
        except NotRegular as error:
            raise InvalidModel(f"its artifact {error}") from None
        except OSError as error:
            raise ModelNotReady(f"its artifact can't be read: {error.strerror}") from error
        try:
            yield ArtifactFile(self, path, repository, fd, status)
        finally:
            os.close(fd)

    async def ask(self, repository: Path, look: Callable[[], _T], undo: Callable[[_T], None]) -> _T:
        """What a thread finds. `undo` is called with what it found when nobody waits any more.
        Raises ModelNotReady when the disk does not answer, at once when it is known not to."""
        if self._overdue[repository]:
            raise ModelNotReady("its disk does not answer; retry")
        looking = asyncio.get_running_loop().run_in_executor(None, look)
        try:
            done, _ = await asyncio.wait([looking], timeout=DISK_S_MAX)
            if done:
                return looking.result()
        except asyncio.CancelledError:
            looking.add_done_callback(lambda looked: _undo(looked, undo))
            raise
        self._overdue[repository] += 1

        def answered(looked: "asyncio.Future[_T]") -> None:
            self._overdue[repository] -= 1
            _undo(looked, undo)

        looking.add_done_callback(answered)
        raise ModelNotReady(f"its disk did not answer in {DISK_S_MAX:.0f} s; retry")


class ArtifactFile:
    """One open artifact."""

    def __init__(
        self,
        files: ArtifactFiles,
        path: Path,
        repository: Path,
        fd: int,
        status: os.stat_result,
    ) -> None:
        self.fd = fd
        self._files = files
        self._path = path
        self._repository = repository
        self._before = status

    @property
    def stamp(self) -> FileStamp:
        return FileStamp.of(self._before)

    async def check_untouched(self) -> None:
        """Raise ModelNotReady unless the file is still there as it was opened. What has its number
        is this file, since ours is open: the descriptor need not be asked as well."""
        try:
            now = await self._files.ask(
                self._repository, lambda: os.lstat(self._path), lambda status: None
            )
        except FileNotFoundError:
            raise ModelNotReady("its artifact went away while it was being read") from None
        except OSError as error:
            raise ModelNotReady(f"its artifact can't be read: {error.strerror}") from error
        if not is_untouched(self._before, now):
            raise ModelNotReady("its artifact changed while it was being read; retry")


def _close_opened(opened: tuple[int, os.stat_result]) -> None:
    os.close(opened[0])


def _undo(looked: "asyncio.Future[_T]", undo: Callable[[_T], None]) -> None:
    if not looked.cancelled() and looked.exception() is None:
        undo(looked.result())
