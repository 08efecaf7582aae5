"""A replay from recordings to report: predictors scored, and what their guesses would have saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_runtime.tools import Catalogue, Gate
from agent_runtime.traces.trajectory import Trajectory

from .arithmetic import estimate
from .combined import BOTH, Combination
from .counter import Fit
from .forced import AnsweredTurn, Answers, ForcedPredictor, teacher_forced
from .score import Score, Scorer
from .timing import TimeSources, Timing
from .toolset import RecordedToolset, toolsets
from .whatif import Outcome, Setting, what_if


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Recorded trajectories, what each predictor answered at every turn, and its score."""

    trajectories: Sequence[Trajectory]
    toolsets: Sequence[RecordedToolset]
    answered: Sequence[Sequence[AnsweredTurn]]
    scores: Mapping[str, Score]
    """By source; the last is the one that the report is about."""

    @property
    def source(self) -> str:
        """The predictor that the report is about."""
        return list(self.scores)[-1]

    def what_if(self, settings: Sequence[Setting]) -> list[Outcome]:
        """Play the trajectories in virtual time, once for each setting. Runs an event loop of its own.

        Raises:
            MissingExtra: trio isn't installed.
        """
        sources = {setting.source for setting in settings}
        answers = {source: [_by_turn(turns, source) for turns in self.answered] for source in sources}
        return what_if(self.trajectories, self.toolsets, answers, settings)

    def to_json(
        self, *, timing: Timing, fit: Fit | None = None, outcomes: Sequence[Outcome] = (), model: str | None = None
    ) -> dict[str, Any]:
        """Return the keys that `agent replay --json` promises, and the finer ones.

        Without outcomes of virtual time, `latency` is the sum of the recorded turns' expected times.
        """
        main = self.scores[self.source].to_json()
        report: dict[str, Any] = {"trajectories": len(self.trajectories), **main}
        report["latency"] = self.latency(timing, outcomes)
        report["effects"] = self._effects()
        report["fit"] = fit.to_json() if fit is not None else None
        report["model"] = model
        if len(self.scores) > 1:
            report["predictors"] = {source: score.to_json() for source, score in self.scores.items()}
        if outcomes:
            sources = TimeSources.of(self.trajectories)
            report["what_if"] = [
                {**outcome.to_json(), **sources.to_json(outcome.setting.timing)} for outcome in outcomes
            ]
        return report

    def latency(self, timing: Timing, outcomes: Sequence[Outcome] = ()) -> dict[str, Any] | None:
        """Return serial and speculative milliseconds with where they come from; None without tool times."""
        sources = TimeSources.of(self.trajectories)
        label = sources.to_json(timing)
        if label["source"] is None:
            return None
        own = [outcome for outcome in outcomes if outcome.setting.source == self.source]
        if own:
            first = own[0]
            label = sources.to_json(first.setting.timing)
            figures: dict[str, Any] = {
                "serial_ms": first.serial_ms,
                "speculative_ms": first.speculative_ms,
                "speedup": first.speedup,
                "hidden_share": first.ledger.hidden_share,
                "closed_form": first.ledger.expected.closed_form.speedup,
            }
        else:
            expected = estimate((turn for turns in self.answered for turn in turns), self.source, timing)
            figures = {
                "serial_ms": expected.serial_ms,
                "speculative_ms": expected.speculative_ms,
                "speedup": expected.speedup,
                "hidden_share": expected.hidden_share,
            }
        return {"source": label.pop("source"), **figures, "time": "virtual" if own else "recorded", **label}

    def _effects(self) -> dict[str, Any]:
        tools = {tool.name: (tool, toolset) for toolset in self.toolsets for tool in toolset.tools}
        early = [name for name, (tool, toolset) in tools.items() if toolset.gate.decide(tool).allowed]
        inferred = {name for toolset in self.toolsets for name in toolset.inferred}
        return {"tools": len(tools), "pre_executable": sorted(early), "schemas_inferred": sorted(inferred)}


async def replay(
    trajectories: Sequence[Trajectory],
    predictors: Sequence[ForcedPredictor],
    *,
    catalogue: Catalogue | None = None,
    gate: Gate | None = None,
    combine: bool = False,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Replay:
    """Ask predictors at every recorded turn.

    Args:
        trajectories: The recordings.
        predictors: Who guesses.
        catalogue: What the tools do to the world; a tool it doesn't name counts as a write.
        gate: What may start early; reads by default.
        combine: Also score `both`, which takes the best guess of all predictors.
        on_progress: Called with the number of trajectories done.
    """
    sets = toolsets(trajectories, catalogue=catalogue, gate=gate)
    sources = [predictor.source for predictor in predictors] + ([BOTH] if combine else [])
    scorers = {source: Scorer(source) for source in sources}
    combination = Combination()
    answered: list[list[AnsweredTurn]] = []
    async for turns in teacher_forced(trajectories, sets, predictors):
        if combine:
            combination.add(turns)
        for scorer in scorers.values():
            scorer.add(turns)
        answered.append(turns)
        on_progress(len(answered))
    scores = {source: scorer.result() for source, scorer in scorers.items()}
    return Replay(trajectories=trajectories, toolsets=sets, answered=answered, scores=scores)


def _by_turn(turns: Sequence[AnsweredTurn], source: str) -> dict[int, Answers]:
    return {answered.turn.number: answered.answers[source] for answered in turns}
