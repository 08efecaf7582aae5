"""What a turn's calls make the agent wait, with the guesses that served them and without.

Calls run beside each other up to the first write, which waits for all of them and for the message's end. Only calls
before it can be served by guesses (the dispatcher sees to that), so what guesses save is

    max(d_i + T_i) - max(d_i + T_i - min(T_i, lead_i)),   each at least the last demand,

over the calls before it: d_i a call's demand, T_i its tool's time, lead_i that of the guess which served it, else 0.
With one call that is min(T, lead). A `sequential` read counts as an ordinary one, which can only make the saving
smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agent_runtime.tools.values import CallDemanded, CallFinished, CallStarted, GuessEnded

from .events import Event


@dataclass(slots=True)
class _Call:
    demanded: float
    pre_executable: bool
    started: float = 0.0
    finished: float | None = None
    seconds: float = 0.0
    lead: float = 0.0
    served: bool = False
    waits_for_message: bool = False
    """Whether it is a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """What a turn's calls come to, in seconds after the last demand."""

    without: float = 0.0
    """The wait for all results, had no guess served."""
    saved: float = 0.0
    """By how much guesses made it shorter."""
    ceiling: float = 0.0
    """By how much they could have: those of every call that may start early, all begun at the turn's start."""
    writing: float = 0.0
    """From the first demand to the last."""
    whole: bool = False
    """Whether each call before the first write was served."""


@dataclass(slots=True)
class Waiting:
    """Folds the events of one turn; `result` tells what they come to so far."""

    _calls: dict[int, _Call] = field(default_factory=dict)
    _leads: dict[int, float] = field(default_factory=dict)
    """Of guesses that served, by their number."""

    def add(self, event: Event) -> None:
        """Take the turn's next event."""
        match event:
            case CallDemanded():
                self._calls[event.index] = _Call(event.at, event.pre_executable)
            case CallStarted() if event.index in self._calls:
                self._calls[event.index].waits_for_message = event.effect != "read"
            case GuessEnded(ending="adopted" | "joined"):
                self._leads[event.guess] = event.lead_ms / 1000
            case CallFinished() if event.index in self._calls:
                call = self._calls[event.index]
                call.started, call.finished, call.seconds = event.outcome.started_at, event.at, event.outcome.seconds
                call.served = event.guess is not None
                call.lead = self._leads.get(event.guess, 0.0) if event.guess is not None else 0.0
            case _:
                pass

    def result(self, *, began: float = 0.0) -> Waited:
        """Return what the calls come to; `began` is when the agent began to decode, and counts for the ceiling only."""
        calls = list(self._calls.values())
        if not calls:
            return Waited()
        last = calls[-1].demanded
        beside = list(_until_write(calls))
        without = _wait(call.demanded - last + call.seconds for call in beside)
        guessed = _wait(call.demanded - last + call.seconds - min(call.seconds, call.lead) for call in beside)
        best = _wait(_earliest(call, began, last) for call in beside)
        behind = [call for call in calls[len(beside) :] if call.finished is not None]
        rest = max(call.finished or 0.0 for call in behind) - min(call.started for call in behind) if behind else 0.0
        return Waited(
            without=without + rest,
            saved=without - guessed,
            ceiling=without - best,
            writing=last - calls[0].demanded,
            whole=bool(beside) and all(call.served for call in beside),
        )


def _until_write(calls: Iterable[_Call]) -> Iterable[_Call]:
    for call in calls:
        if call.waits_for_message:
            return
        yield call


def _wait(ends: Iterable[float]) -> float:
    return max([0.0, *ends])


def _earliest(call: _Call, began: float, last: float) -> float:
    """Return when a call ends at the earliest if its guess starts with the turn, after the last demand."""
    written = call.demanded - began
    hidden = min(call.seconds, max(0.0, written)) if call.pre_executable else 0.0
    return call.demanded - last + call.seconds - hidden
