"""One execution of a tool: started, bounded in time, stopped, and turned into an outcome."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from pydantic_core import to_json

from .context import ToolContext
from .failures import Failure, error_content, failure_of
from .threads import ThreadCall
from .tool import Tool
from .values import Outcome

logger = logging.getLogger("agent_runtime.tools")


class Execution:
    """Runs a tool once.

    Args:
        tool: What to run.
        valid: Its validated arguments.
        context: What the tool may know of the call.
        now: The run's clock: seconds since its start.
        at_end: Called once when the tool's function has really ended: in the loop, or for a synchronous tool in
            its thread, which may be long after `run` gave up waiting.
    """

    def __init__(
        self,
        tool: Tool,
        valid: Mapping[str, Any],
        context: ToolContext,
        *,
        now: Callable[[], float],
        at_end: Callable[[], None],
    ) -> None:
        self._tool = tool
        self._function = tool.bind(valid, context)
        self._now = now
        self._at_end = at_end
        self._scope = anyio.CancelScope()
        self.cancelled = False
        self.started_at: float | None = None
        self.failure: Failure | None = None
        self.outcome: Outcome | None = None

    def cancel(self) -> None:
        """Stop waiting for the tool: an async one is cancelled, a thread is left to itself."""
        self.cancelled = True
        self._scope.cancel()

    def restart_timeout(self) -> None:
        """Count the tool's timeout from now."""
        if self._tool.contract.timeout is not None:
            self._scope.deadline = anyio.current_time() + self._tool.contract.timeout

    async def run(self) -> Outcome:
        """Call the tool and return what came of it; the call happens before anything is awaited.

        Only a cancellation from outside is raised. What the tool raises, its timeout and `cancel` become outcomes.
        """
        self.started_at = self._now()
        self.restart_timeout()
        thread: ThreadCall | None = None
        content, error = "", None
        try:
            with self._scope:
                if self._tool.is_async:
                    content = render(await self._function())
                else:
                    thread = ThreadCall(lambda: render(self._function()), name=self._tool.name, at_end=self._at_end)
                    thread.start()
                    await thread.wait()
                    content, error = thread.content, thread.error
        except anyio.get_cancelled_exc_class() as cancelled:
            if anyio.current_effective_deadline() == -math.inf:
                raise
            error = cancelled  # the tool awaited something that was cancelled, nobody cancelled the tool
        except (Exception, SystemExit) as raised:  # no tool ends the process
            error = raised
        finally:
            if thread is None:
                self._at_end()
        self.outcome = self._outcome(content, error)
        return self.outcome

    def _outcome(self, content: str, error: BaseException | None) -> Outcome:
        started_at, ended_at = self.started_at or 0.0, self._now()
        name = self._tool.name
        if self.cancelled and (self._scope.cancelled_caught or error is not None):
            return cancelled_outcome(started_at, ended_at)
        if self._scope.cancelled_caught:
            seconds = f"{self._tool.contract.timeout:g}"
            self.failure = Failure("timeout", f"{name} did not answer within {seconds} s", timed_out=True)
            return Outcome("timeout", self.failure.content, started_at, ended_at, "timeout")
        if error is None:
            return Outcome("ok", content, started_at, ended_at)
        logger.debug("tool %s raised", name, exc_info=error)
        self.failure = failure_of(error)
        return Outcome("error", self.failure.content, started_at, ended_at, self.failure.kind)


def cancelled_outcome(started_at: float, ended_at: float, *, ran: bool = True) -> Outcome:
    """Return the outcome of a call that nobody waits for any more; its kind is `not_run` if no tool was called."""
    kind = "cancelled" if ran else "not_run"
    return Outcome("cancelled", error_content(kind, "the call was cancelled"), started_at, ended_at, kind)


def render(value: Any) -> str:
    """Return a tool's result as the model reads it: text as it is, anything else as compact JSON.

    Raises:
        TypeError: the result is an awaitable, which a synchronous tool must not return.
        ValueError: the result has no JSON form (pydantic's serialisation error).
    """
    if isinstance(value, str):
        return str(value)
    if inspect.isawaitable(value):
        close = getattr(value, "close", None)
        if close is not None:
            close()  # a coroutine that nobody awaits would warn
        raise TypeError("the tool returned an awaitable: declare it with `async def`")
    return to_json(value, inf_nan_mode="strings").decode()
