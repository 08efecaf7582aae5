"""One call of a server's tool: a guess, which gives way to everything, or a demanded call, which is owed a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp
from mcp import InputRequiredRoundsExceededError, MCPError
from mcp.types import InputRequiredResult
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, URL_ELICITATION_REQUIRED
from pydantic import ValidationError

from ..context import serves_guess
from ..errors import ToolFailure
from .connection import Connection
from .errors import MCPServerFailed
from .flights import Flights
from .questions import ASKS, answering
from .results import View, bounded, read
from .standing import ToolStanding

_LONGEST_MESSAGE = 500
_UNAVAILABLE = 503  # what stops guessing for a while, as from a web service that is down


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)  # fixed arguments may be secrets
class RemoteCall:
    """Calls one tool of a server; this is the tool's function."""

    connection: Connection
    flights: Flights
    standing: ToolStanding
    name: str
    """The tool's name at the server."""
    fixed: Mapping[str, Any]
    """Arguments that go with every call."""
    repeatable: bool
    """Whether a call that may have been done already does no harm if it is made again."""
    view: View | None
    """Makes of a result what the model reads; None takes all of it as text."""
    longest: int
    """Characters of a result."""

    async def __call__(self, arguments: Mapping[str, Any]) -> str:
        """Call the tool and return what the model reads.

        Raises:
            ToolFailure: the server says that the call failed, can't be reached, or answers nothing of use.
        """
        sent = {**arguments, **self.fixed}
        try:
            return await (self._guess(sent) if serves_guess.get() else self._demand(sent))
        except MCPError as error:
            raise self._failure(error) from error
        except InputRequiredRoundsExceededError as error:
            raise ToolFailure("input_required", "the server keeps asking for input") from error
        except (RuntimeError, ValidationError) as error:  # the SDK's words for a result that breaks its own schema
            line = str(error).partition("\n")[0]
            raise ToolFailure("invalid_result", bounded(line, _LONGEST_MESSAGE)) from error

    async def _guess(self, arguments: dict[str, Any]) -> str:
        """Call the tool on the connection that is there. Never restarts the server, never lets it ask."""
        client = self.connection.current
        if client is None:
            raise self._unavailable()
        if not self.flights.guess_may_start:
            raise ToolFailure("not_alone", "a demanded call of the same server is on its way")
        result: Any = None
        with self.flights.guess(self.standing) as flight:
            result = await client.session.call_tool(self.name, arguments, allow_input_required=True)
        if isinstance(result, InputRequiredResult):
            self.standing.revoke(ASKS)
            flight.missed = ASKS
        reason = flight.missed or self.standing.revoked
        if reason is not None:
            raise ToolFailure("missed", reason)
        return read(result, view=self.view, longest=self.longest)

    async def _demand(self, arguments: dict[str, Any]) -> str:
        """Call the tool, on a new connection if need be; once more where that can't do harm."""
        client = await self._connected()
        try:
            return await self._call(client, arguments)
        except MCPError as error:
            if not (_was_never_run(error) or (error.code == CONNECTION_CLOSED and self.repeatable)):
                raise
            self.connection.drop(client)
        return await self._call(await self._connected(), arguments)

    async def _call(self, client: mcp.Client, arguments: dict[str, Any]) -> str:
        with self.flights.demand():
            token = answering.set(self.connection.asks_inside_results)
            try:
                result = await client.call_tool(self.name, arguments)
            finally:
                answering.reset(token)
        return read(result, view=self.view, longest=self.longest)

    async def _connected(self) -> mcp.Client:
        try:
            return await self.connection.client()
        except MCPServerFailed as error:
            raise ToolFailure("server_down", bounded(str(error), _LONGEST_MESSAGE), status=_UNAVAILABLE) from error

    def _unavailable(self) -> ToolFailure:
        return ToolFailure("server_down", f"{self.connection.label} is not connected", status=_UNAVAILABLE)

    def _failure(self, error: MCPError) -> ToolFailure:
        if error.code == CONNECTION_CLOSED:
            message = f"{self.connection.label} went away during the call"
            if not self.repeatable:
                message += "; whether it was carried out is not known: look before calling again"
            return ToolFailure("server_lost", message, status=_UNAVAILABLE)
        kind = "input_required" if error.code == URL_ELICITATION_REQUIRED else "mcp_error"
        return ToolFailure(kind, bounded(error.message.strip().partition("\n")[0] or "no message", _LONGEST_MESSAGE))


def _was_never_run(error: MCPError) -> bool:
    """Tell whether an HTTP server refused the call because it doesn't know our session (any more)."""
    return error.code == INVALID_REQUEST and error.message == "Session terminated"
