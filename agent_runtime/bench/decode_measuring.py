"""Decodes conversations in every mode, one mode after the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio.to_thread

from agent_runtime.decoding.requests import RowRequest
from agent_runtime.errors import EngineFailed

from .decode_call import Guess, call_cost, call_span, first_call, guess
from .decode_modes import BASELINES, CALL, NONE, Decoded, Mode, decode, modes, read
from .decode_prompts import Conversation
from .decode_report import Measured

if TYPE_CHECKING:
    from agent_runtime.decoding.grammar import Grammar

    from .decode_subject import Subject

WARM_UP_TOKENS = 24


class Measuring:
    """Collects what every prompt came to in every mode.

    A conversation's turns are decoded together in a mode: what a mode learns from its own text (the `suffix` draft, the
    layout of the weights) it has then as in service, and no mode has seen a text that it is about to write.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._taken: list[Measured] = []
        self._modes: list[str | Mode] = [*subject.baselines.names, *modes(subject.kinds)]

    @property
    def measured(self) -> list[Measured]:
        """Every prompt so far, without the modes that turned out impossible: what they gave before is no figure."""
        absent = self._subject.absent
        return [
            replace(prompt, decoded={mode: one for mode, one in prompt.decoded.items() if mode not in absent})
            for prompt in self._taken
        ]

    def prompt_lengths(self, conversations: Sequence[Conversation]) -> list[int]:
        """Return the tokens of every prompt."""
        return [len(prompt) for conversation in conversations for prompt in self._rendered(conversation)]

    async def warm_up(self, conversation: Conversation) -> None:
        """Decode the beginning of one message in every mode, for nothing."""
        short = Conversation(
            prompts=conversation.prompts[:1],
            tools=conversation.tools,
            max_tokens=min(WARM_UP_TOKENS, conversation.max_tokens),
        )
        await self._decode(-1, short, self._modes)

    async def take(self, index: int, conversation: Conversation) -> None:
        """Measure one conversation; modes that turn out impossible are left out from then on."""
        by = index % len(self._modes)
        self._taken += await self._decode(index, conversation, self._modes[by:] + self._modes[:by])

    async def _decode(self, index: int, conversation: Conversation, order: Sequence[str | Mode]) -> list[Measured]:
        model = self._subject.model
        prompts = self._rendered(conversation)
        grammar = self._grammar(conversation)
        owners = itertools.count()
        guesses: list[Guess] = []
        for prompt in prompts:
            owner = f"probe of {index}"
            guesses.append(Guess() if grammar is None else await guess(model, grammar, prompt, owner=owner))
            model.worker.forget(owner)
        found: list[dict[str, Decoded]] = [{} for _ in prompts]
        for mode in order:
            owner = f"conversation {index}, {next(owners)}"
            for prompt, guessed, decoded in zip(prompts, guesses, found, strict=True):
                if isinstance(mode, str):
                    one = await self._baseline(mode, prompt, conversation.max_tokens)
                    if one is None:
                        break
                else:
                    request = self._request(mode, prompt, guessed, grammar, conversation, owner, warm=index < 0)
                    await read(model.worker, request)
                    one = await decode(model.worker, mode.name, request)
                decoded[one.mode] = one
            model.worker.forget(owner)
        functions = [tool.as_function() for tool in conversation.tools]
        return [
            self._as_measured(prompt, guessed, decoded, functions)
            for prompt, guessed, decoded in zip(prompts, guesses, found, strict=True)
        ]

    async def _baseline(self, mode: str, prompt: tuple[int, ...], max_tokens: int) -> Decoded | None:
        """Decode with the library; None where it refuses, which is noted."""
        subject = self._subject
        if mode in subject.absent:
            return None
        try:
            return await anyio.to_thread.run_sync(subject.baselines.decode, mode, prompt, max_tokens)
        except (ValueError, TypeError, NotImplementedError, RuntimeError, AttributeError) as error:
            reason = next(iter(str(error).splitlines()), "")
            subject.absent[mode] = f"transformers refuses: {type(error).__name__}: {reason}"
            return None

    def _request(
        self,
        mode: Mode,
        prompt: tuple[int, ...],
        guessed: Guess,
        grammar: Grammar | None,
        conversation: Conversation,
        owner: str,
        *,
        warm: bool,
    ) -> RowRequest:
        model = self._subject.model
        return RowRequest(
            prompt=prompt,
            max_new_tokens=conversation.max_tokens,
            stop_ids=model.eos_ids,
            owner=owner,
            drafts=mode.drafts,
            scope=f"{mode.name}{', warming up' if warm else ''}" if mode.shared else "",
            suggestion=guessed.suggestion if "call" in mode.drafts else (),
            call_grammar=model.call_grammar(grammar) if grammar is not None and "grammar" in mode.drafts else None,
        )

    def _as_measured(
        self, prompt: tuple[int, ...], guessed: Guess, decoded: dict[str, Decoded], functions: list[dict[str, object]]
    ) -> Measured:
        model, plain = self._subject.model, decoded[NONE]
        call = first_call(model, functions, plain.ids) if functions else None
        span = call_span(model, plain.ids) if call is not None else None
        costs = None
        if span is not None:
            # Where a mode's ids were others, its span would be another one, and it is told of anyway.
            same = {mode: one for mode, one in decoded.items() if mode not in BASELINES and one.ids == plain.ids}
            costs = {mode: call_cost(one, span) for mode, one in same.items()}
        return Measured(
            prompt_tokens=len(prompt),
            decoded=decoded,
            call=call,
            guess=guessed.call,
            probe_tokens=guessed.tokens,
            probe_forwards=guessed.forwards,
            call_costs=costs,
        )

    def _rendered(self, conversation: Conversation) -> list[tuple[int, ...]]:
        functions = [tool.as_function() for tool in conversation.tools]
        return [self._subject.model.template.render(prompt, functions) for prompt in conversation.prompts]

    def _grammar(self, conversation: Conversation) -> Grammar | None:
        if not conversation.tools:
            return None
        try:
            return self._subject.model.grammar(conversation.tools)
        except EngineFailed as error:
            self._subject.absent.setdefault(CALL, f"nothing can be guessed: {error}")
            return None
