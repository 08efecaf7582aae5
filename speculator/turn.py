"""Guessing during one turn: probe, ask the policy, hand over to the dispatcher; again while the agent thinks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from agent_runtime.tools.values import Prediction, RefusalReason, ToolCall
from agent_runtime.traces.events import Event, ProbeFinished, ProbePlacement, ProbeStarted
from agent_runtime.traces.messages import Message

from .policy import Policy
from .predictors import Guess, Predictor, QuickPredictor

_log = logging.getLogger(__name__)


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


class Progress:
    """How far the agent's message is: written by the one who reads the stream, awaited by the speculator."""

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens of the message so far."""
        self.thinking = True
        """Whether nothing but thinking has come so far."""
        self.demanded = False
        """Whether a call of the message is complete."""
        self._changed = anyio.Event()

    def advance(self, tokens: int, *, thinking: bool) -> None:
        """Note that the message has `tokens` tokens, the last of them thinking or not."""
        self.tokens = tokens
        self.thinking = self.thinking and thinking
        self._wake()

    def demand(self) -> None:
        """Note that a call is complete."""
        self.demanded = True
        self._wake()

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
    """Guesses at the turn's start before anybody else is asked."""
    standing: Guess | None = None
    probes: int = 0
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()


def guess_at_once(guessing: Guessing) -> bool:
    """Ask who needs no model, if there is such a one; tell whether it guessed a call, so that no model need be asked.

    Never raises an error of the predictor.
    """
    if guessing.quick is None:
        return False
    try:
        guess = guessing.quick.guess(guessing.messages)
    except Exception as error:
        _log.warning("predictor %r failed: %s", guessing.quick.source, error, exc_info=True)
        return False
    if guess.call is None:
        return False
    guessing.standing = guess
    _hand_over(guessing, guess.call, guess.confidence, guessing.quick.source)
    return True


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
    """Give a guessed call to the engine, to draft it, and to the dispatcher, to start it."""
    if not guessing.progress.demanded:
        guessing.suggest(guessing.messages, call)  # also what may not start early makes the call cheap to decode
    prediction = Prediction(call, confidence, source)
    if guessing.progress.demanded:
        guessing.calls.late(prediction)
    elif (reason := guessing.policy.refusal(prediction)) is not None:
        guessing.calls.refuse(prediction, reason)
    else:
        guessing.calls.propose(prediction)


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
