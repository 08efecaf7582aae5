"""Running a synchronous tool in a thread of its own."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

import anyio

from .event_loops import LoopHandle


class ThreadCall:
    """One call of a synchronous function in a daemon thread.

    A thread can't be killed. This one may be abandoned: it keeps neither the loop nor the process alive, and
    `at_end` tells when it really ended, so that it holds its slots until then. Ordinary worker-thread pools give
    neither.

    Args:
        function: What to run.
        at_end: Called in the thread, exactly once, when the function has ended.
    """

    def __init__(self, function: Callable[[], str], *, name: str, at_end: Callable[[], None]) -> None:
        self._function = function
        self._at_end = at_end
        self._name = name
        self._loop = LoopHandle()
        self._ended = anyio.Event()
        self.content = ""
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the thread; the function is called, whatever happens next."""
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name=f"tool {self._name}", daemon=True).start()

    async def wait(self) -> None:
        """Wait for the end; then `error` is set or `content` is. Cancelling abandons the thread."""
        await self._ended.wait()

    def _run(self) -> None:
        try:
            self.content = self._function()
        except BaseException as error:
            self.error = error
        finally:
            self._at_end()
            self._loop.call(self._ended.set)
