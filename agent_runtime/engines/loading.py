"""Loads a model with everything that turns messages into its tokens and its tokens into messages.

Everything here blocks and runs in a worker thread.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER
from transformers.utils.chat_parsing.response_templates import load_response_template

from agent_runtime.decoding.errors import DecodingError
from agent_runtime.decoding.errors import ModelUnsupported as NoExecutor
from agent_runtime.decoding.grammar import Grammar, GrammarTokenizer, compile_grammar
from agent_runtime.decoding.requests import CallGrammar, Constraint, Sampling
from agent_runtime.decoding.worker import ModelWorker
from agent_runtime.errors import AgentRuntimeError, EngineFailed, ModelNotFound, ModelUnsupported, UsageError
from agent_runtime.speculator.errors import SpeculatorError
from agent_runtime.speculator.grammar import call_grammar
from agent_runtime.tools.values import ToolCall

from .drafting import DraftSettings, drafts_for
from .formats import built_in_prefix, built_in_template
from .gguf import converted
from .locate import LoadSettings, Location, locate
from .parsing import MessageParser
from .speculator_mode import SpeculatorMode
from .template import ChatTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agent_runtime.decoding.drafts.base import DraftKind

    from .base import ToolSchema

_SMALLEST_BUDGET = 256 << 20
_LARGEST_CPU_BUDGET = 4 << 30


@dataclass(kw_only=True)
class LoadedModel:
    """A model on its thread, and what speaks its language. Shared by all sessions of an engine."""

    name: str
    worker: ModelWorker
    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    speculator: SpeculatorMode
    eos_ids: frozenset[int]
    context_tokens: int | None
    sampling: Sampling
    """The model's own generation defaults."""
    drafts: frozenset[DraftKind]
    """Who drafts the agent's own tokens."""
    shares_drafts: bool
    """Whether a conversation may draft from earlier ones of the same agent."""
    _response_template: Any
    _prefix: str
    _bare_calls: bool
    _grammar_tokenizer: GrammarTokenizer | None = None
    _grammars: dict[str, Grammar] = field(default_factory=dict)
    _grammar_lock: threading.Lock = field(default_factory=threading.Lock)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens included."""
        return decode(self.tokenizer, ids)

    def as_written(self, answer: Sequence[int]) -> tuple[int, ...]:
        """Return a probe's answer (a call's tokens) as the agent would write it, to the end of the message."""
        lead_in = self._ids(self.speculator.form.lead_in) if self.speculator.opens_call else ()
        return (*lead_in, *answer, *self._end)

    def as_call(self, call: ToolCall) -> tuple[int, ...]:
        """Return a call's tokens as the template writes it, to the end of the message."""
        return (*self._ids(self.speculator.form.write(call)), *self._end)

    def call_grammar(self, grammar: Grammar) -> CallGrammar:
        """Return the grammar of a probe's answer as it stands right after a call's lead-in."""
        opener = self._ids(self.speculator.form.lead_in)

        def start() -> Constraint:
            state = grammar.start()
            for token in () if self.speculator.opens_call else opener:
                state.advance(token)
            return state

        return CallGrammar(opener=opener, start=start)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    @property
    def _end(self) -> tuple[int, ...]:
        eos = self.tokenizer.eos_token_id
        return (eos,) if isinstance(eos, int) and eos in self.eos_ids else ()

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> MessageParser:
        """Return a parser for the model's next message."""
        names = frozenset(str(tool["function"]["name"]) for tool in tools)
        bare = names if self._bare_calls and names else None
        return MessageParser(self._response_template, prefix=self._prefix, tools=tools, bare=bare)

    def known_grammar(self, tools: Sequence[ToolSchema]) -> Grammar | None:
        """Return the grammar of these tools if it is compiled already."""
        return self._grammars.get(_key(tools))

    def grammar(self, tools: Sequence[ToolSchema]) -> Grammar:
        """Return the compiled grammar of a probe's answer; compiled once per set of tools.

        Raises:
            EngineFailed: these tools or this tokenizer can't have one.
        """
        named = [(tool.name, tool.parameters) for tool in tools]
        key = _key(tools)
        with self._grammar_lock:
            if key not in self._grammars:
                try:
                    source = call_grammar(
                        named,
                        form=self.speculator.form,
                        marks=self.tokenizer.get_added_vocab(),
                        no_call=self.speculator.no_call,
                        opened=self.speculator.opens_call,
                    )
                    if self._grammar_tokenizer is None:
                        self._grammar_tokenizer = GrammarTokenizer(
                            self.tokenizer,  # type: ignore[arg-type]
                            vocab_size=self.worker.vocab_size,
                            stop_ids=sorted(self.eos_ids | {self.speculator.no_call}),
                        )
                    self._grammars[key] = compile_grammar(self._grammar_tokenizer, source)
                except (SpeculatorError, DecodingError) as error:
                    raise EngineFailed(f"{self.name} can't guess calls of these tools: {error}") from error
            return self._grammars[key]


def _key(tools: Sequence[ToolSchema]) -> str:
    return json.dumps([(tool.name, tool.parameters) for tool in tools], default=dict)


def load(model: str | Path, settings: LoadSettings) -> LoadedModel:
    """Load a model and start its thread.

    Raises:
        ModelNotFound: there is no such model, on this machine or on the hub.
        ModelUnsupported: it can't run an agent.
        UsageError: a setting can't be met.
        EngineFailed: loading broke for another reason.
    """
    location = locate(model)
    device = _device(settings.device)
    if location.gguf_file is not None:
        folder = converted(location, revision=settings.revision)
        location = Location(name=location.name, source=str(folder), is_local=True)
        settings = replace(settings, revision=None)
    with _named_errors(location), _quiet(location):
        hub: dict[str, Any] = {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}
        config = AutoConfig.from_pretrained(location.source, **hub)
        tokenizer = AutoTokenizer.from_pretrained(location.source, **hub)
        tokenizer.model_max_length = VERY_LARGE_INTEGER  # the session checks the length, with a remedy
        template = ChatTemplate(tokenizer, name=location.name)
        dtype = _dtype(settings.dtype, device)
        network = AutoModelForCausalLM.from_pretrained(location.source, config=config, dtype=dtype, **hub)
        worker = _worker(network, tokenizer, settings, device, location.source)
    return assemble(location.name, network, tokenizer, template, worker, settings.drafting)


def assemble(
    name: str,
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    template: ChatTemplate,
    worker: ModelWorker,
    drafting: DraftSettings,
) -> LoadedModel:
    """Put a running model together with its template, parser and speculator mode."""
    eos_ids = _eos_ids(network, tokenizer)
    if not eos_ids:
        worker.close()
        raise ModelUnsupported(f"{name} names no end-of-sequence token, so its messages would never end")
    declared = getattr(tokenizer, "response_template", None)
    prefix = template.sample_prompt if declared else built_in_prefix(template.generation_prompt)
    return LoadedModel(
        name=name,
        worker=worker,
        tokenizer=tokenizer,
        template=template,
        speculator=SpeculatorMode.of(tokenizer, template, eos_ids),
        eos_ids=eos_ids,
        context_tokens=_context_tokens(network),
        sampling=_sampling(network),
        drafts=frozenset(drafting.kinds),
        shares_drafts=drafting.shared,
        _response_template=load_response_template(declared or built_in_template(template.source)),
        _prefix=prefix,
        _bare_calls=declared is None,
    )


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of ids, control tokens included; an incomplete last character gives U+FFFD."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return str(backend.decode(list(ids), skip_special_tokens=False))
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _worker(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: LoadSettings,
    device: torch.device,
    source: str,
) -> ModelWorker:
    network.to(device)  # type: ignore[arg-type]
    drafts = drafts_for(network, tokenizer, source, settings.drafting)
    return ModelWorker(
        network,
        detokenize=lambda ids: decode(tokenizer, ids),
        prefill_chunk=settings.prefill_chunk,
        max_rows=settings.max_rows,
        kv_budget_bytes=settings.kv_budget if settings.kv_budget is not None else _kv_budget(device),
        deterministic=settings.deterministic,
        executor=settings.executor,
        quantise=settings.quantise,
        drafts=drafts,
        draft_tokens=settings.drafting.tokens,
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"there is no device {name!r}: give auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("no CUDA device can be used here: take device='cpu', or install torch with CUDA and a driver")
    return device


def _dtype(name: str, device: torch.device) -> Any:
    """Return the weights' type. `auto`: the checkpoint's own on a GPU; fp32 on a CPU, where it is exact and as fast."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"there is no dtype {name!r}: give auto, float32, bfloat16 or float16")
    return dtype


def _kv_budget(device: torch.device) -> int:
    """Return the bytes that keys and values may take: half of what a GPU has left, an eighth of a machine's memory."""
    if device.type == "cuda":
        return max(_SMALLEST_BUDGET, torch.cuda.mem_get_info(device)[0] // 2)
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        memory = 8 << 30
    return min(_LARGEST_CPU_BUDGET, max(_SMALLEST_BUDGET, memory // 8))


def _eos_ids(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    generation = getattr(network, "generation_config", None)
    for ids in (getattr(generation, "eos_token_id", None), network.config.eos_token_id, tokenizer.eos_token_id):
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()


def _context_tokens(network: PreTrainedModel) -> int | None:
    config = network.config.get_text_config(decoder=True)
    for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _sampling(network: PreTrainedModel) -> Sampling:
    """Return the model's own defaults; what they leave open is as in `generate`."""
    generation = network.generation_config
    penalty = generation.repetition_penalty or 1.0
    if not generation.do_sample:
        return Sampling(repetition_penalty=penalty)
    return Sampling(
        temperature=1.0 if generation.temperature is None else generation.temperature,
        top_p=1.0 if generation.top_p is None else generation.top_p,
        top_k=50 if generation.top_k is None else generation.top_k,
        min_p=generation.min_p or 0.0,
        repetition_penalty=penalty,
    )


@contextmanager
def _named_errors(location: Location) -> Iterator[None]:
    """Turn what loading raises into one line that says what to do."""
    name = location.name
    try:
        yield
    except (AgentRuntimeError, KeyboardInterrupt):
        raise
    except NoExecutor as error:
        raise ModelUnsupported(f"{name} can't be run: {error}") from error
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if "trust_remote_code" in str(error):
            raise UsageError(
                f"{name} needs code from its own repository: pass trust_remote_code=True if you have read and trust it"
            ) from error
        if isinstance(error, OSError) and not location.is_local:
            raise ModelNotFound(
                f"{name} is neither on this machine nor could it be fetched from the hub: check the name and the "
                f"network, or give a folder ({reason})"
            ) from error
        if isinstance(error, OSError | json.JSONDecodeError):
            raise ModelNotFound(f"the model in {location.source} is incomplete or damaged: {reason}") from error
        if isinstance(error, ValueError | KeyError | ImportError):
            raise ModelUnsupported(f"{name} can't be loaded: {reason}") from error
        raise EngineFailed(f"loading {name} failed: {type(error).__name__}: {reason}") from error


@contextmanager
def _quiet(location: Location) -> Iterator[None]:
    """Show no progress bars for files that are here already."""
    bars: Any = transformers.utils.logging
    if not location.is_local or not bars.is_progress_bar_enabled():
        yield
        return
    bars.disable_progress_bar()
    try:
        yield
    finally:
        bars.enable_progress_bar()
