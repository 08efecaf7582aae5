"""A probe as a request: the agent's own prefix, the suffix of speculator mode, and an answer that fits the tools."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_runtime.engines.base import ProbeResult, ToolSchema
from agent_runtime.engines.parsing import as_call
from agent_runtime.speculator.grammar import CallFormat
from agent_runtime.tools.values import ToolCall

from .address import Guided
from .model_text import LocalText, ProbeText, call_schema
from .served import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """What is sent, and what reads the answer."""

    body: dict[str, Any]
    written: str
    """What the suffix has written of the call already."""
    ending: str
    """What the answer was stopped short of: nothing in it is a choice."""
    guided: Guided
    """How the answer was held to the tools' schemas."""


def probe_request(
    served: Served,
    *,
    model: str,
    prompt: Sequence[int],
    tools: Sequence[ToolSchema],
    text: ProbeText,
    guided: Guided,
    max_tokens: int,
) -> ProbeRequest:
    """Return a probe's request; `prompt` are the ids of the agent's prefix and the suffix of speculator mode.

    Greedy. The answer is stopped where the arguments are closed, since what follows is no choice. Guided by the
    grammar of the local engine where the server takes it, else by a JSON Schema, which can't say "no call".
    """
    form = text.form
    how, fields = _guiding(served, text, tools, guided)
    ending = form.closing[1:] if len(form.closing) > 1 and form.closing[0] == "}" else ""
    stop = form.closing[:2] if ending and ending[0].isspace() else ""
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": 1,
        "stream": False,
    }
    if stop and how != "json":
        body["stop"] = [stop]
    if served.kind in ("vllm", "sglang"):
        body["skip_special_tokens"] = False
        if text.no_call is not None:
            body["stop_token_ids"] = [text.no_call]
    body |= fields | served.background_fields()
    for name in served.refused & body.keys():
        del body[name]
    opened = form.lead_in if text.opens_call or how == "json" else ""
    return ProbeRequest(body=body, written=opened, ending=ending if stop and how != "json" else "", guided=how)


def _guiding(
    served: Served, text: ProbeText, tools: Sequence[ToolSchema], guided: Guided
) -> tuple[Guided, dict[str, Any]]:
    """Return how the answer is held to the tools' schemas, and the fields that say so."""
    if guided in ("auto", "grammar") and isinstance(text, LocalText):
        lark = text.grammar(tools)
        if lark is not None and (fields := served.grammar_fields(lark)):
            return "grammar", fields
    if guided in ("auto", "json") and (fields := served.json_fields(call_schema(tools))):
        return "json", fields
    return "off", {}


def json_lead_in(request: ProbeRequest, text: ProbeText) -> str:
    """Return what must still be written before an answer in plain JSON: the lead-in, unless the suffix wrote it."""
    return text.form.lead_in if request.guided == "json" and not text.opens_call else ""


def read_answer(request: ProbeRequest, answer: Mapping[str, Any], text: ProbeText) -> ProbeResult:
    """Return what a probe's answer says; not completed where it is cut off, can't be read, or has no probabilities."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    said = str(choice.get("text") or "")
    pieces = list(_pieces(choice.get("logprobs")))
    usage = answer.get("usage") or {}
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    tokens = tokens if isinstance(tokens, int) else len(pieces)
    unread = ProbeResult(call=None, confidence=0.0, tokens=tokens, completed=False)
    if choice.get("finish_reason") != "stop" or not pieces:
        return unread
    if not said.strip():
        return ProbeResult(call=None, confidence=_probability(pieces, None), tokens=tokens)
    call, chosen = _call(request, said, text.form)
    if call is None:
        return unread
    return ProbeResult(call=call, confidence=_probability(pieces, chosen), tokens=tokens)


def _call(request: ProbeRequest, said: str, form: CallFormat) -> tuple[ToolCall | None, int]:
    """Return the call that an answer is, and how many of its characters hold choices."""
    if request.guided == "grammar":
        whole = said
        if request.ending and not said.endswith(form.closing):
            # The stop string may be left in or cut off, by server and version.
            whole = said.removesuffix(form.closing[:2]) + form.closing
        return form.read(whole), len(whole) - len(form.closing)
    body = said.lstrip().removeprefix(form.lead_in).lstrip()
    for candidate in (body, body + "}"):
        try:
            value, end = json.JSONDecoder().raw_decode(candidate)
        except (ValueError, RecursionError):
            continue
        call = as_call(value, candidate)
        start = len(said) - len(body)
        return (call, start + end) if isinstance(call, ToolCall) else (None, 0)
    return None, 0


def _probability(pieces: Sequence[tuple[str, float]], characters: int | None) -> float:
    """Return the product of the probabilities of the tokens that begin within the first `characters` (None: of all)."""
    total, position = 0.0, 0
    for piece, logprob in pieces:
        if characters is not None and position >= characters:
            break
        total += logprob
        position += len(piece)
    return min(1.0, math.exp(total))


def _pieces(logprobs: Any) -> Iterator[tuple[str, float]]:
    """Yield an answer's tokens with their log-probabilities, in either form that servers have."""
    if not isinstance(logprobs, dict):
        return
    if isinstance(logprobs.get("content"), list):
        for item in logprobs["content"]:
            if isinstance(item, dict) and isinstance(item.get("logprob"), int | float):
                yield str(item.get("token", "")), float(item["logprob"])
        return
    tokens, values = logprobs.get("tokens") or (), logprobs.get("token_logprobs") or ()
    for token, value in zip(tokens, values, strict=False):
        if isinstance(value, int | float):
            yield str(token), float(value)
