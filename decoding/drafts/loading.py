"""Loading a draft model for a target: same tokenizer or none at all, quantised on the way where that is asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from .errors import DraftUnsupported
from .tokenizers import require_same_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Quantisation = Literal["int8", "4bit"]


def load_draft_model(
    source: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    quantise: Quantisation | None = None,
) -> PreTrainedModel:
    """Load a causal language model whose tokenizer gives the same ids as the target's.

    A local folder may hold the model alone and name its tokenizer's folder, relative to itself, as `tokenizer` in its
    config.json.

    Args:
        source: a folder or a hub id.
        tokenizer: the target's.
        device: where the model will run.
        dtype: its weights' type; "4bit" computes in it.
        quantise: "4bit" loads NF4 weights through bitsandbytes, on CUDA; "int8" is left to `ModelDraft`.

    Raises:
        TokenizersDiffer: the tokenizers give different ids.
        DraftUnsupported: the source can't be read, or "4bit" can't run here.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    if isinstance(source, Path) and not source.is_dir():
        raise DraftUnsupported(
            f"The draft model {str(source)!r} can't be read: there is no such folder. Check the path."
        )
    device = torch.device(device)
    options: dict[str, Any] = {"dtype": dtype}
    if quantise == "4bit":
        options |= _four_bits(device, dtype)
    try:
        config = AutoConfig.from_pretrained(source)
        beside = getattr(config, "tokenizer", None)
        named = Path(source) / beside if isinstance(beside, str) and Path(source).is_dir() else source
        own = AutoTokenizer.from_pretrained(named)
    except (OSError, ValueError) as error:
        raise DraftUnsupported(f"The draft model {str(source)!r} can't be read: {_first_line(error)}") from error
    require_same_tokenizer(tokenizer, own)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(source, config=config, **options)
    except (OSError, ValueError) as error:
        raise DraftUnsupported(f"The draft model {str(source)!r} can't be loaded: {_first_line(error)}") from error
    loaded: PreTrainedModel = (model if quantise == "4bit" else model.to(device)).eval()
    return loaded


def _four_bits(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return what loads NF4 weights."""
    if device.type != "cuda":
        raise DraftUnsupported(f"4-bit draft models run on CUDA only, not on {device.type!r}. Choose quantise='int8'.")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise DraftUnsupported(
            "4-bit draft models need bitsandbytes. Install it with `pip install 'agent-runtime[bitsandbytes]'`, or "
            "choose quantise='int8'."
        )
    from transformers import BitsAndBytesConfig

    settings: Any = BitsAndBytesConfig
    quantisation = settings(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    return {"quantization_config": quantisation, "device_map": {"": device}}


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
