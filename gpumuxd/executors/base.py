"""The whole seam between scheduling and hardware.

An executor enqueues slices on the in-order lanes it declares and tells when each has passed. It
decides nothing: no ordering, no limits, no retries. A new device is one new file that passes
`tests/executors/contract.py`.

Weights come onto a device by the same two calls as everything else. Whoever loads a model makes an
*upload program* for the device, whose groups each bring one chunk of the weights; it is loaded
under a key of its own, and a cursor of kind UPLOAD runs it, one group a slice. On the CPU device a
chunk is a range of pages to map, on the compute lane (`upload.py`). A device with copy engines
declares a COPY_IN lane, where the scheduler sends such cursors; its groups enqueue an asynchronous
copy each, from pinned memory to the place of the weights, and `launch` marks the sync point with an
event on that lane's stream. So no more of a copy is in flight than the window allows, a tenant's
copy never waits behind all of it, and an upload that is cancelled ends at a chunk.

Threads: every method but `wake` is called by the device loop's thread alone.
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from gpumuxd.domain import Lane, Slice
from gpumuxd.events import SliceFailed, SyncPointReached

ProgramT_contra = TypeVar("ProgramT_contra", contravariant=True)
TensorsT_contra = TypeVar("TensorsT_contra", contravariant=True)

Completion = SyncPointReached | SliceFailed


class Executor(Protocol, Generic[ProgramT_contra, TensorsT_contra]):
    """A device that runs kernel groups in order, lane by lane."""

    @property
    def lanes(self) -> Sequence[Lane]:
        """The in-order queues of this device, fixed for its life."""
        ...

    def load(self, model: str, program: ProgramT_contra, fills: Sequence[int | float] = ()) -> None:
        """Make a program launchable under this model key. The key must be new. `fills` has for
        each input what it is padded with where members of a run differ; empty: they never do."""
        ...

    def unload(self, model: str) -> None:
        """Forget a program. No cursor of it holds a frame."""
        ...

    def bind(self, request_id: int, inputs: TensorsT_contra, outputs: TensorsT_contra) -> None:
        """Say where a request's tensors are, before its first slice is launched."""
        ...

    def unbind(self, request_id: int) -> None:
        """Forget them. No slice that touches them is in flight: the first one of its cursor or
        the last. Unknown ids are no error."""
        ...

    def launch(self, work: Slice) -> None:
        """Enqueue a slice and its sync point in `work.lane`. Never blocks.

        The first slice of a cursor takes a frame and its inputs, the last one writes the outputs.
        Several members run together, their rows in the order of the members; whoever was unbound
        before the last slice is launched gets nothing written, and nobody else notices.
        A group that raises ends its slice as SliceFailed; later slices of the same cursor that
        were already enqueued fail too, other cursors go on.
        """
        ...

    def retire(self, cursor_id: int) -> None:
        """Drop what a cursor holds in its frame. Nothing of it is in flight."""
        ...

    def wait(self, until_ns: int | None) -> list[Completion]:
        """Sleep until a slice has passed, `wake` was called or `until_ns` has come; then return
        all that has passed, in the order of each lane. None: no limit. A time that has come:
        return at once with what there is."""
        ...

    def wake(self) -> None:
        """End a `wait`, now or the next one. Any thread."""
        ...

    def close(self) -> None:
        """Wait for what is enqueued, then give everything back. Idempotent."""
        ...
