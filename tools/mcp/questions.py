"""What a server asks of a person in the middle of a call (elicitation), and who may see it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .flights import Flights

if TYPE_CHECKING:
    import mcp.types
    from mcp.client.context import ClientRequestContext

logger = logging.getLogger("agent_runtime.tools.mcp")

ASKS = "its server asks for input, which only a demanded call may do"

answering: ContextVar[bool] = ContextVar("agent_runtime_mcp_answering", default=False)
"""Set where a question is known to belong to a demanded call: the protocol of 2026 asks inside the call's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A server's question, for a person. It comes from the server: show it as such, and never send it secrets."""

    server: str
    """Name of the server that asks."""
    message: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schema of the answer: an object of plain values. Empty where the answer is to open a page."""
    url: str | None = None
    """A page that the person should open, e.g. to sign in; the answer is then an empty mapping."""


Elicit = Callable[[Question], Awaitable[Mapping[str, Any] | None]]
"""Answers a question: the answer, or None to decline."""


class Questions:
    """Answers what a server asks during demanded calls, and lets no question of a guess through."""

    def __init__(self, server: str, hook: Elicit, flights: Flights) -> None:
        self._server = server
        self._hook = hook
        self._flights = flights

    async def __call__(
        self, context: ClientRequestContext, params: mcp.types.ElicitRequestParams
    ) -> mcp.types.ElicitResult:
        """Answer a question, or decline it."""
        from mcp.types import ElicitResult

        if not answering.get():
            missed = self._flights.miss_guesses(ASKS)
            if len(missed) == 1:  # this tool can't be guessed: it would ask each time
                missed[0].standing.revoke(ASKS)
            if missed or not self._flights.demanded:
                return ElicitResult(action="decline")
        question = Question(
            server=self._server,
            message=params.message,
            schema=getattr(params, "requested_schema", None) or {},
            url=getattr(params, "url", None),
        )
        try:
            answer = await self._hook(question)
        except Exception:
            logger.exception("the hook that answers questions of %s raised; the question is declined", self._server)
            answer = None
        if answer is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=None if question.url else dict(answer))
