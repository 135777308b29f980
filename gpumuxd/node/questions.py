"""Questions to a device child that it answers by number, in whatever order.

It must not know what is asked. Invariant: a question that nobody waits for any more is forgotten,
and an answer to it that still comes is dropped.
"""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Questions(Generic[_T]):
    """Of one life of a child; those that are open when it ends fail."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[_T]] = {}

    @contextmanager
    def asked(self) -> "Iterator[tuple[int, asyncio.Future[_T]]]":
        """The number of a new question, and its answer. It is open as long as the block runs."""
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            yield number, future
        finally:
            del self._asked[number]
            future.cancel()

    def answer(self, number: int, value: _T) -> None:
        future = self._asked.get(number)
        if future is not None and not future.done():
            future.set_result(value)

    def fail(self, error: Exception) -> None:
        """All that are open. Whoever asked is waiting, or about to leave."""
        for future in self._asked.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # asked for here, so that one that nobody awaits is not reported
