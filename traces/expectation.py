"""What a run should have taken by the model of expected time, in its two forms.

The first form sums what was measured, turn by turn: serial = T_gen + T_tool, and
speculative = T_gen + slowdown + T_tool - saved. T_gen ends with the turn's last call, T_tool is the wait from there to
all results had no guess served, and saved is what guesses took off it (see `waiting`): with one call
h * min(T_tool, lead), h = 1 where a guess served it.

The closed form S = (1 + rho) / (1 + rho + sigma - alpha * min(1, rho)) knows only averages over the boundaries:
rho = T_tool / T_gen, sigma = T_spec / T_gen, alpha = the share of turns with calls in which each call before the first
write was served early. It takes every probe to run before the agent, so that its time is lost and its lead is all of
T_gen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .turns import TurnLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """The speedup that averages predict; None where no boundary was measured."""

    rho: float | None
    sigma: float | None
    alpha: float | None
    speedup: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Expected milliseconds of a run's turns without and with guessing; incomplete turns are left out."""

    serial_ms: float
    speculative_ms: float
    closed_form: ClosedForm

    @property
    def speedup(self) -> float | None:
        """Serial over speculative time; None where nothing was measured."""
        return self.serial_ms / self.speculative_ms if self.speculative_ms > 0 else None


def expectation(turns: Iterable[TurnLedger]) -> Expectation:
    """Return both forms for some turns."""
    turns = [turn for turn in turns if turn.complete]
    serial = speculative = 0.0
    for turn in turns:
        alone = turn.t_gen_ms + turn.t_more_ms + turn.t_wait_ms
        serial += alone
        speculative += alone + turn.slowdown_ms - turn.saved_ms
    return Expectation(serial_ms=serial, speculative_ms=speculative, closed_form=_closed_form(turns))


def closed_form(*, rho: float, sigma: float, alpha: float) -> float:
    """Return the speedup (1 + rho) / (1 + rho + sigma - alpha * min(1, rho)).

    Args:
        rho: Tool time over generation time.
        sigma: Probe time over generation time.
        alpha: Share of the turns whose results came early.
    """
    return (1 + rho) / (1 + rho + sigma - alpha * min(1.0, rho))


def _closed_form(turns: Iterable[TurnLedger]) -> ClosedForm:
    boundaries = [turn for turn in turns if turn.boundary is not None and turn.t_tool_ms is not None]
    t_gen = sum(turn.t_gen_ms + turn.t_more_ms for turn in boundaries)
    if t_gen <= 0:
        return ClosedForm(rho=None, sigma=None, alpha=None, speedup=None)
    rho = sum(turn.t_wait_ms for turn in boundaries) / t_gen
    sigma = sum(turn.t_probe_ms for turn in boundaries) / t_gen
    alpha = sum(turn.all_served for turn in boundaries) / len(boundaries)
    return ClosedForm(rho=rho, sigma=sigma, alpha=alpha, speedup=closed_form(rho=rho, sigma=sigma, alpha=alpha))
