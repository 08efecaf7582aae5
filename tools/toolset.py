"""The tools of one agent, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

from .catalogue import Catalogue
from .errors import ToolDefinitionError
from .tool import Tool


class Toolset(Sequence[Tool]):
    """Tools in the order in which a model is told of them.

    Raises:
        ToolDefinitionError: two tools share a name.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools = tuple(tools)
        self._by_name: dict[str, Tool] = {}
        for item in self._tools:
            if item.name in self._by_name:
                raise ToolDefinitionError(f"two tools are called {item.name!r}: rename one (name=...)")
            self._by_name[item.name] = item

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return self._by_name.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The tools' names, in order."""
        return tuple(self._by_name)

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools)

    @overload
    def __getitem__(self, index: int) -> Tool: ...

    @overload
    def __getitem__(self, index: slice) -> Toolset: ...

    def __getitem__(self, index: int | slice) -> Tool | Toolset:
        return Toolset(self._tools[index]) if isinstance(index, slice) else self._tools[index]

    def __repr__(self) -> str:
        return f"Toolset({', '.join(self.names)})"


def as_tools(tools: Iterable[Tool | Callable[..., Any]], *, catalogue: Catalogue | None = None) -> Toolset:
    """Return `tools` as a toolset: plain functions become tools, and the catalogue overrides what they declare.

    A catalogue may name tools that aren't here. A plain function counts as a write.

    Raises:
        ToolDefinitionError: two tools share a name, or a function can't be described to a model.
        CatalogueError: an entry contradicts itself.
    """
    made = []
    for item in tools:
        if not isinstance(item, Tool):
            if not callable(item):
                raise ToolDefinitionError(f"{item!r} is no tool: give functions or tools")
            item = Tool.from_function(item)
        if catalogue is not None:
            contract = catalogue.effective(item.name, item.contract)
            if contract is not item.contract:
                item = item.with_contract(contract)
        made.append(item)
    return Toolset(made)
