"""What decoding came to, mode by mode: `agent bench decode --json`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agent_runtime.decoding.acceptance import closed_form
from agent_runtime.decoding.tally import DraftCounts, total

from .decode_call import CallCost
from .decode_modes import BASELINES, HF_GENERATE, NONE, OURS, Decoded

if TYPE_CHECKING:
    from agent_runtime.tools.values import ToolCall

ALL = (*BASELINES, *OURS)
BISECTIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One prompt, decoded in every mode, and what was guessed for it."""

    prompt_tokens: int
    decoded: Mapping[str, Decoded]
    call: ToolCall | None = None
    """The call that the message makes first."""
    guess: ToolCall | None = None
    probe_tokens: int = 0
    probe_forwards: int = 0
    call_costs: Mapping[str, CallCost] | None = None
    """What the tokens of that call cost, by mode; None where there is none to be seen."""

    @property
    def is_hit(self) -> bool:
        """Whether the guess is that call."""
        return self.call is not None and self.guess is not None and self.call.canonical() == self.guess.canonical()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport:
    """Figures by mode. A mode that isn't there has None everywhere, and `absent` says why.

    The first five fields, and `lossless`, are those that `agent bench decode --json` promises. The prompt but for its
    last token is taken to have been read, in all modes.
    """

    tokens_per_s: dict[str, float | None]
    """Median over the prompts."""
    forwards_per_token: dict[str, float | None]
    """Forward passes of the target over tokens; passes of drafts aren't among them."""
    mean_accepted_length: dict[str, float | None]
    """Tokens that a verified block gave, the target's own included. Of the library's modes: tokens per forward pass."""
    identical_fp32: bool | None
    """Whether every mode of ours, and plain `generate`, gave the same ids; None in another type than fp32."""
    matmul_floor_tokens_per_s: float | None
    """What the matrix products of single tokens alone would allow, at the mean length of the context."""
    lossless: bool = True
    """Every mode gives the target's own text: none trades it for speed."""

    call_forwards_per_token_on_hits: float | None
    """With `call`: passes of the target over the tokens of the calls that were guessed right."""
    call: dict[str, Any]
    """How often the guess was right, what asking for it took, and `forwards_per_token_on_hits` of other modes."""
    over_hf_generate: dict[str, float | None]
    """Median over the prompts of a mode's rate over that of plain `generate`."""
    floor_over_none: float | None
    """A step without drafts in units of its matrix products."""
    acceptance_by_position: dict[str, list[float] | None]
    drafting: dict[str, dict[str, dict[str, Any]]]
    """By mode and kind of draft."""
    closed_form: dict[str, dict[str, float] | None]
    """k, alpha and c as measured, the speed-up that follows from them if every step drafts, the share of the steps
    that did, and the measured speed-up over `none`."""
    seconds: dict[str, dict[str, float] | None]
    different_prompts: dict[str, int]
    """Prompts whose ids are not those of `none`, by mode."""
    absent: dict[str, str]
    model: str
    executor: str
    dtype: str
    device: str
    threads: int
    conversations: int
    prompts: int
    prompt_tokens: float
    """Mean."""
    new_tokens: float
    """Mean."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""
        return asdict(self)


def report(
    measured: Sequence[Measured],
    *,
    floor_s: Sequence[float],
    absent: Mapping[str, str],
    model: str,
    executor: str,
    dtype: str,
    device: str,
    threads: int,
    conversations: int,
) -> DecodeReport:
    """Return the figures of all prompts."""
    of: dict[str, list[Decoded]] = {
        mode: [prompt.decoded[mode] for prompt in measured if mode in prompt.decoded] for mode in ALL
    }
    rates = {mode: _median(decoded.rate for decoded in found) for mode, found in of.items()}
    counts = {mode: total(count for decoded in found for count in decoded.drafting) for mode, found in of.items()}
    floor = 1 / statistics.median(floor_s) if floor_s else None
    plain = rates[NONE]
    different = {
        mode: sum(prompt.decoded[mode].ids != prompt.decoded[NONE].ids for prompt in measured if mode in prompt.decoded)
        for mode, found in of.items()
        if found
    }
    exact = not any(different.get(mode, 0) for mode in (*OURS, HF_GENERATE))
    call = _call(measured)
    return DecodeReport(
        tokens_per_s=rates,
        forwards_per_token={mode: _forwards_per_token(found) for mode, found in of.items()},
        mean_accepted_length={mode: _accepted_length(mode, found, counts[mode]) for mode, found in of.items()},
        identical_fp32=exact if dtype == "float32" and measured else None,
        matmul_floor_tokens_per_s=floor,
        call_forwards_per_token_on_hits=call["forwards_per_token_on_hits"]["call"],
        call=call,
        over_hf_generate={mode: _median(_ratios(measured, mode)) for mode in ALL},
        floor_over_none=floor / plain if floor and plain else None,
        acceptance_by_position={
            mode: list(count.acceptance_by_position) if count.drafts else None for mode, count in counts.items()
        },
        drafting={mode: _by_kind(of[mode]) for mode in OURS if counts[mode].drafts},
        closed_form={mode: _closed_form(of[mode], of[NONE], counts[mode], rates[mode]) for mode in OURS},
        seconds={mode: _seconds(found) for mode, found in of.items()},
        different_prompts=different,
        absent=dict(absent),
        model=model,
        executor=executor,
        dtype=dtype,
        device=device,
        threads=threads,
        conversations=conversations,
        prompts=len(measured),
        prompt_tokens=_mean(prompt.prompt_tokens for prompt in measured),
        new_tokens=_mean(len(decoded.ids) for decoded in of[NONE]),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0


def _ratios(measured: Sequence[Measured], mode: str) -> Iterable[float | None]:
    for prompt in measured:
        ours, theirs = (prompt.decoded[name].rate if name in prompt.decoded else None for name in (mode, HF_GENERATE))
        yield ours / theirs if ours and theirs else None


def _forwards_per_token(found: Sequence[Decoded]) -> float | None:
    tokens = sum(len(decoded.ids) for decoded in found)
    return sum(decoded.forwards for decoded in found) / tokens if tokens else None


def _accepted_length(mode: str, found: Sequence[Decoded], counts: DraftCounts) -> float | None:
    if mode in BASELINES:
        passes = sum(decoded.forwards for decoded in found)
        return sum(len(decoded.ids) for decoded in found) / passes if passes else None
    return counts.mean_accepted_length if mode != NONE or not found else 1.0


def _by_kind(found: Sequence[Decoded]) -> dict[str, dict[str, Any]]:
    kinds = dict.fromkeys(count.kind for decoded in found for count in decoded.drafting)
    figures: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        counts = total((count for decoded in found for count in decoded.drafting if count.kind == kind), kind)
        figures[kind] = {
            "drafts": counts.drafts,
            "draft_tokens": counts.draft_tokens,
            "accepted_tokens": counts.accepted_tokens,
            "mean_accepted_length": counts.mean_accepted_length,
            "acceptance_by_position": list(counts.acceptance_by_position),
            "draft_s": counts.draft_s,
        }
    return figures


def _seconds(found: Sequence[Decoded]) -> dict[str, float] | None:
    if not found:
        return None
    names = dict.fromkeys(name for decoded in found for name in decoded.parts)
    parts = {name: sum(decoded.parts.get(name, 0.0) for decoded in found) for name in names}
    return {"decode": sum(decoded.seconds for decoded in found), **parts}


def _closed_form(
    found: Sequence[Decoded], plain: Sequence[Decoded], counts: DraftCounts, rate: float | None
) -> dict[str, float] | None:
    """Return the expected speed-up of drafts as long and as good as these were on average."""
    steps, plain_rate = sum(decoded.forwards for decoded in plain), _median(decoded.rate for decoded in plain)
    if not counts.drafts or not steps or not rate or not plain_rate:
        return None
    step_s = sum(decoded.seconds for decoded in plain) / steps
    k = max(1, round(counts.draft_tokens / counts.drafts))
    alpha = _alpha(k, counts.accepted_tokens / counts.drafts)
    c = counts.draft_s / counts.draft_tokens / step_s
    return {
        "k": k,
        "alpha": alpha,
        "c": c,
        "speedup": closed_form(k, alpha, c),
        "drafted_share": counts.drafts / max(1, sum(decoded.forwards for decoded in found)),
        "measured": rate / plain_rate,
    }


def _alpha(k: int, accepted: float) -> float:
    """Return the chance per token with which `accepted` of `k` drafted tokens stand on average."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if sum(middle**position for position in range(1, k + 1)) < accepted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _call(measured: Sequence[Measured]) -> dict[str, Any]:
    calling = [prompt for prompt in measured if prompt.call is not None]
    hits = [prompt for prompt in calling if prompt.is_hit]
    costs: dict[str, float | None] = {}
    for mode in OURS:
        found = [prompt.call_costs[mode] for prompt in hits if prompt.call_costs and mode in prompt.call_costs]
        tokens = sum(cost.tokens for cost in found)
        costs[mode] = sum(cost.forwards for cost in found) / tokens if tokens else None
    return {
        "boundaries": len(calling),
        "hits": len(hits),
        "hit_at_1": len(hits) / len(calling) if calling else None,
        "probe_tokens": sum(prompt.probe_tokens for prompt in measured),
        "probe_forwards": sum(prompt.probe_forwards for prompt in measured),
        "forwards_per_token_on_hits": costs,
    }
