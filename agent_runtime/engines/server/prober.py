"""Asks a server in speculator mode: finds the prefix, writes the suffix, sends the probe, reads the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import anyio.to_thread

from agent_runtime.engines.base import ProbeResult, ToolSchema
from agent_runtime.traces.messages import Message

from .address import Endpoint
from .faults import ServerRejected
from .model_text import ProbeText, ServerText
from .probing import json_lead_in, probe_request, read_answer
from .requests import chat_messages
from .served import Served
from .shared import ServedModel
from .turn import Turn

NO_ANSWER = ProbeResult(call=None, confidence=0.0, tokens=0, completed=False)


class Prober:
    """The probes of one conversation.

    Args:
        model: What the conversations with the model share.
        tools: The tools that a guess may name.
        functions: The same as function schemas, as the agent's requests hold them.
        marks: Finds control tokens in what others wrote.
        count: Adds to the counts of the session.
    """

    def __init__(
        self,
        model: ServedModel,
        tools: Sequence[ToolSchema],
        *,
        functions: Sequence[dict[str, Any]],
        marks: re.Pattern[str],
        count: Callable[..., None],
    ) -> None:
        self._model = model
        self._tools = tuple(tools)
        self._functions = list(functions)
        self._marks = marks
        self._count = count
        self._rendered: tuple[tuple[Message, ...], tuple[int, ...]] | None = None
        self._server_texts: dict[Endpoint, ServerText] = {}

    async def ask(
        self, served: Served, turn: Turn | None, messages: tuple[Message, ...], *, position: int, max_tokens: int
    ) -> ProbeResult:
        """Probe beside `turn`, or before any; not completed where the server can't or shouldn't be asked.

        Raises:
            EngineFailed: the server can't be reached, or refuses.
        """
        text = self._language(served)
        if text is None or not self._model.pacing(served.endpoint).may_probe():
            return NO_ANSWER
        prefix = await self._prefix(served, turn, messages)
        if prefix is None:
            return NO_ANSWER
        written, said = await self._written(turn, position, text)
        return await self._answer(served, prefix + written + await text.suffix(said), text, max_tokens)

    async def _answer(self, served: Served, prompt: tuple[int, ...], text: ProbeText, max_tokens: int) -> ProbeResult:
        """Send a probe and read what it says."""
        model, counts = self._model, self._model.counts
        if served.context_tokens is not None:
            max_tokens = min(max_tokens, served.context_tokens - len(prompt))
        if max_tokens < 1:
            return NO_ANSWER
        counts.requests += 1
        counts.probes += 1
        pacing = model.pacing(served.endpoint)
        pacing.probe_began()
        try:
            while True:
                request = probe_request(
                    served,
                    model=model.name,
                    prompt=prompt,
                    tools=self._tools,
                    text=text,
                    guided=model.settings.guided,
                    max_tokens=max_tokens,
                )
                if lead_in := json_lead_in(request, text):
                    request.body["prompt"] += await text.ids_of(lead_in)
                try:
                    answer = await model.client.post(served.endpoint, "completions", request.body)
                    break
                except ServerRejected as error:
                    if not self._learned(served, error, request.body, request.guided):
                        raise
        finally:
            pacing.probe_ended()
        result = read_answer(request, answer, text)
        self._count_answer(answer, result, len(prompt))
        return result

    def _learned(self, served: Served, error: ServerRejected, body: dict[str, Any], guided: str) -> bool:
        """Note what a refused probe says of the server; tell whether another form of it may do."""
        if served.learn(error, dict(body)):
            return True
        if error.status in (400, 422, 500, 501) and guided in ("grammar", "json") and guided not in served.refused:
            served.refused.add(guided)
            return True
        if error.status in (400, 404, 405, 422, 501):
            served.refused.add("probe")
            self._model.no_guesses(served.endpoint, f"it refuses the request ({error.reason})")
        return False

    def _count_answer(self, answer: Any, result: ProbeResult, prompt_tokens: int) -> None:
        usage = answer.get("usage") if isinstance(answer, dict) else None
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        cached = min(cached, prompt_tokens) if isinstance(cached, int) else 0
        counts = self._model.counts
        counts.probe_prompt_tokens += prompt_tokens
        counts.probe_cached_tokens += cached
        self._count(
            probes=1,
            probe_tokens=result.tokens,
            prompt_tokens=prompt_tokens,
            reused_tokens=cached,
            prefilled_tokens=prompt_tokens - cached,
        )

    def _language(self, served: Served) -> ProbeText | None:
        """Return the language in which a server is probed; None, with a reason, where it can't be."""
        model, reason = self._model, None
        if "probe" in served.refused:
            return None
        if not served.takes_ids or not served.tells_logprobs:
            reason = "it takes no token ids as a prompt or gives no log-probabilities"
        elif model.text is None and not served.tokenizes:
            reason = (
                "its model's tokenizer is not here, and it has none to ask: name it with ?tokenizer=FOLDER_OR_HUB_ID"
            )
        if reason is not None:
            model.no_guesses(served.endpoint, reason)
            return None
        if model.text is not None:
            return model.text
        if served.endpoint not in self._server_texts:

            async def tokenize(text: str) -> tuple[int, ...]:
                return await self._tokenized(served, {"prompt": text, "add_special_tokens": False})

            self._server_texts[served.endpoint] = ServerText(tokenize)
        return self._server_texts[served.endpoint]

    async def _prefix(self, served: Served, turn: Turn | None, messages: tuple[Message, ...]) -> tuple[int, ...] | None:
        """Return the ids of the agent's prompt: those that its stream told, else rendered here, else by the server.

        What is rendered here is compared with what the server says, and the server's ids are taken where they differ:
        another prefix would be read anew instead of served from the cache.
        """
        told = turn.reading.prompt_ids if turn is not None and turn.reading is not None else None
        here = await self.render(messages)
        if told is None and served.tokenizes:
            body = {"messages": chat_messages(messages, self._marks), "tools": self._functions or None}
            try:
                told = await self._tokenized(served, {**body, "add_generation_prompt": True})
            except ServerRejected:
                served.refused.add("tokenize")
        if told is not None and here is not None:
            self._model.counts.prefixes_compared += 1
            self._model.counts.prefixes_identical += told == here
        return told or here

    async def _written(self, turn: Turn | None, position: int, text: ProbeText) -> tuple[tuple[int, ...], str]:
        """Return the first `position` tokens of the message that is being written, and their text."""
        reading = turn.reading if turn is not None else None
        if reading is None or position < 1:
            return (), ""
        if reading.ids is not None:
            ids = tuple(reading.ids[:position])
            local = self._model.text
            return ids, local.decode(ids) if local is not None else reading.written
        return await text.ids_of(reading.written), reading.written

    async def _tokenized(self, served: Served, body: dict[str, Any]) -> tuple[int, ...]:
        answer = await self._model.client.post(
            served.endpoint, f"{served.endpoint.root}/tokenize", {"model": self._model.name, **body}
        )
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        return tuple(ids) if isinstance(ids, list) else ()

    async def render(self, messages: tuple[Message, ...]) -> tuple[int, ...] | None:
        """Return the conversation's ids by the model's own template, rendered once a turn; None without a tokenizer."""
        text = self._model.text
        if text is None:
            return None
        if self._rendered is None or self._rendered[0] != messages:
            functions = [tool.as_function() for tool in self._tools]
            self._rendered = messages, await anyio.to_thread.run_sync(text.render, messages, functions)
        return self._rendered[1]
