"""The calls that are on their way to a server: what a question of the server may belong to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from .standing import ToolStanding


class GuessFlight:
    """One guess on its way. `missed` says why it can't become a hit any more."""

    def __init__(self, standing: ToolStanding, scope: anyio.CancelScope) -> None:
        self.standing = standing
        self.missed: str | None = None
        self._scope = scope

    def miss(self, reason: str) -> None:
        """Break the guess off; its request is cancelled at the server."""
        self.missed = self.missed or reason
        self._scope.cancel()


class Flights:
    """Counts calls and guesses in flight, and keeps them apart where a question could belong to either.

    Up to the protocol of 2025 a server's question names no call. Where such questions are answered (`exclusive`), a
    demanded call therefore breaks off the guesses in flight, and no guess starts beside it.
    """

    def __init__(self) -> None:
        self.exclusive = False
        self.demanded = 0
        self.guesses: set[GuessFlight] = set()

    @property
    def guess_may_start(self) -> bool:
        """Whether a guess may be sent now."""
        return not (self.exclusive and self.demanded)

    @contextmanager
    def guess(self, standing: ToolStanding) -> Iterator[GuessFlight]:
        """Hold a guess in flight. A guess that was missed leaves the block early and quietly: look at `missed`."""
        with anyio.CancelScope() as scope:
            flight = GuessFlight(standing, scope)
            self.guesses.add(flight)
            try:
                yield flight
            finally:
                self.guesses.discard(flight)

    @contextmanager
    def demand(self) -> Iterator[None]:
        """Hold a demanded call in flight."""
        if self.exclusive:
            self.miss_guesses("a demanded call of its server came first")
        self.demanded += 1
        try:
            yield
        finally:
            self.demanded -= 1

    def miss_guesses(self, reason: str) -> list[GuessFlight]:
        """Break off all guesses in flight and return them."""
        missed = list(self.guesses)
        for flight in missed:
            flight.miss(reason)
        return missed
