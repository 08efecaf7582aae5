"""`both`: of the guesses of several predictors, the one that is most probably right."""

from __future__ import annotations

from collections.abc import Iterable

from agent_runtime.speculator.estimates import Calibration

from .forced import Answer, AnsweredTurn, Answers
from .toolset import RecordedToolset

BOTH = "both"


class Combination:
    """Chooses between predictors by how often guesses of their confidence were right in the turns before.

    A guessed call goes before "no call", which starts nothing. Where nothing is known yet, a predictor's own confidence
    counts.
    """

    def __init__(self) -> None:
        self._known: dict[str, Calibration] = {}

    def add(self, turns: Iterable[AnsweredTurn]) -> None:
        """Answer for `both` in these turns, and learn from each afterwards."""
        for answered in turns:
            sources = [source for source in answered.answers if source != BOTH]
            chosen = {source: answered.answers[source] for source in sources}
            answered.answers[BOTH] = self._choose(chosen)
            self._learn(answered, chosen)

    def _choose(self, answers: dict[str, Answers]) -> Answers:
        positions = sorted({answer.position for own in answers.values() for answer in own})
        return tuple(self._choose_at(position, answers) for position in positions)

    def _choose_at(self, position: float, answers: dict[str, Answers]) -> Answer:
        """Return the best of the latest answers; it took as long as those of them that were made for this position."""
        latest = {source: _latest(own, position) for source, own in answers.items()}
        seconds = sum(answer.seconds for answer in latest.values() if answer.position == position)
        best = max(latest, key=lambda source: self._probability(source, latest[source]))
        return Answer(guess=latest[best].guess, position=position, seconds=seconds)

    def _probability(self, source: str, answer: Answer) -> float:
        guess = answer.guess
        if guess.call is None:
            return -1.0
        known = self._known.get(source)
        return known.probability(guess.confidence) if known is not None else guess.confidence

    def _learn(self, answered: AnsweredTurn, answers: dict[str, Answers]) -> None:
        for source, own in answers.items():
            guess = own[0].guess
            if guess.call is not None:
                right = is_right(answered, own[0], answered.turn.toolset)
                self._known.setdefault(source, Calibration()).add(guess.confidence, right)


def is_right(answered: AnsweredTurn, answer: Answer, toolset: RecordedToolset) -> bool:
    """Tell whether the answer is the turn's first call: same tool, same canonical arguments."""
    boundary, call = answered.turn.boundary, answer.guess.call
    return boundary is not None and call is not None and toolset.canonical(call) == toolset.canonical(boundary)


def _latest(answers: Answers, position: float) -> Answer:
    return [answer for answer in answers if answer.position <= position][-1]
