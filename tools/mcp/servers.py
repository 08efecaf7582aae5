"""`MCPTools`: the tools of a Model Context Protocol server, for agents."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

import anyio
from anyio.abc import TaskGroup

from ..catalogue import Catalogue, load_catalogue
from ..contract import Contract
from ..errors import ToolDefinitionError
from ..tool import Tool
from ..toolset import Toolset
from .errors import MCPNotInstalled, MCPToolsError
from .flights import Flights
from .questions import Elicit, Questions
from .results import View
from .standing import ServerStanding, ToolStanding, annotations_of, pin_of
from .tool import MCPTool

if TYPE_CHECKING:
    import mcp

    from .connection import Connection

logger = logging.getLogger("agent_runtime.tools.mcp")


@dataclass(frozen=True, slots=True)
class MCPStatistics:
    """What became of a server so far."""

    connected: bool
    losses: int
    """Times the connection was lost."""
    restarts: int
    """Times a demanded call brought it back."""
    revoked: Mapping[str, str]
    """Tools that are never started early again, with the reason."""


class MCPTools(Sequence[Tool]):
    """The tools of one server, as a sequence: `Agent(tools=tools)` or `Agent(tools=[*tools, other])`.

    Use it as an async context manager around the agent's runs. Entering starts the server or connects to it, and reads
    its tools once; agents keep the tools they were given. A tool whose schema or annotations the server changes
    later is not started early any more. A server that is lost is started again when the agent calls one of its tools;
    guesses never do that.

    Args:
        server: `mcp.StdioServerParameters` of a command to start, or the URL of a server that speaks streamable HTTP.
        trusted: Whether what the server says of its own tools (annotations) counts where it allows something.
        catalogue: The operator's word on the tools, under the server's names, above all annotations: a TOML or JSON
            file, or a `Catalogue`.
        only: Names of the tools to take; None takes all.
        without: Names of tools to leave out.
        prefix: Put before each name, e.g. where two servers use the same.
        fixed: Arguments that go with every call of a tool that takes them; the model doesn't see them.
        headers: HTTP headers of every request, e.g. `Authorization`. Never shown or recorded.
        timeout: Seconds one call may take, unless the catalogue says otherwise; None = no bound.
        connect_timeout: Seconds in which the server must connect and list its tools.
        view: Makes of the server's result (`mcp.types.CallToolResult`) the text that the model reads, e.g. one field of
            it. None takes its text, its structured content as JSON, and names what is neither.
        max_characters: Characters of one result that the model is shown.
        elicit: Answers what the server asks a person in the middle of a demanded call. Without it the server is told
            that nobody can be asked. The time an answer takes counts towards the call's timeout.
        name: The server's name in errors and questions.

    Raises:
        MCPNotInstalled: the extra `mcp` is missing.
        CatalogueError: the catalogue can't be read.
    """

    def __init__(
        self,
        server: mcp.StdioServerParameters | str,
        *,
        trusted: bool = False,
        catalogue: str | Path | Catalogue | None = None,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
        prefix: str = "",
        fixed: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
        connect_timeout: float = 30.0,
        view: View | None = None,
        max_characters: int = 50_000,
        elicit: Elicit | None = None,
        name: str | None = None,
    ) -> None:
        _require_sdk()
        from .transports import Transport, label_of

        self.name = name or label_of(server)
        self._server = server
        self._trusted = trusted
        self._catalogue = catalogue if isinstance(catalogue, Catalogue | None) else load_catalogue(catalogue)
        self._only = _names(only, "only") if only is not None else None
        self._without = _names(without, "without")
        self._prefix = prefix
        self._fixed = dict(fixed or {})
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._view = view
        self._longest = max_characters
        self._elicit = elicit
        self._transport = Transport(server, headers or {})
        self._group: TaskGroup | None = None
        self._connection: Connection | None = None
        self._flights = Flights()
        self._standing = ServerStanding()
        self._standings: dict[str, ToolStanding] = {}
        self._tools: Toolset | None = None

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise MCPToolsError(f"the tools of MCP server {self.name} are in use: make another MCPTools")
        from .connection import Connection

        self._flights, self._standing = Flights(), ServerStanding()
        self._standings, self._tools = {}, None
        self._connection = Connection(
            self.name,
            self._transport,
            patience=self._connect_timeout,
            questions=None if self._elicit is None else Questions(self.name, self._elicit, self._flights),
            standing=self._standing,
            on_tools=self._take,
        )
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._connection.run, name=f"MCP server {self.name}")
        try:
            await self._connection.client()
            self._flights.exclusive = self._elicit is not None and not self._connection.asks_inside_results
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        group, self._group = self._group, None
        assert group is not None and self._connection is not None
        self._standing.down = "its server isn't connected"
        self._connection.close()
        # What the block raised goes on by itself: handed to the task group, it would come out wrapped in a group.
        await group.__aexit__(None, None, None)

    def statistics(self) -> MCPStatistics:
        """Return what became of the server so far."""
        connection = self._connection
        return MCPStatistics(
            connected=connection is not None and connection.current is not None,
            losses=connection.deaths if connection is not None else 0,
            restarts=connection.restarts if connection is not None else 0,
            revoked={name: item.revoked for name, item in self._standings.items() if item.revoked is not None},
        )

    # --- the tools as a sequence ------------------------------------------------------------------------------

    @property
    def _known(self) -> Toolset:
        if self._tools is None:
            raise MCPToolsError(
                f"the tools of MCP server {self.name} are not known yet: write `async with MCPTools(...) as tools:`"
            )
        return self._tools

    def __len__(self) -> int:
        return len(self._known)

    @overload
    def __getitem__(self, index: int) -> Tool: ...

    @overload
    def __getitem__(self, index: slice) -> Toolset: ...

    def __getitem__(self, index: int | slice) -> Tool | Toolset:
        return self._known[index]

    def __repr__(self) -> str:
        return f"MCPTools({self.name!r})"

    # --- what the server says ---------------------------------------------------------------------------------

    def _take(self, definitions: list[mcp.Tool]) -> None:
        """Make tools of the first list; compare every later one with it."""
        if self._tools is None:
            wanted = [item for item in definitions if self._wants(item.name)]
            self._check_names({item.name for item in definitions})
            self._tools = Toolset(self._make(item) for item in wanted)
            return
        pins = {item.name: _pin_or_none(item) for item in definitions}
        for name, standing in self._standings.items():
            if name not in pins:
                standing.revoke("its server doesn't list it any more")
            elif pins[name] != standing.pin:
                standing.revoke("its server changed its schema or annotations")
            else:
                continue
            logger.warning("MCP server %s: %s is not started early any more: %s", self.name, name, standing.revoked)

    def _wants(self, name: str) -> bool:
        return name not in self._without and (self._only is None or name in self._only)

    def _check_names(self, offered: set[str]) -> None:
        unknown = (self._only or frozenset()) - offered
        if unknown:
            known = ", ".join(sorted(offered)) or "none"
            raise ToolDefinitionError(f"it has no tool {min(unknown)!r} (only=...); its tools: {known}")

    def _make(self, definition: mcp.Tool) -> Tool:
        from .calling import RemoteCall

        assert self._connection is not None
        standing = ToolStanding(self._standing, pin_of(definition))
        contract = self._contract(definition)
        parameters, fixed = _without_fixed(definition.input_schema, self._fixed)
        call = RemoteCall(
            connection=self._connection,
            flights=self._flights,
            standing=standing,
            name=definition.name,
            fixed=fixed,
            repeatable=contract.effect != "write",
            view=self._view,
            longest=self._longest,
        )
        tool = MCPTool.made(
            self._prefix + definition.name, definition.description or "", parameters, call, contract, standing
        )
        self._standings[definition.name] = standing
        return tool

    def _contract(self, definition: mcp.Tool) -> Contract:
        said = replace(Contract.from_hints(annotations_of(definition)), timeout=self._timeout)
        contract = said if self._trusted else said.distrusted()
        return contract if self._catalogue is None else self._catalogue.effective(definition.name, contract)


def _require_sdk() -> None:
    try:
        from mcp import Client  # noqa: F401
    except ImportError as error:
        raise MCPNotInstalled(
            "MCP tools need the SDK of the Model Context Protocol, version 2: pip install 'agent-runtime[mcp]'"
        ) from error


def _names(names: Collection[str], argument: str) -> frozenset[str]:
    if isinstance(names, str):
        raise ToolDefinitionError(f"{argument}={names!r}: give a list of names, [{names!r}]")
    return frozenset(names)


def _pin_or_none(definition: mcp.Tool) -> str | None:
    try:
        return pin_of(definition)
    except ToolDefinitionError:
        return None


def _without_fixed(schema: Mapping[str, Any], fixed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema without the arguments that are fixed, and those of them that the tool takes."""
    properties = schema.get("properties") or {}
    taken = {name: value for name, value in fixed.items() if name in properties}
    if not taken:
        return dict(schema), {}
    shown = {**schema, "properties": {name: item for name, item in properties.items() if name not in taken}}
    if "required" in schema:
        shown["required"] = [name for name in schema["required"] if name not in taken]
    return shown, taken
