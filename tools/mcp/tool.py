"""A tool of a server: its contract holds only as long as the server keeps to what it declared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..contract import Contract
from ..tool import Tool
from .standing import ToolStanding

_DECLARED: Any = vars(Tool)["contract"]  # the slot in which a tool keeps the contract it was made with


@dataclass(frozen=True, eq=False)  # with slots, dataclasses would drop the property: it has a field's name
class MCPTool(Tool):
    """A tool of a Model Context Protocol server."""

    standing: ToolStanding = field(repr=False)

    @property  # type: ignore[misc]
    def contract(self) -> Contract:
        """The tool's contract; while something stands against it, one under which nothing is started early.

        What was fetched early before that isn't handed over either.
        """
        declared: Contract = _DECLARED.__get__(self, type(self))
        if self.standing.objection is None:
            return declared
        return replace(declared, pre_execute=False, fresh_for=0.0)

    @contract.setter
    def contract(self, value: Contract) -> None:
        _DECLARED.__set__(self, value)

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
