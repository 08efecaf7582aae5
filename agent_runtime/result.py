"""What a run leaves behind, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_runtime.traces.drafting import decoding_summary
from agent_runtime.traces.events import Event, GenerationFinished, Prefilled, RunStatus
from agent_runtime.traces.ledger import Ledger
from agent_runtime.traces.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens and forward passes of a run, over all its turns.

    `prompt_tokens = reused_tokens + prefilled_tokens`; `forwards` counts decode steps, prefill left out.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefilled_tokens: int = 0
    completion_tokens: int = 0
    thinking_tokens: int = 0
    forwards: int = 0

    def plus(self, event: Event) -> Usage:
        """Return the usage with what `event` reports added."""
        match event:
            case Prefilled():
                return _add(
                    self,
                    prompt_tokens=event.prompt_tokens,
                    reused_tokens=event.reused_tokens,
                    prefilled_tokens=event.prefilled_tokens,
                )
            case GenerationFinished():
                return _add(
                    self,
                    reused_tokens=event.reused_later,
                    prefilled_tokens=-event.reused_later,
                    completion_tokens=event.completion_tokens,
                    thinking_tokens=event.thinking_tokens,
                    forwards=event.forwards,
                )
            case _:
                return self

    def to_json(self) -> dict[str, int]:
        """Return the counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}


def _add(usage: Usage, **counts: int) -> Usage:
    return Usage(**{name: getattr(usage, name) + counts.get(name, 0) for name in Usage.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The end of a run: what was said, what it took, and the ledger of its guesses.

    `messages` is the whole conversation. `error` is set where `status` is not `done`.
    """

    run_id: str
    status: RunStatus
    output: str
    turns: int
    usage: Usage
    ledger: Ledger
    messages: tuple[Message, ...]
    events: tuple[Event, ...]
    wall_ms: float
    error: BaseException | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the keys that `agent run --json` promises."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "output": self.output,
            "error": str(self.error) if self.error else None,
            "turns": self.turns,
            "usage": self.usage.to_json(),
            "speculation": self.ledger.summary(),
            "decoding": decoding_summary(self.events),
            "wall_ms": self.wall_ms,
        }
