"""The model folder in Hugging Face format: written from a checkpoint, and read back for judging."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import GenerationConfig, Qwen3ForCausalLM

from .network import Network, Shape
from .samples import Encoder
from .tokens import save_tokenizer
from .training import checkpoint


def publish(out: Path, folder: Path, shape: Shape) -> None:
    """Write weights, configuration and tokenizer of the checkpoint in `out` to `folder`, in fp32."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    save_tokenizer(tokenizer, folder)
    config = shape.config()
    config.eos_token_id = config.bos_token_id = tokenizer.token_to_id("<|im_end|>")
    config.bos_token_id = None
    config.pad_token_id = tokenizer.token_to_id("<|endoftext|>")
    model = Qwen3ForCausalLM(config)
    state = torch.load(checkpoint(out, 0), map_location="cpu")["network"]
    model.load_state_dict(state | {"lm_head.weight": state["model.embed_tokens.weight"]})
    model.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        max_new_tokens=256,
    )
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def read(folder: Path) -> tuple[Network, Encoder]:
    """Read a model folder as the network that training uses, and its encoder."""
    network = Network(Shape())
    network.load_state_dict(load_file(folder / "model.safetensors"))
    return network.eval(), Encoder(Tokenizer.from_file(str(folder / "tokenizer.json")))
