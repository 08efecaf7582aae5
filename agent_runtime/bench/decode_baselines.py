"""The library's own loops beside ours: `generate` alone, with prompt lookup, and with an assistant model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig
from transformers.utils import logging

from .decode_modes import HF_ASSISTANT, HF_GENERATE, HF_PROMPT_LOOKUP, Decoded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOOKUP_TOKENS = 10
"""The library's documentation suggests it; whatever else there is to set stays as the library has it."""


class Baselines:
    """Greedy decoding by `generate`. Blocks; one call at a time.

    Args:
        network: a causal language model as `from_pretrained` gives it.
        assistant: its draft model, if there is one.
        eos_ids: tokens that end a text.
    """

    def __init__(self, network: PreTrainedModel, assistant: PreTrainedModel | None, eos_ids: frozenset[int]) -> None:
        self._network: Any = network
        self._assistant: Any = assistant
        ends = sorted(eos_ids)
        # In place of the model's own defaults, which may sample: all modes choose greedily.
        settings: Any = GenerationConfig
        for model in filter(None, (self._network, self._assistant)):
            model.generation_config = settings(do_sample=False, eos_token_id=ends, pad_token_id=ends[0])
        self._options: dict[str, dict[str, Any]] = {
            HF_GENERATE: {},
            HF_PROMPT_LOOKUP: {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
        }
        if assistant is not None:
            self._options[HF_ASSISTANT] = {"assistant_model": assistant}

    @property
    def names(self) -> tuple[str, ...]:
        """The modes that can be tried."""
        return tuple(self._options)

    def decode(self, mode: str, prompt: tuple[int, ...], max_tokens: int) -> Decoded:
        """Decode a prompt in one of the modes.

        The first pass reads the whole prompt: a cache that holds it already is not passed in, because the assisted
        loops then go wrong (transformers 5.24 reads the prompt again behind it). Its price as a decoding step is taken
        to be the mean of the passes after it, with what is drafted between them.
        """
        device = next(self._network.parameters()).device
        ids = torch.tensor([prompt], device=device)
        with torch.inference_mode(), quiet(), self._counting(device) as ended:
            out = self._network.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, **self._options[mode]
            )
            written = tuple(out[0, len(prompt) :].tolist())
            seconds = time.perf_counter() - ended[0]
        later = len(ended) - 1
        return Decoded(
            mode=mode, ids=written, seconds=seconds * len(ended) / later if later else 0.0, forwards=len(ended)
        )

    @contextmanager
    def _counting(self, device: torch.device) -> Iterator[list[float]]:
        """Give the list that gets a time at the end of each of the target's forward passes."""
        ended: list[float] = []

        def note(*_: Any) -> None:
            if not ended and device.type == "cuda":
                torch.cuda.synchronize(device)  # reading the prompt is over only now
            ended.append(time.perf_counter())

        hook = self._network.register_forward_hook(note)
        try:
            yield ended
        finally:
            hook.remove()


@contextmanager
def quiet() -> Iterator[None]:
    """Show neither the library's progress bars nor what it says about its own settings."""
    settings: Any = logging
    verbosity, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        if bars:
            settings.enable_progress_bar()
