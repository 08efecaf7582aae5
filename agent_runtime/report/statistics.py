"""Figures over many recorded runs, by agent, model and predictor, folded from the store one turn at a time.

Read from the projections that the store keeps (a ledger per turn) and from the one kind of event that tells tokens, so
that no run's events are loaded whole. Kept per group are sums, and one number per lead for its quantiles.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from agent_runtime.traces import Quantiles, TraceStore, schema
from agent_runtime.traces.database import Database, locate
from agent_runtime.traces.process import is_dead
from agent_runtime.traces.proportion import Proportion
from agent_runtime.traces.store import STALE_SECONDS

PAGE = 200
"""Runs that are read at a time."""

_SUMS = ("saved_ms", "wasted_ms", "slowdown_ms", "ceiling_ms", "wasted_tokens")


@dataclass(slots=True, kw_only=True)
class Hits:
    """Counts over some boundaries."""

    boundaries: int = 0
    predicted: int = 0
    hits: int = 0
    hits_name: int = 0

    @property
    def exact(self) -> Proportion:
        """Hits over all boundaries."""
        return Proportion(self.hits, self.boundaries)

    @property
    def by_name(self) -> Proportion:
        """Hits by the tool's name over all boundaries."""
        return Proportion(self.hits_name, self.boundaries)

    def plus(self, *others: Hits) -> Hits:
        """Return the counts of all together."""
        every = (self, *others)
        return Hits(**{name: sum(getattr(one, name) for one in every) for name in Hits.__slots__})

    def add(self, turn: Mapping[str, Any]) -> None:
        """Count the boundary of a turn's ledger."""
        self.boundaries += 1
        self.predicted += turn.get("standing") is not None
        self.hits += bool(turn.get("hit"))
        self.hits_name += bool(turn.get("hit_name"))

    def to_json(self) -> dict[str, Any]:
        """Return shares with their counts and 95 % intervals."""
        return {
            "boundaries": self.boundaries,
            "predicted": self.predicted,
            "coverage": self.predicted / self.boundaries if self.boundaries else None,
            "hit_at_1": self.exact.to_json(),
            "hit_at_1_name": self.by_name.to_json(),
        }


@dataclass(slots=True, kw_only=True)
class Group:
    """What some runs come to. Durations are milliseconds; a run that never finished counts as far as its last turn."""

    agent: str | None
    """None over all agents."""
    model: str | None
    guessing: str | None
    """Name of the predictor, `off` where the runs didn't guess; None over all."""
    runs: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    turns: int = 0
    wall_ms: float = 0.0
    tokens: int = 0
    forwards: int = 0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    endings: dict[str, int] = field(default_factory=dict)
    all: Hits = field(default_factory=Hits)
    pre_executable: Hits = field(default_factory=Hits)
    tools: dict[str, Hits] = field(default_factory=dict)
    leads: array[float] = field(default_factory=lambda: array("d"))

    @property
    def hidden_share(self) -> float | None:
        """Saved time over the most that guesses could have hidden, at most 1; None where that is nothing."""
        ceiling = self.sums["ceiling_ms"]
        return min(1.0, self.sums["saved_ms"] / ceiling) if ceiling > 0 else None

    @property
    def tokens_per_forward(self) -> float | None:
        """Tokens that the agents wrote per forward pass; None without any pass."""
        return self.tokens / self.forwards if self.forwards else None

    @property
    def lead(self) -> Quantiles:
        """Distribution of the lead, in milliseconds, of predictions that were started and stood at a demand."""
        return Quantiles.of(self.leads)

    def add_run(self, status: str, wall_ms: float | None) -> None:
        """Count a run."""
        self.runs += 1
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.wall_ms += wall_ms or 0.0

    def add_turn(self, turn: Mapping[str, Any]) -> None:
        """Count a turn, given its ledger as the store keeps it."""
        self.turns += 1
        for name in _SUMS:
            self.sums[name] += turn.get(name) or 0.0
        for guess in turn.get("guesses") or ():
            if guess.get("ending") is not None:
                self.endings[guess["ending"]] = self.endings.get(guess["ending"], 0) + 1
        if turn.get("lead_ms") is not None:
            self.leads.append(turn["lead_ms"])
        boundary = turn.get("boundary")
        if boundary is not None:
            self.all.add(turn)
            self.tools.setdefault(boundary["name"], Hits()).add(turn)
            if turn.get("pre_executable"):
                self.pre_executable.add(turn)

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain JSON values."""
        return {
            "agent": self.agent,
            "model": self.model,
            "guessing": self.guessing,
            "runs": self.runs,
            "runs_by_status": self.statuses,
            "turns": self.turns,
            "wall_ms": self.wall_ms,
            **self.all.to_json(),
            "over_pre_executable": self.pre_executable.to_json(),
            "tools": {name: hits.to_json() for name, hits in sorted(self.tools.items())},
            "endings": dict(sorted(self.endings.items())),
            **{name: self.sums[name] for name in _SUMS},
            "hidden_share": self.hidden_share,
            "lead_ms": self.lead.to_json(),
            "tokens": self.tokens,
            "forwards": self.forwards,
            "tokens_per_forward": self.tokens_per_forward,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Groups by agent, model and predictor, the one with most runs first, and all runs together.

    Runs without guessing have groups of their own: among those with it they would count as misses. `all` holds both.
    """

    groups: tuple[Group, ...]
    all: Group

    def to_json(self) -> dict[str, Any]:
        """Return the object that `agent stats --json` prints."""
        return {"groups": [group.to_json() for group in self.groups], "all": self.all.to_json()}


def statistics(where: str | Path | None = None, *, agent: str | None = None, model: str | None = None) -> Statistics:
    """Fold the runs of a trace database.

    Args:
        where: A path or a URL, as `TraceStore.open` takes it.
        agent: Only runs of this agent.
        model: Only runs on this model.

    Raises:
        DatabaseUnavailable: it can't be opened or read.
        DatabaseTooNew: a newer version of this package made it.
    """
    with TraceStore.open(where):  # brings the database up to date, and says in one line what is wrong with it
        pass
    groups: dict[tuple[str, str, str], Group] = {}
    total = Group(agent=None, model=None, guessing=None)
    with closing(Database(locate(where))) as database:
        for page in _pages(database, agent=agent, model=model):
            guessing = _guessing(database, [run.id for run in page])
            into: dict[str, tuple[Group, Group]] = {}
            for run in page:
                key = (run.agent, run.model, guessing.get(run.id) or "off")
                group = groups.setdefault(key, Group(agent=key[0], model=key[1], guessing=key[2]))
                into[run.id] = (group, total)
                for one in into[run.id]:
                    one.add_run(_status(run), run.wall_ms)
            _fold_turns(database, into)
            _fold_tokens(database, into)
    ordered = sorted(
        groups.values(), key=lambda group: (-group.runs, group.agent or "", group.model or "", group.guessing)
    )
    return Statistics(groups=tuple(ordered), all=total)


def _pages(database: Database, *, agent: str | None, model: str | None) -> Iterator[Sequence[sa.Row[*tuple[Any, ...]]]]:
    """Yield runs, oldest first; between pages no transaction is open, so that no writer waits."""
    runs = schema.runs.c
    shown = (runs.id, runs.agent, runs.model, runs.status, runs.wall_ms, runs.host, runs.pid, runs.heartbeat_at)
    last = ""
    while True:
        statement = sa.select(*shown).where(runs.id > last).order_by(runs.id).limit(PAGE)
        if agent is not None:
            statement = statement.where(runs.agent == agent)
        if model is not None:
            statement = statement.where(runs.model == model)
        with database.read() as connection:
            page: Sequence[sa.Row[*tuple[Any, ...]]] = connection.execute(statement).all()
        if page:
            yield page
        if len(page) < PAGE:
            return
        last = page[-1].id


def _guessing(database: Database, runs: Sequence[str]) -> dict[str, str | None]:
    """Return the predictor of each run, as its beginning tells it."""
    events = schema.events.c
    predictor = events.body["settings", "speculation", "predictor"].as_string()
    statement = sa.select(events.run_id, predictor).where(events.run_id.in_(runs), events.type == "run_started")
    with database.read() as connection:
        return {run_id: name for run_id, name in connection.execute(statement)}


def _status(run: sa.Row[*tuple[Any, ...]]) -> str:
    """Return a run's status, `interrupted` where it claims to run and can't."""
    status: str = run.status
    if status != "running":
        return status
    silent = datetime.now(UTC) - run.heartbeat_at > timedelta(seconds=STALE_SECONDS)
    return "interrupted" if silent or is_dead(run.host, run.pid) else status


def _fold_turns(database: Database, into: Mapping[str, tuple[Group, Group]]) -> None:
    turns = schema.turns.c
    statement = sa.select(turns.run_id, turns.ledger).where(turns.run_id.in_(into))
    with database.read() as connection:
        for run_id, ledger in connection.execution_options(yield_per=1000).execute(statement):
            for group in into[run_id]:
                group.add_turn(ledger)


def _fold_tokens(database: Database, into: Mapping[str, tuple[Group, Group]]) -> None:
    events = schema.events.c
    tokens, forwards = (events.body[name].as_integer() for name in ("completion_tokens", "forwards"))
    statement = (
        sa.select(events.run_id, sa.func.sum(tokens), sa.func.sum(forwards))
        .where(events.run_id.in_(into), events.type == "generation_finished")
        .group_by(events.run_id)
    )
    with database.read() as connection:
        for run_id, written, passes in connection.execute(statement):
            for group in into[run_id]:
                group.tokens += int(written or 0)
                group.forwards += int(passes or 0)
