"""Judging a model folder: whole tasks on the shop's own store, and the speculator's first guesses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_runtime.demo.shop.generate import generate
from agent_runtime.demo.shop.handwritten import handwritten_tasks
from agent_runtime.demo.shop.judge import Task, judge
from agent_runtime.demo.shop.store import Store

from .decoding import LIMIT, Decoder
from .network import Network
from .prompts import system_text
from .samples import Encoder

MAX_TURNS = 8
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_THINK = re.compile(r"^<think>\n(.*?)\n</think>\n", re.DOTALL)


@dataclass(slots=True)
class Boundary:
    """A turn's first call and what the speculator said at the turn's start (None: no call, or no call parsed)."""

    call: str
    guess: str | None
    reasoned: bool


@dataclass(slots=True)
class Episode:
    """One task while it is played."""

    task: Task
    store: Store
    messages: list[dict[str, Any]]
    boundaries: list[Boundary] = field(default_factory=list)
    answer: str | None = None
    trouble: str = ""


class Player:
    """Plays many tasks side by side with greedy decoding in fp32."""

    def __init__(self, network: Network, encoder: Encoder, batch: int = 64) -> None:
        self._network = network
        self._encoder = encoder
        self._batch = batch
        self._stops = {encoder.end, encoder.call_end}

    def play(self, tasks: Sequence[Task], *, probe: bool = True) -> list[Episode]:
        """Play `tasks` to their ends; `probe` asks the speculator before every turn."""
        return [
            episode
            for start in range(0, len(tasks), self._batch)
            for episode in self._play(tasks[start : start + self._batch], probe)
        ]

    def _play(self, tasks: Sequence[Task], probe: bool) -> list[Episode]:
        encode, end = self._encoder.encode, self._encoder.end
        episodes, fresh = [], []
        for task in tasks:
            store = Store()
            task.start_world(store)
            episodes.append(Episode(task, store, [{"role": "user", "content": task.request}]))
            fresh.append(encode(f"{system_text()}<|im_start|>user\n{task.request}<|im_end|>\n<|im_start|>assistant\n"))
        decoder = Decoder(self._network, len(episodes))
        for _ in range(MAX_TURNS):
            guesses: list[list[int]] = [[] for _ in episodes]
            if probe:
                decoder.feed([row[:-1] for row in fresh])
                fresh = [row[-1:] for row in fresh]
                lengths = decoder.lengths
                suffixed = [[*row, self._encoder.speculate] if row else [] for row in fresh]
                guesses = decoder.complete(suffixed, self._stops, 90)
                decoder.lengths = lengths
            said = decoder.complete(fresh, {end}, 180)
            fresh = [[] for _ in episodes]
            for row, (episode, ids, guess) in enumerate(zip(episodes, said, guesses, strict=True)):
                if not ids:
                    continue
                seen = len(episode.messages) + 1
                self._take(episode, self._encoder.decode(ids), self._encoder.decode(guess))
                if episode.answer is None and not episode.trouble:
                    results = "".join(
                        f"<|im_start|>tool\n{message['content']}<|im_end|>\n" for message in episode.messages[seen:]
                    )
                    # The last token of a turn is said but not yet fed.
                    fresh[row] = [ids[-1], *encode(f"\n{results}<|im_start|>assistant\n")]
                    if decoder.lengths[row] + len(fresh[row]) + 300 > LIMIT:
                        episode.trouble, fresh[row] = "too long", []
            if not any(fresh):
                break
        for episode in episodes:
            if episode.answer is None and not episode.trouble:
                episode.trouble = "no end"
        return episodes

    def _take(self, episode: Episode, text: str, guess: str) -> None:
        body = text.removesuffix("<|im_end|>")
        thought = _THINK.match(body)
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if thought:
            message["reasoning_content"] = thought[1]
            body = body[thought.end() :]
        calls = []
        for raw in _CALL.findall(body):
            try:
                calls.append(json.loads(raw))
            except ValueError:
                episode.trouble = f"malformed call {raw}"
                return
        if not calls:
            message["content"] = body
            episode.messages.append(message)
            episode.answer = body
            return
        message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        episode.messages.append(message)
        guessed = _CALL.search(guess)
        episode.boundaries.append(Boundary(json.dumps(calls[0]), guessed and guessed[1], bool(thought)))
        for call in calls:
            try:
                content = episode.store.execute(call["name"], call["arguments"])
            except Exception as error:
                episode.trouble = f"call {call}: {error}"
                return
            episode.messages.append({"role": "tool", "name": call["name"], "content": content})


def score(episodes: Sequence[Episode]) -> tuple[float, list[tuple[Episode, str]]]:
    """Return the share of tasks that succeed and the others with their reasons."""
    failures = []
    for episode in episodes:
        if episode.trouble:
            failures.append((episode, episode.trouble))
            continue
        verdict = judge(episode.task, episode.store, episode.answer or "")
        if not verdict.success:
            failures.append((episode, verdict.reason))
    return 1 - len(failures) / max(len(episodes), 1), failures


def hits(boundaries: Sequence[Boundary]) -> dict[str, Any]:
    """Return Hit@1 over all boundaries, and with and without reasoning before the call."""

    def share(part: list[Boundary]) -> float | None:
        return round(sum(b.guess == b.call for b in part) / len(part), 4) if part else None

    return {
        "boundaries": len(boundaries),
        "hit_at_1": share(list(boundaries)),
        "without_reasoning": share([b for b in boundaries if not b.reasoned]),
        "with_reasoning": share([b for b in boundaries if b.reasoned]),
        "reasoned": round(sum(b.reasoned for b in boundaries) / max(len(boundaries), 1), 4),
    }


def test_tasks(seed: int, n: int) -> Iterator[Task]:
    """Yield generated tasks of the test split, one in five in a held-out phrasing."""
    yield from (Task.from_dict(task) for task in generate(seed, "test", n))


def report(
    network: Network, encoder: Encoder, *, seed: int = 1, n: int = 300, show: int = 0, probe: bool = True
) -> dict[str, Any]:
    """Judge a model on `n` generated tasks and the thirty written by hand; print `show` failed ones."""
    player = Player(network, encoder)
    generated = player.play(list(test_tasks(seed, n)), probe=probe)
    written = player.play(handwritten_tasks(), probe=probe)
    groups = {
        "all": generated,
        "seen_phrasing": [e for e in generated if e.task.phrasing != "heldout"],
        "heldout_phrasing": [e for e in generated if e.task.phrasing == "heldout"],
        "handwritten": written,
    }
    result: dict[str, Any] = {
        name: {"tasks": len(part), "success": round(score(part)[0], 4)} for name, part in groups.items()
    }
    kinds: dict[str, list[Episode]] = {}
    for episode in generated:
        kinds.setdefault(episode.task.kind, []).append(episode)
    result["by_kind"] = {kind: f"{score(part)[0]:.2f} of {len(part)}" for kind, part in sorted(kinds.items())}
    if probe:
        result["speculator"] = hits([b for episode in generated for b in episode.boundaries])
    for episode, reason in (score(generated)[1] + score(written)[1])[:show]:
        print(f"--- {episode.task.kind} ({episode.task.phrasing}): {reason}")
        for message in episode.messages:
            shown = {key: value for key, value in message.items() if key not in ("role", "name") and value}
            print(f"  {message['role']}: {json.dumps(shown, ensure_ascii=False)[:600]}")
    return result
