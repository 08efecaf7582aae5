"""Whether two tokenizers give the same ids for the same text: what a draft model and its target must agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import TokenizersDiffer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE = (
    'Hello, wörld!  It\'s 12:05 on 2026-03-14.\n\n\tdef call(x):\n\t\treturn {"name": "get_order", '
    '"arguments": {"order_id": "O-4821", "price": 19.90}}\n<tool_call> 日本語, émigré, 🙂 ... ==>\r\n'
)
"""Text on which merges and normalisers differ that have the same vocabulary."""
SHOWN = 3
"""Differing tokens that a message names."""


def same_tokenizer(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> bool:
    """Tell whether `a` and `b` map text to the same ids, special tokens included."""
    return difference(a, b) is None


def require_same_tokenizer(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Compare a draft model's tokenizer with its target's.

    Raises:
        TokenizersDiffer: they give different ids; the message says where.
    """
    found = difference(target, draft)
    if found is not None:
        raise TokenizersDiffer(
            f"The draft model's tokenizer is not the target's: {found}. Take a draft model of the same family."
        )


def difference(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> str | None:
    """Return what differs in a few words, or None. Names, chat templates and sizes of embeddings don't matter."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        missing = sorted(set(ours) - set(theirs), key=ours.__getitem__)
        added = sorted(set(theirs) - set(ours), key=theirs.__getitem__)
        moved = sorted(token for token, at in ours.items() if theirs.get(token, at) != at)
        parts = [
            f"{len(tokens)} tokens {what} ({', '.join(map(repr, tokens[:SHOWN]))}{', ...' * (len(tokens) > SHOWN)})"
            for what, tokens in (("lack there", missing), ("exist only there", added), ("have other ids", moved))
            if tokens
        ]
        return "; ".join(parts)
    special, others = ({t: v.get(t) for t in x.all_special_tokens} for x, v in ((target, ours), (draft, theirs)))
    if special != others:
        odd = sorted(special.keys() ^ others.keys())
        return f"they disagree on which tokens are special ({', '.join(map(repr, odd[:SHOWN]))})"
    first, second = (tokenizer.encode(PROBE, add_special_tokens=False) for tokenizer in (target, draft))
    if first != second:
        at = next(
            (i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y), min(map(len, (first, second)))
        )
        return f"the vocabulary is the same, but text is split differently after {target.decode(first[:at])[-20:]!r}"
    return None
