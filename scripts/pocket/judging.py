"""Judging a model folder: whole tasks on the shop's own store, and the speculator's first guesses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from agent_runtime.demo.shop.generate import generate
from agent_runtime.demo.shop.handwritten import handwritten_tasks
from agent_runtime.demo.shop.instructions import INSTRUCTIONS
from agent_runtime.demo.shop.judge import Task, judge
from agent_runtime.demo.shop.store import Store
from transformers import AutoModelForCausalLM, AutoTokenizer

from .prompts import tool_schemas

MAX_TURNS = 8
_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_THINK = re.compile(r"^<think>\n(.*?)\n</think>\n", re.DOTALL)


@dataclass(slots=True)
class Boundary:
    """A turn's first call and what the speculator said at the turn's start (None: no call, or no call parsed)."""

    call: str
    guess: str | None
    reasoned: bool
    last_guess: str | None = None


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
    """Plays many tasks at once with greedy decoding, one `generate` per round of turns."""

    def __init__(self, folder: Path, batch: int = 50) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self._tools = tool_schemas()
        self._batch = batch
        self._end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._close = self.tokenizer.convert_tokens_to_ids("</tool_call>")

    def play(self, tasks: Sequence[Task], *, probe: bool = True) -> list[Episode]:
        """Play `tasks` to their ends; `probe` asks the speculator before every turn."""
        episodes = []
        for task in tasks:
            store = Store()
            task.start_world(store)
            start = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": task.request}]
            episodes.append(Episode(task, store, start))
        for _ in range(MAX_TURNS):
            open_ = [episode for episode in episodes if episode.answer is None and not episode.trouble]
            prompts = [self._render(episode.messages) for episode in open_]
            texts = self._complete(prompts, self._end)
            guesses = self._complete([prompt + "<|speculate|>" for prompt in prompts], self._close) if probe else texts
            for episode, text, guess in zip(open_, texts, guesses, strict=True):
                self._take(episode, text, guess)
        for episode in episodes:
            if episode.answer is None and not episode.trouble:
                episode.trouble = "no end"
        return episodes

    def _render(self, messages: list[dict[str, Any]]) -> str:
        text: str = self.tokenizer.apply_chat_template(
            messages, tools=self._tools, tokenize=False, add_generation_prompt=True
        )
        return text

    @torch.inference_mode()
    def _complete(self, prompts: Sequence[str], stop: int) -> list[str]:
        """Continue each prompt greedily up to and including `stop` or `<|im_end|>`."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        texts = [""] * len(prompts)
        for start in range(0, len(order), self._batch):
            part = order[start : start + self._batch]
            inputs = self.tokenizer(
                [prompts[index] for index in part], return_tensors="pt", padding=True, add_special_tokens=False
            )
            output = self.model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=180,
                do_sample=False,
                eos_token_id=[self._end, stop],
            )
            for index, row in zip(part, output[:, inputs["input_ids"].shape[1] :], strict=True):
                text = self.tokenizer.decode(row, skip_special_tokens=False)
                texts[index] = text.replace("<|endoftext|>", "")
        return texts

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


def report(folder: Path, *, seed: int = 1, n: int = 300, show: int = 0) -> dict[str, Any]:
    """Judge a model folder on `n` generated tasks and the thirty written by hand."""
    player = Player(folder)
    generated = player.play(list(test_tasks(seed, n)))
    written = player.play(handwritten_tasks())
    groups = {
        "all": generated,
        "seen_phrasing": [e for e in generated if e.task.phrasing != "heldout"],
        "heldout_phrasing": [e for e in generated if e.task.phrasing == "heldout"],
        "handwritten": written,
    }
    result: dict[str, Any] = {name: {"tasks": len(part), "success": round(score(part)[0], 4)} for name, part in groups.items()}
    kinds: dict[str, list[Episode]] = {}
    for episode in generated:
        kinds.setdefault(episode.task.kind, []).append(episode)
    result["by_kind"] = {kind: f"{score(part)[0]:.2f} of {len(part)}" for kind, part in sorted(kinds.items())}
    result["speculator"] = hits([b for episode in generated for b in episode.boundaries])
    for episode, reason in (score(generated)[1] + score(written)[1])[:show]:
        print(f"--- {episode.task.kind} ({episode.task.phrasing}): {reason}")
        for message in episode.messages[1:]:
            shown = {key: value for key, value in message.items() if key not in ("role", "name") and value}
            print(f"  {message['role']}: {json.dumps(shown, ensure_ascii=False)[:600]}")
    return result
