"""The message that is generated now, as far as a probe needs it."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from agent_runtime.traces.messages import Message

from .address import Endpoint
from .reading import Reading


@dataclass(slots=True)
class Turn:
    """One message from its request to its end; written by the generation, read by probes."""

    messages: tuple[Message, ...]
    begun: anyio.Event = field(default_factory=anyio.Event)
    """The first chunk is here, so the server has read the prompt; or the turn is over."""
    over: bool = False
    endpoint: Endpoint | None = None
    reading: Reading | None = None
