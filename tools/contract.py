"""What is known of a tool's effect on the world and of its limits, and who says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from .errors import ToolDefinitionError
from .values import Effect

ContractSource = Literal["declared", "default", "catalogue", "mcp", "mcp (untrusted)"]
"""Who declared a contract: its author, nobody, the operator's catalogue, or an MCP server."""

ApprovalRule = bool | Callable[[Mapping[str, Any]], bool]
"""Whether a call needs approval: always, never, or as a function of the validated arguments says."""

DEFAULT_FRESH_FOR = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a tool does to the world, and within which limits it may run.

    Raises:
        ToolDefinitionError: the values contradict each other, or one lies outside its range.
    """

    effect: Effect = "write"
    """`read`: no change to the world; `idempotent`: a write that may be repeated; `write`: anything else."""
    reads: frozenset[str] | None = None
    """Resource keys that a result depends on; None (undeclared) = all keys."""
    writes: frozenset[str] | None = None
    """Resource keys that a call may change; None (undeclared) = all keys. A `read` writes none."""
    open_world: bool = False
    """The arguments leave the machine."""
    destructive: bool = False
    """A call may destroy something; such a tool is never started early, by any setting."""
    fresh_for: float = DEFAULT_FRESH_FOR
    """Seconds, from a guess's start, in which its result may still be handed over."""
    timeout: float | None = None
    """Seconds one execution may take; None = no bound."""
    max_concurrency: int | None = None
    """Executions at the same time, over all runs of the process; None = no bound."""
    rate: float | None = None
    """Calls per second, over all runs of the process; None = no bound."""
    cost: float = 0.0
    """What one call costs, in a unit of your own; recorded and shown; the built-in policy doesn't weigh it."""
    requires_approval: ApprovalRule = False
    sequential: bool = False
    """A barrier: no other call of the turn runs beside it."""
    secret: frozenset[str] = frozenset()
    """Names of arguments that must not be stored or shown."""
    pre_execute: bool | None = None
    """False: never start this tool before the agent asks. None and True leave it to the gate."""
    source: ContractSource = "declared"

    def __post_init__(self) -> None:
        if self.effect not in get_args(Effect):
            raise ToolDefinitionError(f"effect={self.effect!r}: give one of {', '.join(get_args(Effect))}")
        if self.effect == "read" and self.destructive:
            raise ToolDefinitionError("a tool with effect='read' changes nothing, so it can't be destructive")
        if self.effect == "read" and self.writes:
            raise ToolDefinitionError("a tool with effect='read' changes nothing, so it can't declare `writes`")
        if self.fresh_for < 0:
            raise ToolDefinitionError(f"fresh_for={self.fresh_for}: give seconds, at least 0")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ToolDefinitionError(f"max_concurrency={self.max_concurrency}: give at least 1, or None for no bound")
        for name in ("timeout", "rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ToolDefinitionError(f"{name}={value}: give a number above 0, or None for no bound")

    @property
    def is_read(self) -> bool:
        """Whether a call changes nothing in the world."""
        return self.effect == "read"

    @property
    def is_barrier(self) -> bool:
        """Whether other calls of the same turn must not run beside a call."""
        return self.sequential or not self.is_read

    def overlaid(self, changes: Mapping[str, Any], *, source: ContractSource) -> Contract:
        """Return this contract with `changes` on top of it, as said by `source`.

        Declaring a tool a `read` withdraws what can't be true of a read (`destructive`, `writes`), unless `changes`
        name it.

        Raises:
            ToolDefinitionError: a name is unknown, or the values contradict each other.
        """
        unknown = set(changes) - CONTRACT_FIELDS
        if unknown:
            known = ", ".join(sorted(CONTRACT_FIELDS))
            raise ToolDefinitionError(f"unknown field {min(unknown)!r} in a tool's contract; known: {known}")
        values = dict(changes)
        for name in ("reads", "writes", "secret"):
            if values.get(name) is not None:
                values[name] = resource_keys(values[name], name)
        if values.get("effect") == "read":
            values.setdefault("destructive", False)
            values.setdefault("writes", None)
        return replace(self, **values, source=source)

    @classmethod
    def from_hints(cls, hints: Mapping[str, Any] | None) -> Contract:
        """Return the contract that a Model Context Protocol server's tool annotations describe.

        `readOnlyHint` -> read; else `idempotentHint` -> idempotent; else write. Missing hints take the
        specification's defaults: not read-only, destructive, not idempotent, open world.
        """
        hints = hints or {}
        if hints.get("readOnlyHint", False) is True:
            effect: Effect = "read"
        elif hints.get("idempotentHint", False) is True:
            effect = "idempotent"
        else:
            effect = "write"
        return cls(
            effect=effect,
            destructive=effect != "read" and hints.get("destructiveHint", True) is not False,
            open_world=hints.get("openWorldHint", True) is not False,
            source="mcp",
        )

    def distrusted(self) -> Contract:
        """Return what counts of this contract if its source isn't trusted: what forbids, nothing that allows."""
        return replace(
            self,
            effect="write",
            reads=None,
            writes=None,
            open_world=True,
            fresh_for=DEFAULT_FRESH_FOR,
            source="mcp (untrusted)",
        )


CONTRACT_FIELDS = frozenset(field.name for field in fields(Contract)) - {"source"}


def resource_keys(value: Iterable[str], name: str = "keys") -> frozenset[str]:
    """Return `value` as a set of names.

    Raises:
        ToolDefinitionError: it is a bare string or holds something else than strings.
    """
    if isinstance(value, str):
        raise ToolDefinitionError(f"{name}={value!r}: give a list of names, [{value!r}]")
    try:
        keys = frozenset(value)
    except TypeError:
        raise ToolDefinitionError(f"{name}={value!r}: give a list of names") from None
    if not all(isinstance(key, str) for key in keys):
        raise ToolDefinitionError(f"{name}: every name must be a string")
    return keys
