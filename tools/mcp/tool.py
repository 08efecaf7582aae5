"""A tool of a server: it may be started early only as long as the server keeps to what it declared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..contract import Contract
from ..tool import Tool
from .standing import ToolStanding


@dataclass(frozen=True, eq=False, slots=True)
class MCPTool(Tool):
    """A tool of a Model Context Protocol server."""

    standing: ToolStanding = field(repr=False)

    @property
    def objection(self) -> str | None:
        """What stands against starting the tool early: its server is down, or changed it."""
        return self.standing.objection

    @classmethod
    def made(
        cls,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        call: Callable[[Mapping[str, Any]], Awaitable[str]],
        contract: Contract,
        standing: ToolStanding,
    ) -> MCPTool:
        """Make a tool; its contract is taken as it is.

        Raises:
            ToolDefinitionError: the name is unusable, or the schema isn't one of a JSON object.
        """
        plain = Tool.from_schema(name, description, parameters, call, contract, trusted=True)
        return cls(**{item.name: getattr(plain, item.name) for item in fields(plain)}, standing=standing)
