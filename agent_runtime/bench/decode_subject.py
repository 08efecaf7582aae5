"""The model under test twice: on a worker that has every draft, and as the library loads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agent_runtime.decoding.lean import FAMILIES
from agent_runtime.engines.drafting import FREE, HEADS, DraftSettings
from agent_runtime.engines.gguf import converted
from agent_runtime.engines.loading import LoadedModel, load
from agent_runtime.engines.locate import LoadSettings, locate
from agent_runtime.engines.template import ChatTemplate
from agent_runtime.errors import ModelUnsupported

from .decode_baselines import Baselines, quiet
from .decode_modes import HF_ASSISTANT
from .decode_prompts import Conversation

if TYPE_CHECKING:
    from agent_runtime.decoding.drafts.base import DraftKind
    from agent_runtime.decoding.executor import Executor

DRAFT = "draft"
"""Where a model's folder keeps its draft model."""
SEARCH_OPERATIONS = 1e13
"""What searching the layers to keep may cost, in multiplications and additions: minutes on one core."""
SEARCH_TOKENS = 4096
CONTEXT_TOKENS = 16
"""Tokens at a text's start that the search only reads."""


@dataclass(kw_only=True)
class Subject:
    """What is measured. `absent` says of every mode that can't be, by its name, why."""

    source: str
    model: LoadedModel
    baselines: Baselines
    network: Any
    """The library's own copy."""
    kinds: frozenset[DraftKind]
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def executor(self) -> Executor:
        """What runs the worker's forward passes; not to be run while rows are decoded."""
        return self.model.worker.executor

    def close(self) -> None:
        """Stop the worker."""
        self.model.worker.close()


def load_subject(
    model: str | Path, conversations: Sequence[Conversation], *, device: str, draft_model: str | Path | None
) -> Subject:
    """Load the model with every draft that there is for it, and once more for the library's own loops.

    The draft model and the Medusa heads are those that its folder holds, if none are given. Which layers the `layers`
    draft keeps is searched on the conversations once and kept in the user's cache. Blocks; runs in a worker thread.

    Raises:
        ModelNotFound: there is no such model.
        ModelUnsupported: it can't run an agent.
    """
    location = locate(model)
    source = location.source if location.gguf_file is None else str(converted(location))
    folder = Path(source)
    config = AutoConfig.from_pretrained(source)
    kinds: list[DraftKind] = list(FREE)
    absent: dict[str, str] = {}
    if draft_model is None and (folder / DRAFT / "config.json").is_file():
        draft_model = folder / DRAFT
    if draft_model is not None:
        kinds.append("model")
    else:
        absent["model"] = absent[HF_ASSISTANT] = "there is no draft model for it: pass --draft-model"
    if (folder / HEADS).is_file():
        kinds.append("medusa")
    else:
        absent["medusa"] = f"there are no heads for it: {HEADS} is not in its folder"
    if config.model_type in FAMILIES and config.num_hidden_layers > 1:
        kinds.append("layers")
    else:
        absent["layers"] = "layers can be left out on the lean executor only, of two or more"
    texts = _texts(source, location.name, conversations, config) if "layers" in kinds else ()
    loaded, kept = _load(source, device, draft_model, kinds, texts, absent)
    network = _plain(source, device)
    assistant = _plain(draft_model, device) if draft_model is not None else None
    return Subject(
        source=source,
        model=loaded,
        baselines=Baselines(network, assistant, loaded.eos_ids),
        network=network,
        kinds=frozenset(kept),
        absent=absent,
    )


def _load(
    source: str,
    device: str,
    draft_model: str | Path | None,
    kinds: list[DraftKind],
    texts: tuple[tuple[int, ...], ...],
    absent: dict[str, str],
) -> tuple[LoadedModel, list[DraftKind]]:
    """Load the worker; without the `layers` draft where it turns out that the model can't have it."""
    while True:
        drafting = DraftSettings(kinds=tuple(kinds), model=draft_model, shared=True, texts=texts)
        try:
            return load(source, LoadSettings(device=device, drafting=drafting)), kinds
        except ModelUnsupported as error:
            if "layers" not in kinds:
                raise
            kinds = [kind for kind in kinds if kind != "layers"]
            absent["layers"] = str(error)


def _texts(source: str, name: str, conversations: Sequence[Conversation], config: Any) -> tuple[tuple[int, ...], ...]:
    """Return the ends of conversations to search layers on, as many tokens as the search can afford."""
    template = ChatTemplate(AutoTokenizer.from_pretrained(source), name=name)
    layers, width = config.num_hidden_layers, config.hidden_size
    parameters = layers * width * (4 * width + 3 * (getattr(config, "intermediate_size", None) or 4 * width))
    # Each of about layers^2 / 2 sets is tried, of half the layers on average.
    left = min(SEARCH_TOKENS, int(SEARCH_OPERATIONS / (parameters * layers**2 / 2)))
    each = max(2 * CONTEXT_TOKENS, min(512, left))
    found: list[tuple[int, ...]] = []
    for conversation in conversations:
        if left < CONTEXT_TOKENS and found:
            break
        functions = [tool.as_function() for tool in conversation.tools]
        text = template.render(conversation.prompts[-1], functions)[-each:]
        found.append(text)
        left -= len(text)
    return tuple(found)


def _plain(source: str | Path, device: str) -> Any:
    """Load a model as the library does, with the device and the type that the engine chooses for it."""
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else torch.device(device)
    dtype: Any = torch.float32 if place.type == "cpu" else "auto"
    with quiet():
        network: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        return network.to(place).eval()
