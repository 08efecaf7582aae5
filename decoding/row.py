"""A row as its consumer sees it: an async iterator of events."""

from __future__ import annotations

from .requests import RowEvent, RowRequest


class Row:
    """Events of one request: Ready, Tokens..., Finished, in this order; Finished is always last.

    One consumer at a time. Errors of this row (RowFailed, WorkerStopped) are raised from the iterator.
    """

    request: RowRequest

    def __aiter__(self) -> Row:
        """Return itself."""
        return self

    async def __anext__(self) -> RowEvent:
        """Wait for the next event."""
        raise StopAsyncIteration

    @property
    def tokens_so_far(self) -> tuple[int, ...]:
        """Every token emitted so far, also those that wait in the buffer."""
        raise RuntimeError

    def cancel(self) -> None:
        """Ask the model thread to end this row at the next step boundary; events go on until Finished("cancelled")."""

    async def aclose(self) -> None:
        """Cancel, and wait until the model thread has let go of the row (its cache is back in the store)."""
