"""The guessed call as a draft: asking speculator mode beforehand, and what the agent's own call then cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_runtime.decoding.requests import RowRequest
from agent_runtime.engines.drafting import PROBE
from agent_runtime.speculator.settings import Speculation
from agent_runtime.tools.values import ToolCall

from .decode_modes import Decoded, decode

if TYPE_CHECKING:
    from agent_runtime.decoding.grammar import Grammar
    from agent_runtime.engines.loading import LoadedModel
    from agent_runtime.speculator.grammar import CallFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What speculator mode answered to a prompt, and what asking took (tokens, forward passes of the target)."""

    call: ToolCall | None = None
    suggestion: tuple[int, ...] = ()
    """The call as the agent would write it."""
    tokens: int = 0
    forwards: int = 0


async def guess(model: LoadedModel, grammar: Grammar, prompt: tuple[int, ...], *, owner: str) -> Guess:
    """Probe at the start of a message, as a session does."""
    request = RowRequest(
        prompt=prompt + model.speculator.suffix(""),
        max_new_tokens=Speculation().max_probe_tokens,
        stop_ids=frozenset({model.speculator.no_call}),
        constraint=grammar.start(),
        owner=owner,
        background=True,
        drafts=PROBE,
        score_end=False,
    )
    probe = await decode(model.worker, "probe", request)
    call = model.speculator.form.read(model.decode(probe.ids))
    return Guess(
        call=call,
        suggestion=() if call is None else model.as_written(probe.ids),
        tokens=len(probe.ids),
        forwards=probe.forwards,
    )


def first_call(model: LoadedModel, functions: Sequence[dict[str, object]], ids: Sequence[int]) -> ToolCall | None:
    """Return the first call of a message, if it can be read."""
    parser = model.parser(functions)
    parser.feed(model.decode([token for token in ids if token not in model.eos_ids]))
    parser.finish()
    return next((call for call in parser.message.calls if isinstance(call, ToolCall)), None)


@dataclass(frozen=True, slots=True)
class CallCost:
    """Forward passes of the target that gave tokens of a message's first call, and those tokens."""

    forwards: int
    tokens: int


def call_cost(decoded: Decoded, span: tuple[int, int]) -> CallCost:
    """Count the passes that gave any of the tokens from `span[0]` to before `span[1]`."""
    forwards = tokens = end = 0
    for size in decoded.steps:
        start, end = end, end + size
        inside = min(end, span[1]) - max(start, span[0])
        if inside > 0:
            forwards += 1
            tokens += inside
    return CallCost(forwards, tokens)


def call_span(model: LoadedModel, ids: Sequence[int]) -> tuple[int, int] | None:
    """Return where the tokens of a message's first call begin and end, its marks included; None if it has none."""
    place = call_place(model.speculator.form, model.decode(ids))
    if place is None:
        return None
    ends = [len(model.decode(ids[: index + 1])) for index in range(len(ids))]
    start = next(index for index, end in enumerate(ends) if end > place[0])
    stop = next(index for index, end in enumerate(ends) if end >= place[1])
    return start, stop + 1


def call_place(form: CallFormat, text: str) -> tuple[int, int] | None:
    """Return the first and the last character's place + 1 of a text's first call."""
    mark = form.lead_in.strip()
    start = text.find(mark) if mark else text.find("{")
    brace = text.find("{", start)
    if start < 0 or brace < 0:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(text, brace)
    except ValueError:
        return None
    closing = form.closing.strip().removeprefix("}").strip()
    closed = text.find(closing, end) if closing else end
    return (start, closed + len(closing)) if closed >= 0 else None
