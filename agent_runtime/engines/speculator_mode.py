"""How a model is brought into speculator mode: the tokens after the prefix, and the token that says "no call"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_runtime.errors import ModelUnsupported
from agent_runtime.speculator.grammar import CallFormat

from .template import ChatTemplate, thinks_at

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_THINKING_ENDS = "\n</think>\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorMode:
    """Speculator mode of one model.

    A model trained for it declares `"speculator": {"suffix": ..., "no_call": ...}` in its tokenizer_config.json; its
    answer is a whole call or `no_call`. For any other model the suffix ends the thinking and opens a call as the chat
    template writes it, and the answer is the rest of the call or the end of the message.
    """

    form: CallFormat
    no_call: int
    opens_call: bool
    """Whether the suffix has already written the call's lead-in."""
    _tokenizer: PreTrainedTokenizerBase
    _trained: tuple[int, ...]
    _generation_prompt: str
    _skip_thinking: str

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, eos_ids: frozenset[int]) -> SpeculatorMode:
        """Return the mode that the tokenizer declares, or the general one.

        Raises:
            ModelUnsupported: the declaration names a token that doesn't exist.
        """
        declared = tokenizer.init_kwargs.get("speculator") or {}
        eos = tokenizer.eos_token_id
        no_call = eos if isinstance(eos, int) and eos in eos_ids else min(eos_ids)
        trained: tuple[int, ...] = ()
        if declared:
            trained, no_call = _declared(tokenizer, declared, no_call)
        return cls(
            form=template.call_format(),
            no_call=no_call,
            opens_call=not trained,
            _tokenizer=tokenizer,
            _trained=trained,
            _generation_prompt=template.generation_prompt,
            _skip_thinking="" if trained else template.skip_thinking(),
        )

    def suffix(self, written: str) -> tuple[int, ...]:
        """Return the ids that begin speculator mode after `written`, the text of the message so far."""
        if self._trained:
            return self._trained
        if not written:
            text = self._skip_thinking or (_THINKING_ENDS if thinks_at(self._generation_prompt, "") else "")
        elif thinks_at(self._generation_prompt, written):
            text = _THINKING_ENDS
        else:
            text = "" if written.endswith("\n") else "\n"
        text += self.form.lead_in
        return tuple(self._tokenizer.encode(text, add_special_tokens=False)) if text else ()


def _declared(tokenizer: PreTrainedTokenizerBase, declared: Mapping[str, Any], eos: int) -> tuple[tuple[int, ...], int]:
    suffix, no_call = declared.get("suffix"), declared.get("no_call")
    ids = tuple(tokenizer.encode(suffix, add_special_tokens=False)) if isinstance(suffix, str) else ()
    known = tokenizer.get_added_vocab()
    if not ids or (no_call is not None and no_call not in known):
        raise ModelUnsupported(
            f"the tokenizer's `speculator` entry {dict(declared)} is wrong: `suffix` must be text, "
            "and `no_call` one of its added tokens"
        )
    return ids, known.get(no_call, eos) if no_call is not None else eos
