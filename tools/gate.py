"""The gate: whether a tool may be started before the agent asks for it, and why not."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from .tool import Tool
from .values import RefusalReason


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's answer for one tool. `reason` is None when the tool may be pre-executed."""

    reason: RefusalReason | None
    sentence: str
    """The reason in words, for people."""

    @property
    def allowed(self) -> bool:
        """Whether a guessed call of the tool may start."""
        return self.reason is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What one agent allows to be started early: reads, and what its author opted in.

    No setting opens the gate for writes, destructive tools, tools that need approval, or sequential tools.

    Args:
        allow_idempotent: Let idempotent writes be pre-executed: all, or those named. A wrong guess leaves its
            write behind.
        allow_open_world: Let reads whose arguments leave the machine be pre-executed: all, or those named.
    """

    allow_idempotent: bool | Collection[str] = False
    allow_open_world: bool | Collection[str] = False

    def decide(self, tool: Tool) -> Verdict:
        """Return whether `tool` may be pre-executed, with the reason in words."""
        contract = tool.contract
        effect_says = _EFFECT_SOURCE[contract.source]
        if contract.effect == "write":
            return Verdict("effect", f"it writes ({effect_says}); writes run only when the agent asks")
        if contract.destructive:
            return Verdict("destructive", "it may destroy something; no setting lets it start early")
        if contract.effect == "idempotent" and not _opted_in(self.allow_idempotent, tool.name):
            return Verdict("effect", "it is an idempotent write, and this agent doesn't opt in (allow_idempotent)")
        if contract.requires_approval is not False:
            return Verdict("requires_approval", "a person must approve its calls")
        if contract.sequential:
            return Verdict("sequential", "it must not run beside other calls")
        if tool.objection is not None:
            return Verdict("revoked", tool.objection)
        if contract.pre_execute is False:
            return Verdict("revoked", "its author or operator forbids starting it early (pre_execute = false)")
        if contract.fresh_for == 0:
            return Verdict("revoked", "its results are never fresh enough to hand over (fresh_for = 0)")
        if contract.open_world and not _opted_in(self.allow_open_world, tool.name):
            sentence = "its arguments leave the machine, and this agent doesn't opt in (allow_open_world)"
            return Verdict("open_world", sentence)
        if contract.effect == "idempotent":
            return Verdict(None, "an idempotent write that this agent opted in; a wrong guess leaves its write behind")
        return Verdict(None, f"it only reads ({effect_says})")


_EFFECT_SOURCE = {
    "declared": "declared by its author",
    "default": "no effect is declared",
    "catalogue": "says the operator's catalogue",
    "mcp": "says its trusted server",
    "mcp (untrusted)": "its server isn't trusted",
}


def _opted_in(allowed: bool | Collection[str], name: str) -> bool:
    return allowed if isinstance(allowed, bool) else name in allowed


def describe(tools: Iterable[Tool], gate: Gate) -> list[dict[str, Any]]:
    """Return one row of plain JSON per tool: its effective contract and why it may or may not be pre-executed.

    Keys: name, effect, pre_executable, reason, source, then the contract's other fields; `reads` and `writes` are
    sorted lists or None (all keys).
    """
    rows = []
    for tool in tools:
        contract = tool.contract
        verdict = gate.decide(tool)
        rows.append(
            {
                "name": tool.name,
                "effect": contract.effect,
                "pre_executable": verdict.allowed,
                "reason": verdict.sentence,
                "source": contract.source,
                "reason_code": verdict.reason,
                "reads": None if contract.reads is None else sorted(contract.reads),
                "writes": [] if contract.is_read else None if contract.writes is None else sorted(contract.writes),
                "open_world": contract.open_world,
                "destructive": contract.destructive,
                "fresh_for": contract.fresh_for,
                "timeout": contract.timeout,
                "max_concurrency": contract.max_concurrency,
                "rate": contract.rate,
                "cost": contract.cost,
                "requires_approval": contract.requires_approval is not False,
                "sequential": contract.sequential,
                "secret": sorted(tool.secret_arguments),
                "schema_hash": tool.schema_hash,
            }
        )
    return rows
