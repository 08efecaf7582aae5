"""Drafts whose vocabulary is a part of the target's: which target id each of their ids means, and q spread over all.

EAGLE-3's heads and others like them have an output matrix for frequent tokens only. Files name the map `d2t`; some hold
offsets (target id = draft id + offset), some the target ids themselves. Taken the wrong way, a head loads without
complaint and proposes nonsense, so a map is checked before it is used.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .drafts.errors import DraftUnsupported


def target_ids(d2t: Tensor, vocab_size: int, form: Literal["offsets", "ids"]) -> Tensor:
    """Return the target id of every draft id, int64 [draft vocabulary].

    Args:
        d2t: the map as the file holds it, [draft vocabulary].
        vocab_size: the target's number of logits, padding included.
        form: what the file's format says that the map holds.

    Raises:
        DraftUnsupported: so read, two draft ids mean the same token or one means none.
    """
    found = d2t.long()
    if form == "offsets":
        found = found + torch.arange(found.shape[0], device=found.device)
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= vocab_size:
        raise DraftUnsupported(
            f"The draft's vocabulary map, read as {form}, reaches from {low} to {high}; the target knows ids 0 to "
            f"{vocab_size - 1}. Check whether the file holds offsets or ids, and that it belongs to this target."
        )
    if len(set(found.tolist())) != found.shape[0]:
        raise DraftUnsupported(
            f"The draft's vocabulary map, read as {form}, gives one target id to several draft ids. Check whether the "
            "file holds offsets or ids."
        )
    return found


def scatter_q(q: Tensor, ids: Tensor, vocab_size: int) -> Tensor:
    """Spread distributions over a part of the vocabulary [n, part] over all of it [n, vocab_size], zero elsewhere.

    `ids` [part] are target ids, as from `target_ids`.
    """
    return q.new_zeros(q.shape[0], vocab_size).index_copy_(1, ids, q)
