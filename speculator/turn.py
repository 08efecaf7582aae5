"""Guessing during one turn: probe, ask the policy, hand over to the dispatcher; again while the agent thinks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from agent_runtime.tools.values import MalformedCall, Prediction, RefusalReason, ToolCall
from agent_runtime.traces.events import Event, ProbeFinished, ProbePlacement, ProbeStarted
from agent_runtime.traces.messages import Message

from .policy import Policy
from .predictors import Guess, Predictor, QuickPredictor

_log = logging.getLogger(__name__)

MOST_CALLS = 8
"""Calls of one turn that are guessed."""


class TurnGuesses(Protocol):
    """The dispatcher's side of a turn, as far as guesses go."""

    def propose(self, prediction: Prediction) -> int:
        """Start the prediction if that is allowed."""
        ...

    def refuse(self, prediction: Prediction, reason: RefusalReason) -> int:
        """Record a prediction that isn't worth starting."""
        ...

    def late(self, prediction: Prediction) -> int:
        """Record a prediction that was finished after the demand."""
        ...

    def is_started(self, prediction: Prediction) -> bool:
        """Tell whether a guess of exactly that call stands and its tool was started."""
        ...

    def withdraw(self, index: int) -> None:
        """Give up the guesses of call number `index` and of those behind it."""
        ...


class Progress:
    """How far the agent's message is: written by the one who reads the stream, awaited by the speculator."""

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens of the message so far."""
        self.thinking = True
        """Whether nothing but thinking has come so far."""
        self.calls: list[ToolCall | MalformedCall] = []
        """The message's calls that are complete."""
        self._changed = anyio.Event()

    def advance(self, tokens: int, *, thinking: bool) -> None:
        """Note that the message has `tokens` tokens, the last of them thinking or not."""
        self.tokens = tokens
        self.thinking = self.thinking and thinking
        self._wake()

    def demand(self, call: ToolCall | MalformedCall) -> None:
        """Note that a call is complete."""
        self.calls.append(call)
        self._wake()

    @property
    def demanded(self) -> bool:
        """Whether a call of the message is complete."""
        return bool(self.calls)

    async def called(self, count: int) -> None:
        """Wait until `count` calls are complete."""
        while len(self.calls) < count:
            await self._changed.wait()

    async def thought(self, tokens: int) -> bool:
        """Wait until `tokens` tokens are out; tell whether the agent still thinks, False as soon as it doesn't."""
        while self.thinking and not self.demanded and self.tokens < tokens:
            await self._changed.wait()
        return self.thinking and not self.demanded

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


@dataclass(kw_only=True)
class Guessing:
    """What guessing in one turn needs, and the guess that stands."""

    turn: int
    messages: Sequence[Message]
    predictor: Predictor
    policy: Policy
    calls: TurnGuesses
    suggest: Callable[[Sequence[Message], ToolCall], None]
    """Tells the model's engine what call is expected, so that its tokens can be drafted."""
    progress: Progress
    emit: Callable[[Event], None]
    now: Callable[[], float]
    quick: QuickPredictor | None = None
    """Guesses at the turn's start before anybody else is asked, and the turn's later calls."""
    standing: Guess | None = None
    chain: list[ToolCall] = field(default_factory=list)
    """The calls that are expected, from the first on: those that were made or whose guesses were started."""
    chances: list[float] = field(default_factory=list)
    """How likely each of them is once those before it have come."""
    chain_ends: bool = False
    """Whether nothing is expected to follow the chain, as far as `quick` knows."""
    probes: int = 0
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()


def guess_at_once(guessing: Guessing) -> bool:
    """Ask who needs no model, if there is such a one; tell whether it guessed a call, so that no model need be asked.

    Never raises an error of the predictor.
    """
    guess = _ask_quick(guessing, ())
    if guess is None or guess.call is None:
        return False
    assert guessing.quick is not None
    guessing.standing = guess
    _hand_over(guessing, guess.call, guess.confidence, guessing.quick.source)
    return True


async def guess_later_calls(guessing: Guessing) -> None:
    """Guess what follows each call of the message, as soon as that is complete, if nobody has guessed it yet."""
    seen = 0
    while True:
        await guessing.progress.called(seen + 1)
        made = guessing.progress.calls
        seen = len(made)
        calls = [call for call in made if isinstance(call, ToolCall)]
        if len(calls) < len(made):
            return  # what follows a malformed call was never seen
        if guessing.chain[: len(calls)] != calls:
            _begin_chain(guessing, calls, 1.0)
            continue
        if len(guessing.chain) > len(calls):
            guessing.suggest(guessing.messages, guessing.chain[len(calls)])
        _guess_on(guessing, math.prod(guessing.chances[len(calls) :]))


def _begin_chain(guessing: Guessing, calls: list[ToolCall], confidence: float) -> None:
    """Expect other calls than before, and give up the guesses that followed from those."""
    guessing.chain, guessing.chances, guessing.chain_ends = calls, [confidence] + [1.0] * (len(calls) - 1), False
    guessing.calls.withdraw(_guess_on(guessing, confidence))


def _guess_on(guessing: Guessing, confidence: float) -> int:
    """Guess what follows the chain, whose own confidence is given, as long as starting that is worth it.

    Return the index of the first call of which nothing is guessed.
    """
    while guessing.quick is not None and not guessing.chain_ends and len(guessing.chain) < MOST_CALLS:
        guess = _ask_quick(guessing, guessing.chain)
        if guess is None or guess.call is None:
            guessing.chain_ends = True
            break
        confidence *= guess.confidence
        index = len(guessing.chain)
        if index == len(guessing.progress.calls):
            guessing.suggest(guessing.messages, guess.call)
        if not _start(guessing, Prediction(guess.call, confidence, guessing.quick.source, index)):
            return index + 1
        guessing.chain.append(guess.call)
        guessing.chances.append(guess.confidence)
    return len(guessing.chain)


def _ask_quick(guessing: Guessing, after: Sequence[ToolCall]) -> Guess | None:
    if guessing.quick is None:
        return None
    try:
        return guessing.quick.guess(guessing.messages, after)
    except Exception as error:
        _log.warning("predictor %r failed: %s", guessing.quick.source, error, exc_info=True)
        return None


async def speculate(guessing: Guessing, placement: ProbePlacement) -> None:
    """Guess at the turn's start; beside the agent, guess again as its thinking grows.

    `before` returns after the first guess, so that the agent may start; run `speculate_again` beside it then.
    Cancelling ends the probe that runs. Never raises an error of the predictor.
    """
    healthy = await _guess(guessing, placement, position=0)
    if healthy and placement == "beside":
        await speculate_again(guessing)


async def speculate_again(guessing: Guessing) -> None:
    """Guess at each further position that the agent reaches while it thinks, if the policy finds it worth it."""
    for position in guessing.policy.positions:
        if not await guessing.progress.thought(position):
            return
        elapsed_ms = (guessing.now() - guessing.started) * 1000
        if guessing.policy.worth_another(guessing.standing, elapsed_ms=elapsed_ms):
            if not await _guess(guessing, "beside", position=position):
                return


async def _guess(guessing: Guessing, placement: ProbePlacement, *, position: int) -> bool:
    """Probe once and hand a predicted call over; tell whether the predictor is fit to be asked again."""
    guess = await _probe(guessing, placement, position)
    if guess is None:
        return False
    if guess.completed:
        guessing.standing = guess
    if guess.call is None:
        return True
    _hand_over(guessing, guess.call, guess.confidence, guessing.predictor.source)
    return True


def _hand_over(guessing: Guessing, call: ToolCall, confidence: float, source: str) -> None:
    """Give a guessed first call to the engine, to draft it, and to the dispatcher, to start it; guess what follows."""
    prediction = Prediction(call, confidence, source)
    if guessing.progress.demanded:
        guessing.calls.late(prediction)
        return
    guessing.suggest(guessing.messages, call)  # also what may not start early makes the call cheap to decode
    if _start(guessing, prediction) and guessing.chain[:1] != [call]:
        _begin_chain(guessing, [call], confidence)


def _start(guessing: Guessing, prediction: Prediction) -> bool:
    """Give a guess to the dispatcher unless the policy doesn't want it started; tell whether it is started now."""
    reason = guessing.policy.refusal(prediction)
    if reason is not None:
        guessing.calls.refuse(prediction, reason)
    else:
        guessing.calls.propose(prediction)
    return guessing.calls.is_started(prediction)


async def _probe(guessing: Guessing, placement: ProbePlacement, position: int) -> Guess | None:
    """Ask the predictor, with an event at the start and at the end; None if it broke."""
    probe, guessing.probes = guessing.probes, guessing.probes + 1
    source, turn, began = guessing.predictor.source, guessing.turn, guessing.now()
    guessing.emit(ProbeStarted(turn=turn, at=began, probe=probe, position=position, placement=placement))
    guess: Guess | None = None
    try:
        guess = await guessing.predictor.predict(guessing.messages, position=position)
    except Exception as error:
        _log.warning("predictor %r failed, guessing stops for this turn: %s", source, error)
        _log.debug("predictor %r failed here", source, exc_info=True)
    finally:
        told = guess or Guess(call=None, confidence=0.0, completed=False)
        guessing.emit(
            ProbeFinished(
                turn=turn,
                at=guessing.now(),
                probe=probe,
                completed=told.completed,
                call=told.call,
                confidence=told.confidence,
                source=source,
                probe_ms=(guessing.now() - began) * 1000,
                tokens=told.tokens,
                bytes_copied=told.bytes_copied,
                co_decoded=told.co_decoded,
            )
        )
    return guess
