"""What a server engine did, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_runtime.traces.events import Drafting

from .pacing import LoadStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatistics:
    """One server, as seen from here."""

    place: str
    """Host and port."""
    kind: str
    version: str
    conversations: int
    """Conversations that are open there now."""
    loads: tuple[LoadStatistics, ...]
    """The agents' time per token with and without probes, and whether guessing is on, by load."""
    no_guesses: str | None
    """Why nothing is guessed there at all; None where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """Counts since the engine was made."""

    endpoints: tuple[EndpointStatistics, ...]
    requests: int
    """Messages and probes asked for, repetitions left out."""
    retries: int
    """Requests made again because the first try failed before anything of it was handed out."""
    moves: int
    """Conversations that went to another server because theirs failed."""
    probes: int
    probes_declined: int
    """Probes not made, since they slow the agents down, or to measure whether they do."""
    probe_prompt_tokens: int
    probe_cached_tokens: int
    """Prompt tokens of probes that the server's prefix cache served, as its answers say."""
    prefixes_compared: int
    """Prompts rendered here that were compared with the server's own ids."""
    prefixes_identical: int
    drafting: Drafting | None
    """What the servers drafted token by token during the messages of this engine; None where they don't."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """The same while it is counted."""

    requests: int = 0
    retries: int = 0
    probes: int = 0
    probe_prompt_tokens: int = 0
    probe_cached_tokens: int = 0
    prefixes_compared: int = 0
    prefixes_identical: int = 0
    drafting: Drafting | None = None
    no_guesses: dict[str, str] = field(default_factory=dict)
    """By the server's place."""
