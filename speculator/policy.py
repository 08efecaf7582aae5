"""Whether guessing is worth it: when to probe, when to probe again, and which predictions to start.

A turn can be probed beside the agent, before it, or not at all. What each is worth is measured: the tool time saved,
less what the agent waited for the probe, less what its message took beyond the usual pace of messages without a probe.
That pace also shows, the other way round, when a right guess has drafted the call. The policy begins with some turns of
each, then takes what gained most in turns at the same place of a conversation (after the user's message, or after a
result of the same tool), and none where nothing gains; now and then it tries the others again, since tools and tasks
change.

A further probe in the same turn must pay its slowdown by the chance that the guess which stands is wrong. A prediction
is started when its tool's expected saving exceeds what starting a guess costs. What isn't known yet is taken to be
favourable, so that it gets known; the answers depend on nothing but the events seen so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
from agent_runtime.traces.waiting import Waiting

from .estimates import Arm, Estimates, ProbedTurn
from .predictors import Guess
from .settings import Speculation

__all__ = ["Policy", "Speculation"]

OPENING: tuple[Arm, ...] = ("beside", "before", "beside", "before", None, "before", "beside", None)
"""What the first turns do, before the measured gains are trusted."""
RETRY = 12
"""Every so many turns a turn does something else than what looks best."""
CONTRACT = frozenset({"effect", "destructive", "open_world", "requires_approval", "sequential"})
"""Reasons for which a tool's calls are never started early, whatever their arguments."""
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
        """Of first calls' guesses that haven't ended. Those of later calls end with what they followed from, so that
        they would teach the wrong thing."""
        self._probes: dict[int, ProbePlacement] = {}
        self._turn = _Turn()
        self._place = ""

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
        turn = max(0, known.started - 1)  # the one that has just begun
        if turn < len(OPENING):
            return OPENING[turn]
        ranked: list[Arm] = sorted(("beside", "before", None), key=self.expected_ms, reverse=True)
        if turn % RETRY == 0:
            # Every other time to keep the usual pace known, else where the probe doesn't run now.
            return None if turn // RETRY % 2 == 0 else next(arm for arm in ranked[1:] if arm is not None)
        return ranked[0]

    def expected_ms(self, arm: Arm) -> float:
        """Return what the coming turn should gain there; 0 without a probe, infinite while that is unknown."""
        if arm is None:
            return 0.0
        gain = self.estimates.gain_ms(arm, self._place)
        return math.inf if gain is None else gain

    def worth_another(self, standing: Guess | None, *, elapsed_ms: float) -> bool:
        """Tell whether another probe is worth it, `elapsed_ms` into a turn that still thinks, given what stands."""
        known = self.estimates
        if self._turn.blocked:
            return False  # what the turn is about to call may never start early
        if known.started <= len(OPENING) and (standing is None or standing.call is not None):
            return True
        right = 0.0
        if standing is not None:  # "no call" is never tested against a call, so its own word must do
            right = known.calibration.probability(standing.confidence) if standing.call else standing.confidence
        probe_ms = known.probe.median or 0.0
        lead = known.generation.mean_lead_after(elapsed_ms, start=elapsed_ms + probe_ms, at_most=self._tool_ms())
        if lead is None:  # no turn was ever this long
            return standing is None or standing.call is not None or right < 0.5
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

    # --- learning ---------------------------------------------------------------------------------------------

    def observe(self, event: Event) -> None:
        """Learn from an event of the run; give it every event, in order."""
        known, turn = self.estimates, self._turn
        match event:
            case TurnStarted():
                known.started += 1
                self._turn = _Turn(place=self._place)
            case ProbeStarted():
                self._probes[event.probe] = event.placement
                turn.arm = turn.arm or event.placement
                turn.beside += event.placement == "beside"
            case ProbeFinished():
                if self._probes.pop(event.probe, None) == "before":
                    turn.waited_ms += event.probe_ms
                elif event.completed:
                    known.probe.add(event.probe_ms)
                turn.asked = event.source
            case GenerationFinished():
                turn.compared = True
                turn.generation_ms, turn.tokens = event.generation_ms, event.completion_tokens
                turn.kind = (bool(event.calls), event.thinking_tokens > 0)
                turn.slowdown_ms = event.slowdown_ms
                if event.calls:
                    known.generation.add(event.generation_ms)
                if turn.beside:
                    known.slowdown.add(event.slowdown_ms / turn.beside)
            case GuessProposed():
                if event.index == 0:
                    self._confidences[event.guess] = event.confidence
                    turn.first = turn.first or event
                    turn.of_first.add(event.guess)
                    if event.source == turn.asked:
                        turn.of_probes.add(event.guess)
            case GuessEnded():
                if event.guess in turn.of_first:
                    turn.blocked = event.ending == "refused" and event.reason in CONTRACT
                    turn.probe_served |= event.guess in turn.of_probes and event.ending in ("adopted", "joined")
                confidence = self._confidences.pop(event.guess, None)
                if confidence is not None and turn.compared and event.ending not in ("cancelled", "late"):
                    known.calibration.add(confidence, event.matched)
                turn.waiting.add(event)
            case CallDemanded():
                turn.waiting.add(event)
                if event.index == 0:
                    turn.compared = True
                    turn.early = event.pre_executable
                    turn.first_right = self._is_right(turn.first, event)
            case CallFinished():
                turn.waiting.add(event)
                self._place = event.tool
                milliseconds = event.outcome.seconds * 1000
                if event.index == 0:
                    turn.tool_ms = milliseconds
                if event.outcome.status == "ok":
                    known.tools[event.tool].add(milliseconds)
                    if event.index == 0 and turn.early:
                        known.tool.add(milliseconds)
            case TurnFinished():
                if turn.arm is not None:
                    known.add(turn.as_probed())
                elif turn.tokens and turn.first is None:  # else a guess without a probe may have drafted the call
                    known.pace.add(turn.kind, turn.tokens, turn.generation_ms)
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

    arm: Arm = None
    place: str = ""
    beside: int = 0
    """Probes that ran beside the agent."""
    blocked: bool = False
    """Whether the latest guess was of a tool that may not start early."""
    first: GuessProposed | None = None
    of_first: set[int] = field(default_factory=set)
    """Guesses of the turn's first call."""
    first_right: bool = False
    asked: str = ""
    """Whom the turn's probes asked."""
    of_probes: set[int] = field(default_factory=set)
    """Of the first call's guesses, those that probes made."""
    probe_served: bool = False
    """Whether one of those served it."""
    compared: bool = False
    """Whether it is known what the agent does: proposals that end earlier (superseded, repeated) prove nothing."""
    early: bool = True
    """Whether the first call may be pre-executed."""
    waited_ms: float = 0.0
    generation_ms: float = 0.0
    kind: tuple[bool, bool] = (False, False)
    tokens: int = 0
    slowdown_ms: float = 0.0
    tool_ms: float = 0.0
    waiting: Waiting = field(default_factory=Waiting)

    def as_probed(self) -> ProbedTurn:
        # What others guessed, and what followed from that, would have been guessed without the probe as well.
        saved_ms = self.waiting.result().saved * 1000 if self.probe_served else 0.0
        return ProbedTurn(
            arm=self.arm,
            place=self.place,
            served=self.first_right or saved_ms > 0,
            saved_ms=saved_ms,
            waited_ms=self.waited_ms,
            generation_ms=self.generation_ms,
            kind=self.kind,
            tokens=self.tokens,
            slowdown_ms=self.slowdown_ms,
            tool_ms=self.tool_ms,
        )
