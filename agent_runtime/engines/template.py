"""Messages to token ids, by the model's own chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_runtime.errors import EngineFailed, ModelUnsupported
from agent_runtime.speculator.grammar import CallFormat
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage

from .formats import THINK_CLOSE, THINK_OPEN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SAMPLE = ToolCall("NAME", {"KEY1": "V1", "KEY2": "V2"})
_SAMPLE_TOOL = {
    "type": "function",
    "function": {
        "name": "NAME",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"KEY1": {"type": "string"}, "KEY2": {"type": "string"}}},
    },
}
_SAMPLE_CALL = re.compile(
    r'(?P<before>\{\s*"name":\s*)"NAME"(?P<between>,\s*"(?:arguments|parameters)":\s*)'
    r'\{"KEY1"(?P<key>:\s*)"V1"(?P<item>,\s*)"KEY2":\s*"V2"\}'
)


class ChatTemplate:
    """Renders conversations for one model.

    Control tokens are written by the template alone: where a message, a tool's result or a tool's description holds
    the text of one, it is encoded as ordinary text.

    Raises:
        ModelUnsupported: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, name: str) -> None:
        self.tokenizer = tokenizer
        self._name = name
        template = tokenizer.chat_template
        if not template:
            raise ModelUnsupported(
                f"{name} has no chat template, so it can't hold a conversation: take an instruction-tuned model, "
                "or set `chat_template` in its tokenizer_config.json"
            )
        self.source = template if isinstance(template, str) else "\n".join(template.values())
        self._sanitize = self._encode_marked
        opening = [{"role": "user", "content": "x"}]
        self.sample_prompt = self._text(opening, add_generation_prompt=True)
        """A short conversation up to where the model would go on."""
        without = self._text(opening)
        self.generation_prompt = (
            self.sample_prompt[len(without) :] if self.sample_prompt.startswith(without) else self.sample_prompt
        )
        """What the template writes to begin the model's message."""

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Return the ids of the conversation and of the beginning of the model's next message.

        Raises:
            EngineFailed: the template refuses the conversation.
        """
        try:
            return self._sanitize(as_chat(messages), [dict(tool) for tool in tools] or None)
        except Exception as error:
            if self._sanitize == self._encode_marked and isinstance(error, ValueError | NotImplementedError):
                self._sanitize = self._encode_broken
                return self.render(messages, tools)
            raise EngineFailed(f"the chat template of {self._name} refuses the conversation: {error}") from error

    def call_format(self) -> CallFormat:
        """Return how the template writes a call; the common form where it isn't one JSON object."""
        chat = as_chat([UserMessage("x"), AssistantMessage(calls=(_SAMPLE,))])
        try:
            text = self._text(chat, tools=[_SAMPLE_TOOL])
            before = self._text(chat[:1], tools=[_SAMPLE_TOOL], add_generation_prompt=True)
        except Exception:  # a template may refuse what it likes; only the form is unknown then
            return CallFormat()
        written = text.removeprefix(before)
        found = _SAMPLE_CALL.search(written)
        if found is None or written == text:
            return CallFormat()
        closing = written[found.end() :]
        for end in filter(None, (self.tokenizer.eos_token, "<|im_end|>")):
            closing = closing.partition(str(end))[0]
        return CallFormat(
            lead_in=written[: found.start()].rpartition(THINK_CLOSE)[2].lstrip(),
            before_name=found["before"],
            between=found["between"],
            closing=closing,
            item_separator=found["item"],
            key_separator=found["key"],
        )

    def skip_thinking(self) -> str:
        """Return what the template adds to the beginning of a message that shall not think; often nothing."""
        try:
            prompt = self._text([{"role": "user", "content": "x"}], add_generation_prompt=True, enable_thinking=False)
        except Exception:
            return ""
        return prompt[len(self.sample_prompt) :] if prompt.startswith(self.sample_prompt) else ""

    def _text(self, chat: list[dict[str, Any]], **settings: Any) -> str:
        return str(self.tokenizer.apply_chat_template(chat, tokenize=False, **settings))

    def _encode_marked(self, chat: list[dict[str, Any]], tools: list[Any] | None) -> tuple[int, ...]:
        """Render with the library's own treatment of control tokens in the input."""
        ids = self.tokenizer.apply_chat_template(
            chat, tools=tools, add_generation_prompt=True, sanitize_control_tokens=True, return_dict=False
        )
        return tuple(ids)

    def _encode_broken(self, chat: list[dict[str, Any]], tools: list[Any] | None) -> tuple[int, ...]:
        """Render for tokenizers that can't do that: control tokens in the input get a zero-width space inside."""
        marks = sorted((str(mark) for mark in self.tokenizer.get_added_vocab()), key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")
        ids = self.tokenizer.apply_chat_template(
            _each_string(chat, lambda text: pattern.sub(_broken, text)),
            tools=_each_string(tools, lambda text: pattern.sub(_broken, text)),
            add_generation_prompt=True,
            return_dict=False,
        )
        return tuple(ids)


def as_chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages in the form that chat templates take. Calls get ids, since some templates demand them."""
    chat: list[dict[str, Any]] = []
    made = 0  # calls before the latest assistant message
    latest = 0  # calls in it
    for message in messages:
        match message:
            case SystemMessage():
                chat.append({"role": "system", "content": message.content})
            case UserMessage():
                chat.append({"role": "user", "content": message.content})
            case AssistantMessage():
                made, latest = made + latest, len(message.calls)
                chat.append(_assistant(message, made))
            case ToolMessage():
                content = {"role": "tool", "name": message.name, "content": message.content}
                chat.append(content | {"tool_call_id": _call_id(made + message.index)})
    return chat


def _assistant(message: AssistantMessage, made: int) -> dict[str, Any]:
    broken = [call.text for call in message.calls if isinstance(call, MalformedCall)]
    content = "\n".join(filter(None, [message.text, *(f"<tool_call>\n{text}\n</tool_call>" for text in broken)]))
    chat: dict[str, Any] = {"role": "assistant", "content": content}
    if message.thinking:
        chat["reasoning_content"] = message.thinking
    calls = list(_tool_calls(message, made))
    if calls:
        chat["tool_calls"] = calls
    return chat


def _tool_calls(message: AssistantMessage, made: int) -> Iterator[dict[str, Any]]:
    for index, call in enumerate(message.calls):
        if isinstance(call, ToolCall):
            function = {"name": call.name, "arguments": dict(call.arguments)}
            yield {"type": "function", "id": _call_id(made + index), "function": function}


def _call_id(number: int) -> str:
    """Return nine letters and digits, the strictest form that templates ask for."""
    return f"call{number:05d}"


def thinks_at(generation_prompt: str, text: str) -> bool:
    """Tell whether a message that goes `generation_prompt + text` so far is inside its thinking."""
    written = generation_prompt + text
    return written.rfind(THINK_OPEN) > written.rfind(THINK_CLOSE)


def _broken(match: re.Match[str]) -> str:
    return match[0][0] + "\u200b" + match[0][1:]


def _each_string(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _each_string(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_each_string(item, change) for item in value]
    return value
