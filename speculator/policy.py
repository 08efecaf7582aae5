"""Whether guessing is worth it: when to probe, when to probe again, and which predictions to start.

By expected value, in milliseconds of the run's time, from what the recent turns with a probe showed, each judged by
itself: a turn that thinks leaves much lead but is guessed less often, one that calls at once the other way round, so a
product of means would be wrong.

    beside   mean(what guessing saved beside the agent) - slowdown
    before   mean(min(T_tool, T_gen) where the first guess was right) - T_probe    (the agent waits for the probe)
    none     0

A turn that was probed in the one place tells what the other would have saved: the first guess is the same in both, and
beside the agent it leads by T_gen - T_probe. Costs are medians: one stall of the machine says nothing of the next turn.

A further probe in the same turn must pay its slowdown by the chance that the guess which stands is wrong. A prediction
is started when its tool's expected saving exceeds what starting a guess costs. What isn't known yet is taken to be
favourable, so that it gets known; the answers depend on nothing but the events seen so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    GuessEnded,
    GuessProposed,
    Prediction,
    RefusalReason,
)
from agent_runtime.traces.events import (
    Event,
    GenerationFinished,
    ProbeFinished,
    ProbePlacement,
    ProbeStarted,
    TurnFinished,
    TurnStarted,
)

from .estimates import Estimates, ProbedTurn
from .predictors import Guess
from .settings import Speculation

__all__ = ["Policy", "Speculation"]

TURNS_TO_LEARN = 8
"""Probed turns before the expected values are trusted."""
TURNS_TO_RETRY = 16
"""Turns without a probe after which one is probed again, since tools and tasks change."""
START_COST_MS = 0.5
"""What starting a guess costs the event loop."""


class Policy:
    """Decides for one run, and learns from it; `for_run` gives another run the same knowledge.

    Args:
        speculation: The agent's settings; None never guesses.
        estimates: What is known already.
    """

    def __init__(self, speculation: Speculation | None, *, estimates: Estimates | None = None) -> None:
        self._settings = speculation
        self.estimates = estimates or Estimates()
        self._confidences: dict[int, float] = {}
        self._probes: dict[int, ProbePlacement] = {}
        self._turn = _Turn()

    def for_run(self) -> Policy:
        """Return a policy with the same settings and knowledge, for a run that goes on at the same time."""
        return Policy(self._settings, estimates=self.estimates)

    @property
    def positions(self) -> tuple[int, ...]:
        """Tokens of thinking after which a turn may be probed again."""
        return self._settings.reprobe if self._settings is not None else ()

    # --- decisions --------------------------------------------------------------------------------------------

    def placement(self) -> ProbePlacement | None:
        """Return where the next turn's probe runs; None for no probe."""
        settings, known = self._settings, self.estimates
        if settings is None:
            return None
        if settings.placement != "auto":
            return settings.placement
        if len(known.turns) < TURNS_TO_LEARN:
            return "beside"
        beside, before = self.expected_ms("beside"), self.expected_ms("before")
        if max(beside, before) > 0:
            known.idle = 0
            return "beside" if beside >= before else "before"
        known.idle += 1
        return "beside" if known.idle % TURNS_TO_RETRY == 0 else None

    def expected_ms(self, placement: Literal["beside", "before"]) -> float:
        """Return what a probe there is expected to save in a turn; infinite while that is unknown."""
        turns = self.estimates.turns
        if not turns:
            return math.inf
        if placement == "before":
            return sum(turn.saved_before_ms() for turn in turns) / len(turns) - self._probe_ms("before")
        probe_ms = self._probe_ms("beside")
        return sum(turn.saved_beside_ms(probe_ms) for turn in turns) / len(turns) - self._slowdown_ms()

    def worth_another(self, standing: Guess | None, *, elapsed_ms: float) -> bool:
        """Tell whether another probe is worth it, `elapsed_ms` into a turn that still thinks, given what stands."""
        known = self.estimates
        if len(known.turns) < TURNS_TO_LEARN:
            return True
        lead = known.generation.mean_lead_after(
            elapsed_ms, start=elapsed_ms + self._probe_ms("beside"), at_most=self._tool_ms()
        )
        if lead is None:
            return True  # no turn was ever this long
        right = known.calibration.probability(standing.confidence) if standing is not None and standing.call else 0.0
        return (1 - right) * known.served_rate * lead > self._slowdown_ms()

    def refusal(self, prediction: Prediction) -> RefusalReason | None:
        """Return why `prediction` is not worth starting; None if it is."""
        if self._settings is None or prediction.confidence < self._settings.min_confidence:
            return "low_confidence"
        known = self.estimates
        tool = known.tools[prediction.call.name].mean if prediction.call.name in known.tools else None
        if tool is None:
            return None
        expected = known.calibration.probability(prediction.confidence) * tool
        return "not_worth_it" if expected <= START_COST_MS else None

    def _tool_ms(self) -> float:
        mean = self.estimates.tool.mean
        return math.inf if mean is None else mean

    def _slowdown_ms(self) -> float:
        return self.estimates.slowdown.median or 0.0

    def _probe_ms(self, placement: Literal["beside", "before"]) -> float:
        """Return T_probe there. Alone, a probe is quicker by about what it costs the agent beside it."""
        known = self.estimates.probe
        if (median := known[placement].median) is not None:
            return median
        if placement == "beside":
            return known["before"].median or 0.0
        return max(0.0, (known["beside"].median or 0.0) - self._slowdown_ms())

    # --- learning ---------------------------------------------------------------------------------------------

    def observe(self, event: Event) -> None:
        """Learn from an event of the run; give it every event, in order."""
        known, turn = self.estimates, self._turn
        match event:
            case TurnStarted():
                self._turn = _Turn()
            case ProbeStarted():
                self._probes[event.probe] = event.placement
                turn.placement = turn.placement or event.placement
            case ProbeFinished():
                placement = self._probes.pop(event.probe, None)
                if placement is not None and event.completed:
                    known.probe[placement].add(event.probe_ms)
            case GenerationFinished():
                turn.compared = True
                turn.generation_ms = event.generation_ms
                if event.calls:
                    known.generation.add(event.generation_ms)
                if turn.placement == "beside":
                    known.slowdown.add(event.slowdown_ms)
            case GuessProposed():
                self._confidences[event.guess] = event.confidence
                turn.first = turn.first or event
            case GuessEnded():
                confidence = self._confidences.pop(event.guess, None)
                turn.saved_ms += event.saved_ms
                if confidence is not None and turn.compared and event.ending not in ("cancelled", "late"):
                    known.calibration.add(confidence, event.matched)
            case CallDemanded(index=0):
                turn.compared = True
                turn.early = event.pre_executable
                turn.first_right = self._is_right(turn.first, event)
            case CallFinished():
                milliseconds = event.outcome.seconds * 1000
                if event.index == 0:
                    turn.tool_ms = milliseconds
                if event.outcome.status == "ok":
                    known.tools[event.tool].add(milliseconds)
                    if event.index == 0 and turn.early:
                        known.tool.add(milliseconds)
            case TurnFinished():
                if turn.placement is not None:
                    known.turns.append(turn.as_probed())
            case _:
                pass

    def _is_right(self, guess: GuessProposed | None, demand: CallDemanded) -> bool:
        """Tell whether the turn's first guess could have served the call, had it been in time."""
        if guess is None or self._settings is None or not demand.pre_executable:
            return False
        sure = guess.confidence >= self._settings.min_confidence
        return sure and guess.call.canonical() == demand.call.canonical()


@dataclass(slots=True)
class _Turn:
    """What was seen of the turn that goes on."""

    placement: ProbePlacement | None = None
    first: GuessProposed | None = None
    first_right: bool = False
    compared: bool = False
    """Whether it is known what the agent does: proposals that end earlier (superseded, repeated) prove nothing."""
    early: bool = True
    """Whether the first call may be pre-executed."""
    generation_ms: float = 0.0
    tool_ms: float = 0.0
    saved_ms: float = 0.0

    def as_probed(self) -> ProbedTurn:
        return ProbedTurn(
            beside=self.placement == "beside",
            first_right=self.first_right,
            generation_ms=self.generation_ms,
            tool_ms=self.tool_ms,
            saved_ms=self.saved_ms,
        )
