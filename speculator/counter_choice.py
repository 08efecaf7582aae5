"""Choosing one of several candidates by what speaks for each: a conditional log-linear model, learned in one pass.

    P(candidate) = exp(w . f(candidate)) / (1 + sum over the candidates of exp(w . f))

f are the features that hold of a candidate, w their weights, and the 1 stands for "none of them" (McFadden, 1974).
After each outcome w takes one step of AdaGrad (Duchi et al., 2011): a weight seldom seen moves far, one seen often
moves little. Counts alone would need every combination of features to have been seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

Feature = Hashable
"""A plain tuple of texts, numbers and further tuples, so that it can be written as JSON."""
Signature = TypeVar("Signature", bound=Hashable)
"""All that is known of a candidate; its features follow from it."""

RATE = 0.2
FIRST_SQUARE = 0.1
DECAY = 0.001
"""How strongly a weight is pulled back to where it started, per step."""
SETTLED = 0.005
"""Errors of a probability below this teach nothing."""
HINT = "hint"
"""Begins features of which there may be as many as there are words."""
MOST_HINTS = 20_000
"""Such features that have weights; what is met later has none."""
MOST_SCORES = 20_000
"""Scores kept until the next step; conversations ask for the same ones again and again."""


class Weights:
    """Weights by feature, with AdaGrad's sums of squares.

    Args:
        start: What is believed before anything was seen; weights not named start at 0.
    """

    def __init__(
        self, start: Mapping[Feature, float] | None = None, *, rate: float = RATE, decay: float = DECAY
    ) -> None:
        self._start = dict(start or {})
        self._rate = rate
        self._decay = decay
        self._weights: dict[Feature, float] = dict(self._start)
        self._squares: dict[Feature, float] = {}
        self._hints = 0

    @property
    def known(self) -> Mapping[Feature, float]:
        """The weights that aren't 0."""
        return self._weights

    def total(self, features: Iterable[Feature]) -> float:
        """Return the sum of the features' weights."""
        get = self._weights.get
        return sum([get(feature, 0.0) for feature in features])

    def __getitem__(self, feature: Feature) -> float:
        return self._weights.get(feature, 0.0)

    def descend(self, feature: Feature, slope: float) -> None:
        """Move one weight against the slope of the loss."""
        weight = self._weights.get(feature)
        if weight is None:
            if isinstance(feature, tuple) and feature[0] == HINT:
                if self._hints >= MOST_HINTS:
                    return
                self._hints += 1
            weight = 0.0
        slope += self._decay * (weight - self._start.get(feature, 0.0))
        square = self._squares.get(feature, FIRST_SQUARE) + slope * slope
        self._squares[feature] = square
        self._weights[feature] = weight - self._rate * slope / math.sqrt(square)

    def to_json(self) -> list[list[Any]]:
        """Return what was learned as plain JSON: [feature, weight, square] each."""
        return [[feature, self._weights[feature], square] for feature, square in self._squares.items()]

    def load(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take over what `to_json` gave."""
        for feature, weight, square in rows:
            self._weights[as_feature(feature)] = weight
            self._squares[as_feature(feature)] = square
        self._hints = sum(isinstance(feature, tuple) and feature[0] == HINT for feature in self._weights)


class Chooser(Generic[Signature]):
    """Chooses among candidates given by their signatures.

    Args:
        features: Returns the features of a signature; called once per signature between two steps.
        start: Weights to begin with.
    """

    def __init__(
        self, features: Callable[[Signature], Collection[Feature]], *, start: Mapping[Feature, float] | None = None
    ) -> None:
        self._features = features
        self.weights = Weights(start)
        self._scores: dict[Signature, float] = {}

    def probabilities(self, candidates: Sequence[Signature]) -> list[float]:
        """Return the candidates' probabilities; what is missing to 1 is that of "none of them"."""
        scores = [self._score(candidate) for candidate in candidates]
        top = max(0.0, *scores) if scores else 0.0
        raised = [math.exp(score - top) for score in scores]
        total = sum(raised) + math.exp(-top)
        return [value / total for value in raised]

    def learn(self, candidates: Sequence[Signature], right: Collection[int]) -> None:
        """Learn from one outcome: `right` are the candidates that were right, none, one, or several alike."""
        probabilities = self.probabilities(candidates)
        good = sum(probabilities[index] for index in right)
        slopes: dict[Feature, float] = {}
        for index, (candidate, probability) in enumerate(zip(candidates, probabilities, strict=True)):
            error = probability
            if index in right:
                error -= probability / good if good > 0.0 else 1 / len(right)
            if abs(error) < SETTLED:
                continue
            for feature in self._features(candidate):
                slopes[feature] = slopes.get(feature, 0.0) + error
        for feature, slope in slopes.items():
            self.weights.descend(feature, slope)
        self._scores.clear()

    def load(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take over weights as `Weights.to_json` gave them."""
        self.weights.load(rows)
        self._scores.clear()

    def _score(self, candidate: Signature) -> float:
        score = self._scores.get(candidate)
        if score is None:
            score = self.weights.total(self._features(candidate))
            if len(self._scores) >= MOST_SCORES:
                self._scores.clear()
            self._scores[candidate] = score
        return score


def as_feature(value: Any) -> Any:
    """Return a feature read from JSON, its lists as the tuples they were."""
    return tuple(as_feature(item) for item in value) if isinstance(value, list) else value
