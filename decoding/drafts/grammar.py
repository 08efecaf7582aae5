"""The `grammar` draft: what the tools' schemas force inside a call, on rows that are free to write something else."""

from __future__ import annotations

from dataclasses import dataclass

from agent_runtime.decoding.errors import GrammarError
from agent_runtime.decoding.requests import CallGrammar, Constraint

from .base import DraftedRow, DraftKind, Proposal


@dataclass(slots=True)
class _Reading:
    """How far a row was read, and the grammar's state inside the call that is open there."""

    upto: int
    state: Constraint | None = None


class GrammarDraft:
    """Follows every call that a row opens through the grammar of its tools, and proposes what the grammar forces next.

    The row is not bound by it: a text that leaves the grammar is simply not drafted any further. (Rows that are bound
    need no draft for this: what their own grammar forces is appended without sampling.)
    """

    kind: DraftKind = "grammar"
    needs_hidden = False

    def __init__(self) -> None:
        self._readings: dict[int, _Reading] = {}

    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        """Return the forced tokens that come next."""
        grammar = row.request.call_grammar
        if grammar is None or row.request.constraint is not None:
            return None
        reading = self._readings.get(row.number)
        if reading is None:
            reading = self._readings[row.number] = _Reading(row.prompt_tokens)
        self._read(row, grammar, reading)
        if reading.state is None or reading.state.finished():
            return None
        tokens = tuple(reading.state.forced()[:limit])
        return Proposal("grammar", tokens) if tokens else None

    def forget(self, row: DraftedRow) -> None:
        """Drop the row's state."""
        self._readings.pop(row.number, None)

    def _read(self, row: DraftedRow, grammar: CallGrammar, reading: _Reading) -> None:
        """Take the tokens that came since the last time."""
        size = len(grammar.opener)
        for end in range(reading.upto + 1, len(row.tokens) + 1):
            token = row.tokens[end - 1]
            if reading.state is not None:
                try:
                    reading.state.advance(token)
                except GrammarError:
                    reading.state = None
                else:
                    if reading.state.finished():
                        reading.state = None
                    continue
            if end - row.prompt_tokens >= size and tuple(row.tokens[end - size : end]) == grammar.opener:
                reading.state = grammar.start()
        reading.upto = len(row.tokens)
