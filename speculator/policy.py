"""Whether guessing is worth it: when to probe, when to probe again, and which predictions to start.

By expected value, in milliseconds of the run's time, from what earlier turns showed. With q the share of probed turns
whose call a guess served, T_gen the time to the agent's call, T_tool that of tools that may be pre-executed:

    beside   q * E[min(T_tool, max(0, T_gen - T_probe))] - slowdown
    before   q * E[min(T_tool, T_gen)] - T_probe          (the agent waits for the probe, so the lead is all of T_gen)
    none     0

E is over the recent turns, since the lead is uneven: a turn that thinks has much, one that calls at once has none.
A further probe in the same turn must pay its slowdown by the chance that the guess which stands is wrong. A prediction
is started when its tool's expected saving exceeds what starting a guess costs. What isn't known yet is taken to be
favourable, so that it gets known; the answers depend on nothing but the events seen so far.
"""

from __future__ import annotations

import math
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

from .estimates import Estimates
from .predictors import Guess
from .settings import Speculation

__all__ = ["Policy", "Speculation"]

TURNS_TO_LEARN = 4
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
        self._placements: set[ProbePlacement] = set()
        self._served = False
        self._early = True  # whether the turn's first call may be pre-executed

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
        if len(known.served) < TURNS_TO_LEARN:
            return "beside"
        beside, before = self.expected_ms("beside"), self.expected_ms("before")
        if max(beside, before) > 0:
            known.idle = 0
            return "beside" if beside >= before else "before"
        known.idle += 1
        return "beside" if known.idle % TURNS_TO_RETRY == 0 else None

    def expected_ms(self, placement: Literal["beside", "before"]) -> float:
        """Return what a probe there is expected to save in a turn; infinite while that is unknown."""
        known = self.estimates
        lead = known.generation.mean_lead(start=self._lead_starts_ms(placement), at_most=self._tool_ms())
        gain = known.served_rate * (math.inf if lead is None else lead)
        return gain - (self._slowdown_ms() if placement == "beside" else self._probe_ms("before"))

    def worth_another(self, standing: Guess | None, *, elapsed_ms: float) -> bool:
        """Tell whether another probe is worth it, `elapsed_ms` into a turn that still thinks, given what stands."""
        known = self.estimates
        if len(known.served) < TURNS_TO_LEARN:
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

    def _lead_starts_ms(self, placement: Literal["beside", "before"]) -> float:
        """Return how long after the start of the agent's decoding the guess can start."""
        return self._probe_ms("beside") if placement == "beside" else 0.0

    def _tool_ms(self) -> float:
        mean = self.estimates.tool.mean
        return math.inf if mean is None else mean

    def _slowdown_ms(self) -> float:
        return self.estimates.slowdown.mean or 0.0

    def _probe_ms(self, placement: Literal["beside", "before"]) -> float:
        """Return T_probe there. Alone, a probe is quicker by about what it costs the agent beside it."""
        known = self.estimates.probe
        if (mean := known[placement].mean) is not None:
            return mean
        if placement == "beside":
            return known["before"].mean or 0.0
        return max(0.0, (known["beside"].mean or 0.0) - self._slowdown_ms())

    # --- learning ---------------------------------------------------------------------------------------------

    def observe(self, event: Event) -> None:
        """Learn from an event of the run; give it every event, in order."""
        known = self.estimates
        match event:
            case TurnStarted():
                self._placements = set()
                self._served, self._early = False, True
            case ProbeStarted():
                self._probes[event.probe] = event.placement
                self._placements.add(event.placement)
            case ProbeFinished():
                placement = self._probes.pop(event.probe, None)
                if placement is not None and event.completed:
                    known.probe[placement].add(event.probe_ms)
            case GenerationFinished():
                if event.calls:
                    known.generation.add(event.generation_ms)
                if "beside" in self._placements:
                    known.slowdown.add(event.slowdown_ms)
            case GuessProposed():
                self._confidences[event.guess] = event.confidence
            case GuessEnded():
                confidence = self._confidences.pop(event.guess, None)
                self._served |= event.ending in ("adopted", "joined")
                if confidence is not None and event.ending not in ("cancelled", "late"):
                    known.calibration.add(confidence, event.matched)
            case CallDemanded(index=0):
                self._early = event.pre_executable
            case CallFinished():
                if event.outcome.status == "ok":
                    known.tools[event.tool].add(event.outcome.seconds * 1000)
                    if event.index == 0 and self._early:
                        known.tool.add(event.outcome.seconds * 1000)
            case TurnFinished():
                if self._placements:
                    known.served.append(self._served)
            case _:
                pass
