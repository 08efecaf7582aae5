"""Stop strings end a row at the right token, wherever they are split; ids and lengths end it too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import pytest
from agent_runtime.decoding.errors import PromptRejected
from agent_runtime.decoding.requests import RowRequest, Sampling
from agent_runtime.decoding.stops import StopScanner
from agent_runtime.decoding.worker import ModelWorker

from .conftest import VOCAB, collect, plain_greedy


def scan(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[str, str | None]:
    """Push byte pieces as tokens; return the text of the emitted tokens and the tail, if it stopped."""
    table = {index + 1: piece for index, piece in enumerate(pieces)}

    def detokenize(ids: Sequence[int]) -> str:
        return b"".join(table.get(token, b"P") for token in ids).decode(errors="replace")

    scanner = StopScanner(stops, detokenize, [0])
    emitted = 0
    for token in table:
        count, stopped = scanner.push(token)
        emitted += count
        if stopped is not None:
            return b"".join(pieces[:emitted]).decode(), stopped.tail
    return b"".join(pieces[:emitted]).decode(), None


def splits(data: bytes, parts: int) -> list[list[bytes]]:
    found = []
    for cuts in combinations(range(1, len(data)), parts - 1):
        at = (0, *cuts, len(data))
        found.append([data[a:b] for a, b in pairwise(at)])
    return found


@pytest.mark.parametrize("text", ["ab\nUser: x", "é\nUser:", "\n\nUser:more"])
def test_the_text_ends_before_the_stop_string_at_every_split(text: str) -> None:
    data = text.encode()
    wanted = text[: text.index("\nUser:")]
    for parts in (1, 2, 3, 4):
        for pieces in splits(data, parts):
            emitted, tail = scan(pieces, ["\nUser:", "never"])
            assert tail is not None, pieces
            assert emitted + tail == wanted, pieces
            # A token is emitted exactly if it ends before the stop string and in a whole character.
            ends = [len(b"".join(pieces[: n + 1])) for n in range(len(pieces))]
            whole = [end for end in ends if end <= len(wanted.encode()) and _is_whole(data[:end])]
            assert len(emitted.encode()) == max(whole, default=0), pieces


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_false_start_is_held_back_and_then_emitted() -> None:
    assert scan([b"a", b"\nUs"], ["\nUser:"]) == ("a", None)
    assert scan([b"a", b"\nUs", b"ual"], ["\nUser:"]) == ("a\nUsual", None)
    assert scan([b"aaab"], ["aab"]) == ("", "a")


def test_the_earliest_of_several_stop_strings_counts() -> None:
    assert scan([b"x", b"one two"], ["two", "one"]) == ("x", "")


def words(ids: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in ids)


@pytest.mark.anyio
async def test_a_row_ends_at_a_stop_string_an_id_or_its_length(qwen3: Any) -> None:
    prompt = list(range(10))
    expected = plain_greedy(qwen3, prompt, 20)
    at = next(n for n in range(8, 18) if expected[n] not in expected[:n])
    with ModelWorker(qwen3, detokenize=words) as worker:

        async def run(**kwargs: Any) -> Any:
            return await collect(worker, RowRequest(prompt=tuple(prompt), max_new_tokens=20, **kwargs))

        whole = await run(sampling=Sampling(stop=(words(expected[at : at + 1]),)))
        assert (whole.ids, whole.finished.reason) == (expected[:at], "stop_string")
        assert (whole.finished.new_tokens, whole.finished.tail) == (at, "")
        inside = await run(sampling=Sampling(stop=(words(expected[at - 1 : at + 1])[2:],)))
        assert (inside.ids, inside.finished.tail) == (expected[: at - 1], words(expected[at - 1 : at])[:2])
        assert len(inside.logprobs) == at - 1
        by_id = await run(stop_ids=frozenset({expected[at]}))
        assert (by_id.ids, by_id.finished.reason) == (expected[: at + 1], "eos")
        # A held-back beginning of a stop string is emitted when the row ends otherwise.
        held = await run(sampling=Sampling(stop=(words(expected[19:20]) + "never",)))
        assert (held.ids, held.finished.reason) == (expected, "length")


@pytest.mark.anyio
async def test_stop_strings_without_a_detokenizer_are_refused(qwen3: Any) -> None:
    with ModelWorker(qwen3) as worker:
        with pytest.raises(PromptRejected, match="detokenize"):
            worker.submit(RowRequest(prompt=(1,), max_new_tokens=2, sampling=Sampling(stop=("x",))))
        with pytest.raises(PromptRejected, match="empty"):
            worker.submit(RowRequest(prompt=(), max_new_tokens=2))
        with pytest.raises(PromptRejected, match=f"0 to {VOCAB - 1}"):
            worker.submit(RowRequest(prompt=(VOCAB,), max_new_tokens=2))
