"""A connection to a server that is held in a task of its own, lost now and then, and opened again on demand."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import anyio
import mcp
from anyio.abc import TaskStatus
from mcp import MCPError
from mcp.client.session import ElicitationFnT, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.types import ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from .errors import MCPServerFailed
from .standing import ServerStanding
from .transports import Transport

logger = logging.getLogger("agent_runtime.tools.mcp")

DEATHS = 3
"""After so many deaths a server's tools are never started early again."""

_LEAVING = 10.0  # seconds for a server to end; the SDK's own bounds lie below
_PAGES = 100  # of a list of tools, so that a list without an end can't hold us up
_LISTEN_AGAIN = 1.0  # seconds between two attempts to be told of changes


class _Attempt:
    """One attempt to connect, and those who wait for it."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.error: MCPServerFailed | None = None


class Connection:
    """Keeps one server connected.

    Args:
        label: The server's name in errors.
        transport: How it is reached.
        patience: Seconds in which it must connect and list its tools.
        questions: Answers what it asks; None says at connecting that nobody is there to ask.
        standing: Where it is noted whether its tools may be started early.
        on_tools: Called with the list of tools after each connecting and each change.
    """

    def __init__(
        self,
        label: str,
        transport: Transport,
        *,
        patience: float,
        questions: ElicitationFnT | None,
        standing: ServerStanding,
        on_tools: Callable[[list[mcp.Tool]], None],
    ) -> None:
        self.label = label
        self.deaths = 0
        self.restarts = 0
        self._transport = transport
        self._patience = patience
        self._questions = questions
        self._standing = standing
        self._on_tools = on_tools
        self._client: mcp.Client | None = None
        self._attempt: _Attempt | None = None
        self._wanted = anyio.Event()
        self._leave = anyio.Event()
        self._changed = anyio.Event()
        self._closing = False

    @property
    def current(self) -> mcp.Client | None:
        """The client, if the server is connected."""
        return self._client

    @property
    def asks_inside_results(self) -> bool:
        """Whether the server's questions come inside the result of the call they belong to."""
        return self._client is not None and self._client.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def client(self) -> mcp.Client:
        """Return the client, after connecting anew if the connection is gone.

        Raises:
            MCPServerFailed: it can't be had.
        """
        while self._client is None:
            if self._closing:
                raise MCPServerFailed(f"MCP server {self.label} is closed: use its tools inside `async with`")
            if self._attempt is None:
                self._attempt = _Attempt()
                self._wanted.set()
            attempt = self._attempt
            await attempt.done.wait()
            if attempt.error is not None:
                raise MCPServerFailed(str(attempt.error)) from attempt.error
        return self._client

    def drop(self, client: mcp.Client) -> None:
        """Give a connection up that turned out to be useless, so that the next call makes a new one."""
        if self._client is client:
            self._lost()

    def close(self) -> None:
        """Disconnect for good; `run` returns once the server has ended."""
        self._closing = True
        self._client = None
        self._wanted.set()
        self._leave.set()

    async def run(self) -> None:
        """Connect whenever somebody wants it, until `close`. One task holds each connection from end to end."""
        try:
            while not self._closing:
                await self._wanted.wait()
                self._wanted = anyio.Event()
                if not self._closing:
                    await self._hold()
        finally:
            self._closing = True
            self._settle(MCPServerFailed(f"MCP server {self.label} is closed"))
            self._transport.close()

    async def _hold(self) -> None:
        """Connect, and stay connected until the server is lost or nobody wants it any more."""
        self._leave = anyio.Event()
        problem: BaseException | None = None
        connected = False
        with anyio.CancelScope(deadline=anyio.current_time() + self._patience) as scope:
            try:
                async with mcp.Client(
                    self._transport.open(self._lost),
                    elicitation_callback=self._questions,
                    message_handler=self._hear,
                    client_info=_client_info(),
                    cache=None,
                ) as client:
                    async with anyio.create_task_group() as beside:
                        beside.start_soon(self._watch_tools, client)
                        if _tells_of_changes(client):  # first of all, so that no change falls between
                            await beside.start(self._listen, client)
                        self._on_tools(await _list_tools(client))
                        scope.deadline = math.inf
                        connected = True
                        self._publish(client)
                        await self._leave.wait()
                        beside.cancel_scope.cancel()
                    scope.deadline = anyio.current_time() + _LEAVING
            except Exception as error:  # whatever comes of a server stays its own problem
                problem = error
        if connected:
            if not self._closing and self._client is not None:  # the transport broke down under it
                self._lost()
            if problem is not None:
                logger.debug("the connection to MCP server %s ended", self.label, exc_info=problem)
            return
        self._settle(self._failed(problem, timed_out=scope.cancelled_caught))

    def _publish(self, client: mcp.Client) -> None:
        if self.deaths:
            self.restarts += 1
        self._client = client
        self._standing.down = self._standing.doubt = None
        self._settle(None)

    def _settle(self, error: MCPServerFailed | None) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.error = error
            attempt.done.set()

    def _lost(self) -> None:
        """Note at once that nothing more can come of the server."""
        if self._client is None or self._closing:
            self._leave.set()
            return
        self._client = None
        self.deaths += 1
        self._standing.down = "the connection to its server is gone; a call that the agent makes brings it back"
        if self.deaths >= DEATHS:
            self._standing.given_up = f"its server was lost {self.deaths} times"
        logger.warning("the connection to MCP server %s is gone", self.label)
        self._leave.set()

    def _failed(self, problem: BaseException | None, *, timed_out: bool) -> MCPServerFailed:
        words = self._transport.last_words()
        if timed_out and problem is None:
            reason = f"it did not answer within {self._patience:g} s"
        else:
            reason = _reason(problem) if problem is not None else "it ended the connection"
        said = f"; it last said: {words}" if words else ""
        error = MCPServerFailed(f"can't connect to MCP server {self.label}: {reason}{said}")
        error.__cause__ = problem
        return error

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._doubt()

    def _doubt(self) -> None:
        """Stop guesses until the new list of tools was compared with what is known of them."""
        self._standing.doubt = "its server's list of tools has changed and is being looked at"
        self._changed.set()

    async def _watch_tools(self, client: mcp.Client) -> None:
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            try:
                tools = await _list_tools(client)
            except MCPError as error:  # doubt stays, and with it nothing is guessed
                logger.warning("MCP server %s changed its tools and can't list them: %s", self.label, error)
                continue
            self._on_tools(tools)
            if not self._changed.is_set():
                self._standing.doubt = None

    async def _listen(self, client: mcp.Client, *, task_status: TaskStatus[None]) -> None:
        """Subscribe to changes, as the protocol of 2026 wants it; while nobody listens, nothing is guessed."""
        first = True
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    if first:
                        task_status.started()
                    else:
                        self._doubt()  # something may have changed in the meantime
                    first = False
                    async for _ in changes:
                        self._doubt()
            except (MCPError, SubscriptionLost, TimeoutError) as error:
                logger.debug("MCP server %s ended the subscription: %s", self.label, error)
            if first:
                task_status.started()
                first = False
            self._standing.doubt = "its server doesn't say at present whether its tools change"
            await anyio.sleep(_LISTEN_AGAIN)


async def _list_tools(client: mcp.Client) -> list[mcp.Tool]:
    tools: list[mcp.Tool] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise MCPServerFailed(f"its list of tools has no end (more than {_PAGES} pages)")


def _tells_of_changes(client: mcp.Client) -> bool:
    tools = client.server_capabilities.tools
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS and tools is not None and bool(tools.list_changed)


def _client_info() -> mcp.Implementation:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return mcp.Implementation(name="agent-runtime", version=version("agent-runtime"))
    except PackageNotFoundError:
        return mcp.Implementation(name="agent-runtime", version="0")


def _reason(problem: BaseException) -> str:
    """Return one line on why connecting failed; groups of errors by their first."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    line = str(problem).strip().partition("\n")[0]
    if isinstance(problem, FileNotFoundError):
        return f"there is no command {problem.filename!r}" if problem.filename else line
    return line or type(problem).__name__
