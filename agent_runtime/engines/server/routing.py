"""Which of several servers a conversation talks to: always the same one, so that its prefix cache stays warm."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from .address import Endpoint

RESTING = 15.0
"""Seconds for which a server that failed gets no conversation, while others are left."""


class Router:
    """Spreads conversations over endpoints and keeps each where it is.

    A new conversation goes where the fewest are (the first named, among equals). It moves only when its server failed,
    and then stays where it went: going back would read the whole conversation once more.

    Args:
        endpoints: At least one.
        now: The clock in seconds. Not an event loop's: conversations of several loops are routed together.
    """

    def __init__(self, endpoints: Sequence[Endpoint], *, now: Callable[[], float] = time.monotonic) -> None:
        self._endpoints = tuple(endpoints)
        self._now = now
        self._places: dict[str, Endpoint] = {}
        self._resting: dict[Endpoint, float] = {}
        self.moves = 0
        """Conversations that had to go to another server."""

    def place(self, conversation: str) -> Endpoint:
        """Return the endpoint that a conversation talks to."""
        stays = self._places.get(conversation)
        if stays is not None and not self._rests(stays):
            return stays
        awake = [endpoint for endpoint in self._endpoints if not self._rests(endpoint)]
        if not awake:
            # All failed: whoever failed first may be back first, and a conversation doesn't wander meanwhile.
            place = stays or min(self._endpoints, key=lambda endpoint: self._resting[endpoint])
        else:
            loads = Counter(self._places.values())
            place = min(awake, key=lambda endpoint: loads[endpoint])
        if stays is not None and place != stays:
            self.moves += 1
        self._places[conversation] = place
        return place

    def leave(self, conversation: str) -> None:
        """Forget a conversation that is over."""
        self._places.pop(conversation, None)

    def failed(self, endpoint: Endpoint) -> None:
        """Note that an endpoint can't be reached, or refuses for now."""
        self._resting[endpoint] = self._now() + RESTING

    def works(self, endpoint: Endpoint) -> None:
        """Note that an endpoint answered."""
        self._resting.pop(endpoint, None)

    def conversations(self) -> dict[Endpoint, int]:
        """Return how many conversations each endpoint has."""
        loads = Counter(self._places.values())
        return {endpoint: loads[endpoint] for endpoint in self._endpoints}

    def _rests(self, endpoint: Endpoint) -> bool:
        until = self._resting.get(endpoint)
        return until is not None and self._now() < until
