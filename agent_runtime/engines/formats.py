"""How models without a declared response template write thinking and calls, in the library's own template form."""

from __future__ import annotations

from typing import Any

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"

_THINKING = {
    "open_pattern": r"<think>\n?",
    "close_pattern": r"\n?</think>\n?",
    "content": "text",
    "repeats": True,
    "join": "\n",
}
_START = "<|message|>"
"""The built-in templates are given only what the prompt wrote of the message itself, behind this anchor."""

HERMES: dict[str, Any] = {
    "version": 1,
    "start_anchor": _START,
    "fields": {
        "reasoning_content": _THINKING,
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}
"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes, Qwen2.5 and Qwen3 write it."""

TAGGED: dict[str, Any] = {
    "version": 1,
    "start_anchor": _START,
    "fields": {
        "reasoning_content": _THINKING,
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\s]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\s]+)>\n?(?P<value>.*?)\n?</parameter>"},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"content": "text"},
    },
}
"""`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`, as Qwen3-Coder and Qwen3.5."""


def built_in_template(chat_template: str) -> dict[str, Any]:
    """Return the response template for a model whose tokenizer declares none, judged by its chat template."""
    return TAGGED if "<function=" in chat_template and "<parameter=" in chat_template else HERMES


def built_in_prefix(generation_prompt: str) -> str:
    """Return what the built-in templates are told of a generation prompt: whether it left the thinking open."""
    opened = generation_prompt.rfind(THINK_OPEN)
    open_still = opened >= 0 and generation_prompt.find(THINK_CLOSE, opened) < 0
    return _START + (generation_prompt[opened:] if open_still else "")
