"""What model, tools and speculation are doing, as spans of time: state alone, fed by events, drawn elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from agent_runtime.tools.values import (
    CallDemanded,
    CallFinished,
    CallStarted,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    Outcome,
    ToolCall,
)
from agent_runtime.traces.events import (
    Event,
    GenerationFinished,
    Prefilled,
    ProbeFinished,
    ProbeStarted,
    RunFinished,
    RunStarted,
    TextDelta,
    ThinkingDelta,
    TurnStarted,
)

from .text import NO_SECRETS, call_text, duration, one_line, percent, secret_arguments, tail

TEXT_LIMIT = 240
"""Characters kept of a lane's text; a terminal shows fewer."""


class Activity(Enum):
    """What fills a span."""

    PREFILL = "prefill"
    THINKING = "thinking"
    WRITING = "writing"
    TOOL = "tool"
    EARLY = "early"
    """A tool that runs before it was asked for."""
    USED = "used"
    """A tool that ran early, and whose result served."""
    WASTED = "wasted"
    """A tool that ran early for nothing."""
    FAILED = "failed"
    PROBE = "probe"
    STANDING = "standing"
    """A guess that waits for the model's own call."""
    HIT = "hit"
    MISS = "miss"


@dataclass(frozen=True, slots=True)
class Span:
    """An activity from `start` to `end`, in seconds of the run; `end` None while it lasts."""

    start: float
    end: float | None
    activity: Activity


@dataclass(slots=True)
class Lane:
    """One row: its spans by key, in the order they began, and what it is busy with."""

    text: str = ""
    spans: dict[object, Span] = field(default_factory=dict)

    def open(self, key: object, at: float, activity: Activity) -> None:
        """Begin a span."""
        self.spans[key] = Span(at, None, activity)

    def close(self, key: object, at: float, activity: Activity | None = None) -> None:
        """End a span, and say what it turned out to be."""
        span = self.spans.get(key)
        if span is not None:
            end = at if span.end is None else span.end
            self.spans[key] = replace(span, end=end, activity=activity or span.activity)


class Lanes:
    """Three lanes of a run. `feed` takes every event of the run, in order."""

    def __init__(self) -> None:
        self.agent = ""
        self.model_name = ""
        self.turn = 0
        self.at = 0.0
        """Time of the latest event."""
        self.over = False
        self.model = Lane()
        self.tools = Lane()
        self.speculation = Lane()
        self._thinking = ""
        self._writing = ""
        self._thought_at = 0.0
        self._guesses: dict[int, ToolCall] = {}
        self._probes: list[object] = []
        self._secrets = NO_SECRETS

    def feed(self, event: Event) -> None:
        """Take one event."""
        self.at = max(self.at, event.at)
        match event:
            case RunStarted():
                self.agent, self.model_name = one_line(event.agent), one_line(event.model)
                self._secrets = secret_arguments(event)
            case TurnStarted() | Prefilled() | ThinkingDelta() | TextDelta() | CallDemanded() | GenerationFinished():
                self._model(event)
            case CallStarted() | CallFinished():
                self._tool(event)
            case ProbeStarted() | ProbeFinished() | GuessProposed() | GuessStarted() | GuessEnded():
                self._guess(event)
            case RunFinished():
                self._finish(event)
            case _:
                pass

    def _model(
        self, event: TurnStarted | Prefilled | ThinkingDelta | TextDelta | CallDemanded | GenerationFinished
    ) -> None:
        lane, turn, at = self.model, event.turn, event.at
        match event:
            case TurnStarted():
                self.turn, self._thinking, self._writing = turn, "", ""
                lane.open((turn, "prefill"), at, Activity.PREFILL)
                lane.text = "reading"
            case Prefilled():
                lane.close((turn, "prefill"), at)
                lane.open((turn, "writing"), at, Activity.WRITING)
                lane.text = f"read {event.prompt_tokens} tokens, {event.reused_tokens} of them from the cache"
            case ThinkingDelta():
                self._thinking = (self._thinking + event.text)[-4 * TEXT_LIMIT :]
                lane.text = tail(self._thinking, TEXT_LIMIT)
                if (turn, "thinking") not in lane.spans:
                    lane.spans.pop((turn, "writing"), None)
                    lane.open((turn, "thinking"), at, Activity.THINKING)
                self._thought_at = at
            case TextDelta():
                self._end_thinking(turn)
                self._writing = (self._writing + event.text)[-4 * TEXT_LIMIT :]
                if self._writing.strip():
                    lane.text = tail(self._writing, TEXT_LIMIT)
            case CallDemanded():
                self._end_thinking(turn)
                lane.text = "calls " + call_text(event.call, TEXT_LIMIT, self._secrets)
            case GenerationFinished():
                self._end_thinking(turn)
                lane.close((turn, "writing"), at)
                if not event.calls and event.text.strip():
                    lane.text = one_line(event.text, TEXT_LIMIT)

    def _end_thinking(self, turn: int) -> None:
        """Let the thinking end with its last word: what came since is the model writing a call or an answer."""
        span = self.model.spans.get((turn, "thinking"))
        if span is not None and span.end is None:
            self.model.close((turn, "thinking"), self._thought_at)
            self.model.open((turn, "writing"), self._thought_at, Activity.WRITING)

    def _tool(self, event: CallStarted | CallFinished) -> None:
        lane, key = self.tools, ("call", event.turn, event.index)
        match event:
            case CallStarted():
                lane.open(key, event.at, Activity.TOOL)
                lane.text = f"{one_line(event.tool)} runs"
            case CallFinished():
                outcome = event.outcome
                good = outcome.status == "ok"
                if event.guess is not None and ("guess", event.guess) in lane.spans:
                    # The dispatcher ends a guess at demand; its tool may have ended before, or run on.
                    start = lane.spans["guess", event.guess].start
                    lane.spans["guess", event.guess] = Span(start, outcome.ended_at, Activity.USED)
                else:
                    lane.close(key, event.at, Activity.TOOL if good else Activity.FAILED)
                lane.text = f"{one_line(event.tool)} {_outcome_text(outcome)}"

    def _guess(self, event: ProbeStarted | ProbeFinished | GuessProposed | GuessStarted | GuessEnded) -> None:
        lane, at = self.speculation, event.at
        match event:
            case ProbeStarted():
                key = ("probe", event.turn, event.probe)
                lane.open(key, at, Activity.PROBE)
                self._probes.append(key)
                lane.text = "guessing"
            case ProbeFinished():
                lane.close(("probe", event.turn, event.probe), at)
                if event.call is not None:
                    lane.text = (
                        f"guesses {call_text(event.call, TEXT_LIMIT, self._secrets)} {percent(event.confidence)}"
                    )
                else:
                    lane.text = "guesses no call" if event.completed else "the call came before the guess"
            case GuessProposed():
                self._guesses[event.guess] = event.call
                lane.open(event.guess, at, Activity.STANDING)
                lane.text = f"guesses {call_text(event.call, TEXT_LIMIT, self._secrets)} {percent(event.confidence)}"
            case GuessStarted():
                self.tools.open(("guess", event.guess), at, Activity.EARLY)
                self.tools.text = f"{one_line(event.tool)} started early"
            case GuessEnded():
                lane.close(event.guess, at, Activity.HIT if event.matched else Activity.MISS)
                if ("guess", event.guess) in self.tools.spans and event.ending != "joined":
                    served = event.ending == "adopted"
                    self.tools.close(("guess", event.guess), at, Activity.USED if served else Activity.WASTED)
                call = self._guesses.get(event.guess)
                name = call_text(call, TEXT_LIMIT // 2, self._secrets) if call else one_line(event.tool)
                lane.text = f"{name} {ending_text(event)}"

    def _finish(self, event: RunFinished) -> None:
        self.over = True
        for lane in (self.model, self.tools, self.speculation):
            for key in lane.spans:
                lane.close(key, event.at)
        self.model.text = event.status if event.status == "done" else one_line(event.error or event.status, TEXT_LIMIT)


def _outcome_text(outcome: Outcome) -> str:
    took = duration(1000 * outcome.seconds)
    return f"answered in {took}" if outcome.status == "ok" else f"{outcome.error or outcome.status} after {took}"


def ending_text(event: GuessEnded) -> str:
    """Return how a guess ended, in a few words."""
    match event.ending:
        case "adopted" | "joined":
            return f"hit, saved {duration(event.saved_ms)}"
        case "discarded":
            return f"missed, {duration(event.wasted_ms)} wasted" if event.executed else "missed"
        case "refused":
            reason = (event.reason or "").replace("_", " ")
            return f"not started ({reason})" if reason else "not started"
        case other:
            return other
