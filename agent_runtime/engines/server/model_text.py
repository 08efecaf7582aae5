"""How a served model reads and writes, from its own tokenizer on this machine, or from the server's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agent_runtime.decoding.requests import Sampling
from agent_runtime.engines.base import ToolSchema
from agent_runtime.engines.formats import HERMES, THINK_CLOSE, THINK_OPEN, built_in_prefix, built_in_template
from agent_runtime.errors import ModelNotFound, ModelUnsupported
from agent_runtime.speculator.errors import SpeculatorError
from agent_runtime.speculator.grammar import CallFormat, call_grammar
from agent_runtime.traces.messages import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from agent_runtime.engines.parsing import MessageParser
    from agent_runtime.engines.speculator_mode import SpeculatorMode
    from agent_runtime.engines.template import ChatTemplate


class ProbeText(Protocol):
    """What a probe needs to know of a model's language."""

    @property
    def form(self) -> CallFormat:
        """How the model writes a call."""
        ...

    @property
    def opens_call(self) -> bool:
        """Whether the suffix has already written the call's lead-in."""
        ...

    @property
    def no_call(self) -> int | None:
        """The token that says "no call"; None where it isn't known."""
        ...

    async def suffix(self, written: str) -> tuple[int, ...]:
        """Return the ids that begin speculator mode after `written`, the text of the message so far."""
        ...

    async def ids_of(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text that goes on where another ended."""
        ...


@dataclass(kw_only=True)
class LocalText:
    """A model's tokenizer, template and speculator mode, loaded here. Loading and rendering block."""

    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    speculator: SpeculatorMode
    eos_ids: frozenset[int]
    sampling: Sampling | None
    """The model's own generation defaults, where it ships them."""
    _response_template: Any
    _prefix: str
    _bare_calls: bool
    _grammars: dict[str, str | None] = field(default_factory=dict)

    @property
    def form(self) -> CallFormat:
        """How the model writes a call."""
        return self.speculator.form

    @property
    def opens_call(self) -> bool:
        """Whether the suffix has already written the call's lead-in."""
        return self.speculator.opens_call

    @property
    def no_call(self) -> int | None:
        """The token that says "no call"."""
        return self.speculator.no_call

    async def suffix(self, written: str) -> tuple[int, ...]:
        """Return the ids that begin speculator mode after `written`, the text of the message so far."""
        return self.speculator.suffix(written)

    async def ids_of(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text that goes on where another ended."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False)) if text else ()

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Return the ids of the conversation and of the beginning of the model's next message.

        Raises:
            EngineFailed: the template refuses the conversation.
        """
        return self.template.render(messages, tools)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens included."""
        from agent_runtime.engines.loading import decode

        return decode(self.tokenizer, ids)

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> MessageParser:
        """Return a parser for the model's next message."""
        from agent_runtime.engines.parsing import MessageParser

        bare = _names(tools) if self._bare_calls else None
        return MessageParser(self._response_template, prefix=self._prefix, tools=tools, bare=bare)

    def grammar(self, tools: Sequence[ToolSchema]) -> str | None:
        """Return the grammar (Lark) of a probe's answer, its control tokens by id; None if these tools have none."""
        key = json.dumps([(tool.name, tool.parameters) for tool in tools], default=dict)
        if key not in self._grammars:
            self._grammars[key] = None
            with suppress(SpeculatorError):
                self._grammars[key] = call_grammar(
                    [(tool.name, tool.parameters) for tool in tools],
                    form=self.form,
                    marks=self.tokenizer.get_added_vocab(),
                    no_call=self.speculator.no_call,
                    opened=self.opens_call,
                )
        return self._grammars[key]


def load_text(source: str, *, name: str, here_only: bool) -> LocalText:
    """Load a model's tokenizer, and nothing of its weights.

    Args:
        source: Folder or hub id.
        name: The model's name, for errors.
        here_only: Fetch nothing from the hub.

    Raises:
        ModelNotFound: there is no such tokenizer.
        ModelUnsupported: it can't hold a conversation.
    """
    from transformers import AutoTokenizer, GenerationConfig
    from transformers.tokenization_utils_base import VERY_LARGE_INTEGER
    from transformers.utils.chat_parsing.response_templates import load_response_template

    from agent_runtime.engines.speculator_mode import SpeculatorMode
    from agent_runtime.engines.template import ChatTemplate

    hub: dict[str, Any] = {"local_files_only": True} if here_only else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **hub)
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelNotFound(
            f"there is no tokenizer of {name} at {source}: give another with ?tokenizer= ({reason})"
        ) from error
    tokenizer.model_max_length = VERY_LARGE_INTEGER  # the server knows its own limit
    generation: GenerationConfig | None = None
    with suppress(OSError, ValueError):
        generation = GenerationConfig.from_pretrained(source, **hub)
    eos_ids = _eos_ids(generation, tokenizer)
    if not eos_ids:
        raise ModelUnsupported(f"{name} names no end-of-sequence token, so its messages would never end")
    template = ChatTemplate(tokenizer, name=name)
    declared = getattr(tokenizer, "response_template", None)
    return LocalText(
        tokenizer=tokenizer,
        template=template,
        speculator=SpeculatorMode.of(tokenizer, template, eos_ids),
        eos_ids=eos_ids,
        sampling=None if generation is None else _greedy_unless_sampled(generation),
        _response_template=load_response_template(declared or built_in_template(template.source)),
        _prefix=template.sample_prompt if declared else built_in_prefix(template.generation_prompt),
        _bare_calls=declared is None,
    )


def is_model_folder(path: str) -> bool:
    """Tell whether a path that a server named is a model's folder on this machine too."""
    return (Path(path) / "tokenizer_config.json").is_file()


def text_parser(tools: Sequence[Mapping[str, Any]]) -> MessageParser:
    """Return a parser for messages of a model whose own form isn't known: marks and bare calls of the common form."""
    from agent_runtime.engines.parsing import MessageParser

    return MessageParser(HERMES, prefix=built_in_prefix(""), tools=tools, bare=_names(tools) or None)


def call_schema(tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """Return the JSON Schema of one call of one of `tools`."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": {"type": "object"} | dict(tool.parameters)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def common_suffix(written: str, form: CallFormat) -> str:
    """Return the text that begins speculator mode in the common form: thinking is ended, a call is opened."""
    if written.rfind(THINK_OPEN) > written.rfind(THINK_CLOSE):
        return f"\n{THINK_CLOSE}\n\n{form.lead_in}"
    return form.lead_in if not written or written.endswith("\n") else f"\n{form.lead_in}"


def _names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(str(tool["function"]["name"]) for tool in tools)


def _eos_ids(generation: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    for ids in (getattr(generation, "eos_token_id", None), tokenizer.eos_token_id):
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()


def _greedy_unless_sampled(generation: Any) -> Sampling | None:
    """Return greedy decoding for a model whose defaults don't sample: a server may take temperature 1 for them."""
    if generation.do_sample:
        return None  # servers read the rest of the file themselves
    return Sampling(repetition_penalty=generation.repetition_penalty or 1.0)


class ServerText:
    """The server's own tokenizer, for models whose tokenizer isn't on this machine.

    The model's form of a call can't be read from the server, so the common one is taken.

    Args:
        tokenize: Asks the server for the ids of a text.
    """

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self._known: dict[str, tuple[int, ...]] = {}
        self.form = CallFormat()
        self.opens_call = True
        self.no_call: int | None = None

    async def suffix(self, written: str) -> tuple[int, ...]:
        """Return the ids that begin speculator mode after `written`, the text of the message so far."""
        text = common_suffix(written, self.form)
        if text not in self._known:
            self._known[text] = await self._tokenize(text)
        return self._known[text]

    async def ids_of(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text that goes on where another ended."""
        return await self._tokenize(text) if text else ()


class Tokenize(Protocol):
    """Asks for the ids of a text."""

    async def __call__(self, text: str) -> tuple[int, ...]:
        """Return the ids.

        Raises:
            EngineFailed: the server doesn't answer.
        """
        ...
