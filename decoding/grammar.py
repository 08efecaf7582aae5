"""Grammars that tell which tokens may come next, compiled by llguidance (https://github.com/guidance-ai/llguidance)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor

from .errors import GrammarError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class GrammarTokenizer:
    """A tokenizer prepared for grammars. Preparing takes up to a second for large vocabularies: make it once."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        vocab_size: int | None = None,
        stop_ids: Sequence[int] = (),
    ) -> None:
        """Prepare `tokenizer`.

        Args:
            tokenizer: a fast tokenizer.
            vocab_size: the model's number of logits, where it exceeds the tokenizer's vocabulary.
            stop_ids: ids that may end a complete text; the tokenizer's own end-of-sequence id if empty.

        Raises:
            GrammarError: the tokenizer can't be used for grammars.
        """
        size = len(tokenizer) if vocab_size is None else max(vocab_size, len(tokenizer))
        try:
            self.inner: LLTokenizer = from_tokenizer(tokenizer, n_vocab=size, eos_token=list(stop_ids) or None)
        except Exception as error:
            raise GrammarError(
                f"{type(tokenizer).__name__} can't be used with grammars: {error}. Use a fast tokenizer."
            ) from error
        self.vocab_size = size


class Grammar:
    """A compiled grammar; `start()` gives a fresh constraint for one row."""

    def __init__(self, tokenizer: GrammarTokenizer, source: str) -> None:
        self._tokenizer = tokenizer
        self._matcher = LLMatcher(tokenizer.inner, source, log_level=0)
        if self._matcher.is_error():
            raise GrammarError(f"The grammar does not compile: {_first_line(self._matcher.get_error())}")

    def start(self) -> GrammarConstraint:
        """Return the grammar's state before the first token. Cheap: nothing is compiled again."""
        return GrammarConstraint(self._matcher, self._tokenizer.vocab_size)


class GrammarConstraint:
    """A `Constraint` on one row: a state of llguidance's matcher, beginning with a copy of `fresh`.

    Call it from one thread at a time.
    """

    def __init__(self, fresh: LLMatcher, vocab_size: int) -> None:
        self._fresh = fresh
        self._matcher = fresh.deep_copy()
        self._consumed: list[int] = []
        self._size = vocab_size
        self._words = torch.zeros((vocab_size + 31) // 32, dtype=torch.int32)
        self._bits = torch.arange(32, dtype=torch.int32)

    def allowed(self) -> Tensor:
        """Return the mask of the next token: bool [vocab], True = allowed.

        Raises:
            GrammarError: the matcher gave up (its limits on the grammar's ambiguity were exceeded).
        """
        words = self._words
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.nbytes)
        self._check()
        return ((words[:, None] >> self._bits) & 1).flatten()[: self._size].bool()

    def forced(self) -> list[int]:
        """Return tokens that must come next, in order; does not advance."""
        if self._matcher.is_stopped():
            return []
        return list(self._matcher.compute_ff_tokens())

    def advance(self, token: int) -> None:
        """Consume one token.

        Raises:
            GrammarError: the grammar forbids it here.
        """
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return  # the text was complete before; what ends a row (an end-of-sequence id) may follow
        if not self._matcher.consume_token(token):
            raise GrammarError(f"The grammar forbids token {token} here: {_first_line(self._matcher.get_error())}")
        self._consumed.append(token)

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens.

        Raises:
            GrammarError: there are not as many.
        """
        kept = len(self._consumed) - count
        if kept < 0:
            raise GrammarError(f"The grammar can't go back {count} tokens: it has consumed {len(self._consumed)}.")
        if self._matcher.is_stopped():
            # A matcher that an end token has stopped doesn't come back whole (llguidance 1.7): begin again.
            self._matcher = self._fresh.deep_copy()
            stands = self._matcher.consume_tokens(self._consumed[:kept])
        else:
            stands = self._matcher.rollback(count)
        if not stands:
            raise GrammarError(f"The grammar can't go back {count} tokens: {_first_line(self._matcher.get_error())}")
        del self._consumed[kept:]

    def finished(self) -> bool:
        """Tell whether the text is complete and nothing may follow."""
        return bool(self._matcher.is_stopped())

    def accepting(self) -> bool:
        """Tell whether the text is complete, though more may follow."""
        return bool(self._matcher.is_accepting())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"The grammar can't go on: {_first_line(self._matcher.get_error())}")


def compile_grammar(tokenizer: GrammarTokenizer, source: str | Mapping[str, Any]) -> Grammar:
    """Compile a grammar.

    Args:
        tokenizer: the prepared tokenizer of the model that will follow the grammar.
        source: Lark text with a `start` rule (llguidance's dialect: `%json {...}` embeds a schema, `<|name|>` is a
            special token, `/.../` a regular expression), or a JSON Schema as a mapping: compact JSON without
            white space between the parts.

    Raises:
        GrammarError: it does not compile; the message is the compiler's.
    """
    if isinstance(source, str):
        return Grammar(tokenizer, LLMatcher.grammar_from_lark(source))
    try:
        text = LLMatcher.grammar_from_json_schema(json.dumps(dict(source)), overrides={"whitespace_flexible": False})
    except ValueError as error:
        raise GrammarError(f"The schema is not valid JSON: {error}") from error
    return Grammar(tokenizer, text)


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "no reason given"
