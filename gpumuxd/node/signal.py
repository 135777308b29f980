"""A signal: everybody who waits is woken, and looks for himself what has changed."""

import asyncio


class Signal:
    """Nothing is remembered: who comes later waits for the next time."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        """Returns after the next `notify`."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            await woken
        finally:
            self._waiting.discard(woken)

    def notify(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)
