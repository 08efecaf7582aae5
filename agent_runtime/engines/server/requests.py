"""Conversations as requests: messages in the common form, sampling, and control tokens made harmless."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_runtime.engines.template import as_chat
from agent_runtime.errors import UsageError
from agent_runtime.traces.messages import Message

from .served import Served

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling

_COMMON_MARKS = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|</?(?:think|tool_call|tool_calls|tool_response|tools|s)>"
    r"|<(?:start_of_turn|end_of_turn|bos|eos|pad)>|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]"
)
"""How control tokens of common models look, for models whose tokenizer isn't here."""


def marks_pattern(marks: Iterable[str] | None) -> re.Pattern[str]:
    """Return what finds a model's control tokens in text; without its list, those of common models."""
    if marks is None:
        return _COMMON_MARKS
    longest_first = sorted(filter(None, marks), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def chat_messages(messages: Sequence[Message], marks: re.Pattern[str]) -> list[dict[str, Any]]:
    """Return the messages in the common form.

    Control tokens in what others wrote (the user, tools) get a zero-width space inside, since a server would read them
    as its own. What the model wrote stays as it is.
    """
    chat = as_chat(messages)
    for message in chat:
        if message["role"] != "assistant":
            message["content"] = harmless(message["content"], marks)
        if "reasoning_content" in message:
            message["reasoning"] = message["reasoning_content"]  # vLLM's newer name; each server reads its own
        for call in message.get("tool_calls", ()):
            function = call["function"]
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return chat


def harmless(text: str, marks: re.Pattern[str]) -> str:
    """Return text whose control tokens are text only."""
    return marks.sub(lambda found: found[0][0] + "\u200b" + found[0][1:], text)


def harmless_schema(value: Any, marks: re.Pattern[str]) -> Any:
    """Return a tool's description with every string in it harmless."""
    if isinstance(value, str):
        return harmless(value, marks)
    if isinstance(value, Mapping):
        return {key: harmless_schema(item, marks) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [harmless_schema(item, marks) for item in value]
    return value


def chat_body(
    served: Served,
    *,
    model: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    sampling: Sampling | None,
    max_tokens: int,
) -> dict[str, Any]:
    """Return the request for the model's next message, as a stream.

    Raises:
        UsageError: the server has no such sampling setting.
    """
    limit = "max_completion_tokens" if "max_tokens" in served.refused else "max_tokens"
    if "reasoning" in served.refused:
        messages = [
            {name: value for name, value in message.items() if not name.startswith("reasoning")} for message in messages
        ]
    body: dict[str, Any] = {"model": model, "messages": list(messages), "stream": True, limit: max_tokens}
    if tools:
        body["tools"] = list(tools)
        if served.kind != "transformers":  # which knows no other choice
            body["tool_choice"] = "auto" if served.parses_calls else "none"
    return body | _sampling(served, sampling) | served.chat_fields()


def _sampling(served: Served, sampling: Sampling | None) -> dict[str, Any]:
    """Return sampling settings; without any, the server takes the model's own defaults."""
    if sampling is None:
        return {}
    fields: dict[str, Any] = {"temperature": sampling.temperature}
    if sampling.top_p < 1 and sampling.temperature:
        fields["top_p"] = sampling.top_p
    if sampling.seed is not None and "seed" not in served.refused:
        fields["seed"] = sampling.seed
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    wanted: dict[str, float | int] = {}
    if sampling.temperature:  # greedy decoding looks at no other token
        wanted |= {"top_k": sampling.top_k} if sampling.top_k else {}
        wanted |= {"min_p": sampling.min_p} if sampling.min_p else {}
    if sampling.repetition_penalty != 1:
        wanted["repetition_penalty"] = sampling.repetition_penalty
    found = served.sampling_fields(**wanted) if wanted else {}
    if len(found) < len(wanted):
        names = ", ".join(wanted)
        raise UsageError(
            f"the server at {served.endpoint.place} doesn't take {names}: leave that out of Sampling(...), "
            "or take a server that does (vLLM, SGLang, llama.cpp)"
        )
    return fields | found
