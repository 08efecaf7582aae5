"""What a turn's calls make the agent wait, with the guesses that served them and without.

Calls run beside each other up to the first barrier (a write, or a tool declared `sequential`), which waits for them
and is waited for. Only what comes before the first barrier, or a barrier that is the first call, can be served by
guesses: the dispatcher sees to that. So what guesses save is, over those calls,

    max(d_i + T_i) - max(d_i + T_i - min(T_i, lead_i)),   each at least the last demand,

d_i being a call's demand (or its tool's start where that was later, at most the last demand), T_i its tool's time,
lead_i that of the guess which served it, else 0. With one call that is min(T, lead). What a call waits for a person's
approval, or for a place beside others, counts nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from agent_runtime.tools.values import CallDemanded, CallFinished, CallStarted, GuessEnded

from .events import Event


@dataclass(slots=True)
class _Call:
    demanded: float
    pre_executable: bool
    barrier: bool
    began: float = 0.0
    """Its demand, or the start of its tool if that came later."""
    seconds: float = 0.0
    lead: float = 0.0
    served: bool = False


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
    """Whether each call before the first barrier was served."""


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
                self._calls[event.index] = _Call(event.at, event.pre_executable, event.barrier, event.at)
            case CallStarted() if event.index in self._calls:
                # Older traces know a barrier only when it runs.
                self._calls[event.index].barrier |= event.effect != "read"
            case GuessEnded(ending="adopted" | "joined"):
                self._leads[event.guess] = event.lead_ms / 1000
            case CallFinished() if event.index in self._calls:
                call, outcome = self._calls[event.index], event.outcome
                call.seconds = outcome.seconds
                call.served = event.guess is not None
                call.lead = self._leads.get(event.guess, 0.0) if event.guess is not None else 0.0
                call.began = call.demanded if call.served else max(call.demanded, outcome.started_at)
            case _:
                pass

    def result(self, *, began: float = 0.0) -> Waited:
        """Return what the calls come to; `began` is when the agent began to decode, and counts for the ceiling only."""
        calls = list(self._calls.values())
        if not calls:
            return Waited()
        last = calls[-1].demanded
        first, *behind = _segments(calls)
        without = _wait(_end(call, last) for call in first)
        guessed = _wait(_end(call, last) - min(call.seconds, _lead(call, last)) for call in first)
        best = _wait(_end(call, last) - min(call.seconds, _most_lead(call, began, last)) for call in first)
        return Waited(
            without=without + sum(max(call.seconds for call in segment) for segment in behind),
            saved=without - guessed,
            ceiling=without - best,
            writing=last - calls[0].demanded,
            whole=all(call.served for call in first),
        )


def _segments(calls: Iterable[_Call]) -> Iterator[Sequence[_Call]]:
    """Yield the calls in groups that run one after the other."""
    beside: list[_Call] = []
    for call in calls:
        if call.barrier:
            if beside:
                yield beside
            yield [call]
            beside = []
        else:
            beside.append(call)
    if beside:
        yield beside


def _wait(ends: Iterable[float]) -> float:
    return max([0.0, *ends])


def _end(call: _Call, last: float) -> float:
    """Return when a call ends by itself, after the last demand; what is held back until then begins then."""
    return min(0.0, _begin(call, last) - last) + call.seconds


def _begin(call: _Call, last: float) -> float:
    """Return when a call begins by itself; a write that a guess served would have waited for the message's end."""
    return last if call.served and call.barrier else call.began


def _lead(call: _Call, last: float) -> float:
    """Return by how much a call began earlier than by itself."""
    return call.lead + max(0.0, _begin(call, last) - call.demanded) if call.served else 0.0


def _most_lead(call: _Call, began: float, last: float) -> float:
    """Return by how much it could have begun earlier."""
    return max(0.0, (last if call.barrier else call.demanded) - began) if call.pre_executable else 0.0
