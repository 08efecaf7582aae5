"""How often drafted tokens stand: moving averages per kind of draft, class of evidence and position."""

from __future__ import annotations

from collections.abc import Iterator

POSITIONS = 24
"""Positions learned apart; later ones share the last."""
WEIGHT = 0.06
"""Share of the newest observation in the moving average, once there are enough of them."""
PRIOR = 2.0
"""How many observations the start counts for: the first ones are averaged, so that they are not lost on it."""
FORGET = 0.005
"""Share by which an estimate drifts back to the start when it kept its draft from being tried, so that it is tried
again some time."""
START = {
    "call": 0.95,
    "grammar": 0.95,
    "suffix": 0.7,
    "lookup": 0.6,
    "model": 0.7,
    "layers": 0.6,
    "medusa": 0.6,
}
"""Chance that a token of a kind stands, before anything was seen."""

Key = tuple[str, int, bool]
"""Kind, strength, and whether the row is a probe: what holds for the agent's text need not hold for a probe's."""


class _Position:
    """The chance of one position, and how much was seen of it."""

    __slots__ = ("chance", "seen")

    def __init__(self, start: float) -> None:
        self.chance = start
        self.seen = 0

    def observe(self, stood: bool) -> None:
        self.seen += 1
        self.chance += max(WEIGHT, 1.0 / (PRIOR + self.seen)) * (stood - self.chance)


class Acceptance:
    """Chances that the i-th token of a draft is accepted, given that those before it were."""

    def __init__(self) -> None:
        self._positions: dict[Key, list[_Position]] = {}

    def chances(self, key: Key) -> Iterator[float]:
        """Return the chance at position 1, 2, ... without end; positions not seen yet are like the last that was."""
        chance = START[key[0]]
        for position in self._positions.get(key, ()):
            chance = position.chance if position.seen else min(chance, position.chance)
            yield chance
        while True:
            yield chance

    def observe(self, key: Key, proposed: int, accepted: int) -> None:
        """Learn from a draft of `proposed` tokens, the first `accepted` of which stood."""
        known = self._of(key)
        for position in range(min(proposed, accepted + 1)):
            known[min(position, POSITIONS - 1)].observe(position < accepted)

    def passed_over(self, key: Key) -> None:
        """Note that the estimate spoke against trying."""
        start = START[key[0]]
        for position in self._of(key):
            position.chance += FORGET * (start - position.chance)

    def _of(self, key: Key) -> list[_Position]:
        known = self._positions.get(key)
        if known is None:
            known = self._positions[key] = [_Position(START[key[0]]) for _ in range(POSITIONS)]
        return known


def closed_form(k: int, alpha: float, c: float) -> float:
    """Return the expected speed-up of `k` drafted tokens, each accepted with chance `alpha`.

    `c` is the draft's cost of a token in units of the target's step, and verifying is taken to cost one step:
    S = (1 - alpha^(k+1)) / ((1 - alpha) (k c + 1)) (Leviathan et al., arXiv:2211.17192).
    """
    expected = k + 1.0 if alpha >= 1.0 else (1 - alpha ** (k + 1)) / (1 - alpha)
    return expected / (k * c + 1)
