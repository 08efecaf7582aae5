"""Which drafts a local model gets, and what they need: a draft model, trained heads, the layers that are kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from agent_runtime.decoding.drafts.base import Draft, DraftKind
from agent_runtime.errors import ModelUnsupported, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from agent_runtime.decoding.executor import Executor
    from agent_runtime.decoding.worker import DraftFactory

KINDS: tuple[DraftKind, ...] = get_args(DraftKind)
FREE: tuple[DraftKind, ...] = ("call", "lookup", "suffix", "grammar")
"""Drafts that need nothing but the text; the default."""
PROBE: frozenset[DraftKind] = frozenset({"lookup", "suffix"})
"""Drafts of a probe's row; what its grammar forces comes of itself."""
HEADS = "medusa/heads.safetensors"
"""Where a model's folder keeps its Medusa heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """How tokens are drafted; `LocalEngine` says what each setting means."""

    kinds: tuple[DraftKind, ...] = FREE
    tokens: int | None = None
    model: str | Path | None = None
    sampled: bool = False
    quantise: Literal["int8", "4bit"] | None = None
    layers: tuple[int, ...] = ()
    heads: str | Path | None = None
    shared: bool = False
    texts: tuple[tuple[int, ...], ...] = field(default=(), repr=False)


def draft_kinds(drafts: Literal["auto", "none"] | Collection[str], *, with_model: bool) -> tuple[DraftKind, ...]:
    """Return the kinds that a setting names; `auto` = those that need nothing, and a draft model if there is one.

    Raises:
        UsageError: there is no such kind.
    """
    if drafts == "auto":
        return (*FREE, "model") if with_model else FREE
    names = [] if drafts == "none" else [drafts] if isinstance(drafts, str) else list(drafts)
    unknown = sorted(set(names) - set(KINDS))
    if unknown:
        raise UsageError(f"there is no draft {unknown[0]!r}: give auto, none, or some of {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in names)


def drafts_for(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, settings: DraftSettings
) -> list[Draft | DraftFactory]:
    """Return the drafts of a loaded model, or what makes them once its executor is there.

    Those that need nothing are always among them: probes use them whatever the agent's own rows do.

    Raises:
        DraftUnsupported: a draft model or its heads don't fit.
        ModelUnsupported: a draft needs something that this model has not.
    """
    kinds = [kind for kind in KINDS if kind in settings.kinds or kind in FREE]
    return [_draft(kind, network, tokenizer, source, settings) for kind in kinds]


def _draft(
    kind: DraftKind,
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    settings: DraftSettings,
) -> Draft | DraftFactory:
    parameter = next(network.parameters())
    match kind:
        case "call":
            from agent_runtime.decoding.drafts.call import CallDraft

            return CallDraft()
        case "grammar":
            from agent_runtime.decoding.drafts.grammar import GrammarDraft

            return GrammarDraft()
        case "lookup":
            from agent_runtime.decoding.drafts.lookup import LookupDraft

            return LookupDraft()
        case "suffix":
            from agent_runtime.decoding.drafts.suffix import SuffixDraft

            return SuffixDraft(scope="agent" if settings.shared else "run")
        case "model":
            from agent_runtime.decoding.drafts.model import ModelDraft

            if settings.model is None:
                raise ModelUnsupported("the model draft needs a draft model: pass draft_model=, a folder or a hub id")
            return ModelDraft.load(
                settings.model,
                tokenizer=tokenizer,
                device=parameter.device,
                dtype=parameter.dtype,
                quantise=settings.quantise,
                sampled=settings.sampled,
                vocab_size=_vocab_size(network),
            )
        case "medusa":
            from agent_runtime.decoding.drafts.medusa import MedusaDraft, MedusaHeads

            path = Path(settings.heads) if settings.heads is not None else Path(source) / HEADS
            if not path.is_file():
                raise ModelUnsupported(f"the medusa draft needs trained heads, and there is no {path}: pass heads=")
            head: Any = network
            output = head.get_output_embeddings().weight.detach()
            return MedusaDraft(MedusaHeads.load(path, output, parameter.device, parameter.dtype))
        case "layers":
            return _layers(settings)


def _layers(settings: DraftSettings) -> DraftFactory:
    def make(executor: Executor) -> Draft:
        from platformdirs import user_cache_path

        from agent_runtime.decoding.drafts.layers import LayersDraft, stored_layers

        folder = user_cache_path("agent-runtime") / "layers"
        kept = settings.layers or stored_layers(executor, settings.texts, folder)
        if not kept:
            raise ModelUnsupported(
                "the layers draft doesn't know yet which layers this model can miss: run 'agent bench decode' with it "
                "once, which searches and keeps them, or pass layers="
            )
        return LayersDraft(executor, kept)

    return make


def _vocab_size(network: PreTrainedModel) -> int:
    loaded: Any = network
    return int(loaded.get_output_embeddings().weight.shape[0])
