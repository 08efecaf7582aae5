"""The network as training runs it: Qwen3's arithmetic on packed tokens, with one shared prefix.

Parameter names are those of `transformers.Qwen3ForCausalLM`, so a state dict moves between both unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3Config

from .attention import attend


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the defaults give 3.8M parameters, 15 MB in fp32."""

    vocab_size: int = 1024
    hidden_size: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 64
    intermediate_size: int = 768
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6

    def config(self) -> Qwen3Config:
        """Return the configuration that ships with the weights."""
        return Qwen3Config(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=2048,
            rms_norm_eps=self.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            tie_word_embeddings=True,
            attention_bias=False,
            architectures=["Qwen3ForCausalLM"],
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that share a prefix, padded to one length.

    ``prefix``: [P] ids; ``ids``, ``positions``: [B, L]; ``mask``: [B, L, P + L], true where the row's token may
    look; ``targets``: [B, L], the id to predict after each token; ``weights``: [B, L], 0 where none is asked.
    """

    prefix: Tensor
    ids: Tensor
    positions: Tensor
    mask: Tensor
    targets: Tensor
    weights: Tensor


class RMSNorm(nn.Module):
    """Root-mean-square norm in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys; the prefix is seen by itself and by every row."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, head = shape.hidden_size, shape.head_dim
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, head
        self.q_proj = nn.Linear(width, shape.heads * head, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_heads * head, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_heads * head, bias=False)
        self.o_proj = nn.Linear(shape.heads * head, width, bias=False)
        self.q_norm = RMSNorm(head, shape.norm_eps)
        self.k_norm = RMSNorm(head, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, prefix: int) -> Tensor:
        """Attend; ``x``: [P + B*L, width] flat, ``mask``: [B, 1, L, P + L]."""
        batch, _, length, _ = mask.shape
        q = rotate(self.q_norm(self.q_proj(x).view(-1, self.heads, self.head_dim)), cos, sin).to(mask.dtype)
        k = rotate(self.k_norm(self.k_proj(x).view(-1, self.kv_heads, self.head_dim)), cos, sin).to(mask.dtype)
        v = self.v_proj(x).view(-1, self.kv_heads, self.head_dim).to(mask.dtype)
        if self.kv_heads != self.heads:
            k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
            v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        (q0, q1), (k0, k1), (v0, v1) = ((t[:prefix], t[prefix:]) for t in (q, k, v))
        first = F.scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in (q0, k0, v0)), is_causal=True)
        queries = q1.view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        keys, values = (
            torch.cat(
                [a[None].expand(batch, -1, -1, -1), b.view(batch, length, self.heads, self.head_dim)], dim=1
            ).transpose(1, 2)
            for a, b in ((k0, k1), (v0, v1))
        )
        rest = attend(queries.contiguous(), keys, values, mask, prefix)
        first = first[0].transpose(0, 1).reshape(prefix, -1)
        rest = rest.transpose(1, 2).reshape(batch * length, -1)
        return self.o_proj(torch.cat([first, rest]))


class MLP(nn.Module):
    """Gated feed-forward block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map each token on its own."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One transformer block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, prefix: int) -> Tensor:
        """Add attention and feed-forward to the stream."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, prefix)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, blocks and final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)


class Network(nn.Module):
    """The language model; the output matrix is the embedding."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.02 if "embed" in name else weight.shape[1] ** -0.5 * (0.3 if residual else 1.0)
                nn.init.normal_(weight, std=std, generator=generator)
        inverse = 1.0 / shape.rope_theta ** (torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(2048).float(), inverse)
        self.register_buffer("cos", torch.cat([angles.cos(), angles.cos()], -1), persistent=False)
        self.register_buffer("sin", torch.cat([angles.sin(), angles.sin()], -1), persistent=False)

    def hidden(self, batch: Batch, dtype: torch.dtype) -> Tensor:
        """Return [B*L, width]: the normalised hidden state of every row token."""
        prefix = batch.prefix.shape[0]
        ids = torch.cat([batch.prefix, batch.ids.reshape(-1)])
        positions = torch.cat([torch.arange(prefix, device=ids.device), batch.positions.reshape(-1)])
        cos, sin = (table[positions].unsqueeze(1) for table in (self.cos, self.sin))
        mask = torch.zeros(batch.mask.shape, dtype=dtype, device=ids.device)
        mask = mask.masked_fill_(~batch.mask, float("-inf")).unsqueeze(1)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask, prefix)
        return self.model.norm(x[prefix:])

    def loss(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of cross-entropies and [N] booleans: was each asked token the likeliest."""
        asked = batch.weights.reshape(-1) > 0
        hidden = self.hidden(batch, dtype)[asked]
        targets = batch.targets.reshape(-1)[asked]
        logits = F.linear(hidden, self.model.embed_tokens.weight).float()
        losses = F.cross_entropy(logits, targets, reduction="none")
        right = logits.detach().argmax(-1) == targets
        return (losses * batch.weights.reshape(-1)[asked]).sum(), right


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions; ``x``: [T, H, D], ``cos``, ``sin``: [T, 1, D]."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin
