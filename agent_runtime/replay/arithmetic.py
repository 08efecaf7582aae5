"""What guesses at the turns' start would have saved, turn by turn, by the form of expected time.

Per turn: serial = T_gen + max(T_tool of its calls), as calls of one turn run side by side. With a hit on a call that
may start early, its tool time shrinks by min(T_tool, lead), where the lead runs from the guess's end to the demand. No
limits, no policy and no staleness: `--time virtual` runs the real loop with all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .combined import is_right
from .forced import AnsweredTurn
from .timing import Shares, Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Milliseconds of all turns without and with guesses, and the most that could have been hidden."""

    serial_ms: float
    speculative_ms: float
    ceiling_ms: float

    @property
    def speedup(self) -> float | None:
        """Serial over speculative time; None where nothing took any."""
        return self.serial_ms / self.speculative_ms if self.speculative_ms > 0 else None

    @property
    def hidden_share(self) -> float | None:
        """Share of the ceiling that was saved; None where nothing could be hidden."""
        return (self.serial_ms - self.speculative_ms) / self.ceiling_ms if self.ceiling_ms > 0 else None


def estimate(turns: Iterable[AnsweredTurn], source: str, timing: Timing) -> Estimate:
    """Return what the guesses of one predictor would have saved."""
    serial = speculative = ceiling = 0.0
    for answered in turns:
        turn = answered.turn
        recorded = turn.trajectory.turns[turn.number]
        generation = timing.generation_s(recorded)
        tools = [timing.tool_s(recorded, index) for index in range(len(turn.message.calls))]
        alone = generation + max(tools, default=0.0)
        serial += alone
        boundary = turn.boundary
        if boundary is None or not turn.toolset.is_pre_executable(boundary):
            speculative += alone
            continue
        demand = generation * Shares.of(turn.message).calls[0]
        ceiling += max(tools) - max([tools[0] - min(tools[0], demand), *tools[1:]])
        answer = answered.answers[source][0]
        hidden = 0.0
        if is_right(answered, answer, turn.toolset):
            hidden = min(tools[0], max(0.0, demand - answer.seconds))
        speculative += generation + max([tools[0] - hidden, *tools[1:]])
    return Estimate(serial_ms=serial * 1000, speculative_ms=speculative * 1000, ceiling_ms=ceiling * 1000)
