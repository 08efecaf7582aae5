"""The server engine: a model behind an OpenAI-compatible interface, on one or more servers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from agent_runtime.engines.base import ToolSchema
from agent_runtime.errors import EngineClosed, UsageError

from .address import ServerAddress, ServerSettings, endpoint, parse_address
from .client import keys_of
from .metrics import ServerCounters
from .session import ServerSession
from .shared import ServedModel
from .statistics import ServerStatistics

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling


class ServerEngine:
    """Runs a model that a server has: vLLM, SGLang, llama.cpp, or anything with OpenAI's chat interface.

    Several servers of one model share the conversations; each conversation stays with its server, whose prefix cache
    holds it. Guessing needs the server to take token ids and to give log-probabilities, and the model's tokenizer on
    this machine or the server's own.

    Args:
        model: The model's name on the servers.
        endpoints: Where the interface begins, e.g. `http://127.0.0.1:8000/v1`; one or several.
        api_key: Sent as a bearer token, and found nowhere else. None takes what `settings.key_env` names, or
            OPENAI_API_KEY for servers on this machine or behind TLS.
        settings: Timeouts, retries, and how calls and guesses are read.
        sampling: Defaults of all sessions; None takes the model's own generation defaults.

    Raises:
        UsageError: an argument can't be used. The servers are asked when the first session opens.
    """

    def __init__(
        self,
        model: str,
        endpoints: str | Sequence[str],
        *,
        api_key: str | None = None,
        settings: ServerSettings | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        urls = [endpoints] if isinstance(endpoints, str) else list(endpoints)
        if not model or not urls:
            raise UsageError("ServerEngine(...): give a model's name and at least one endpoint")
        self._address = ServerAddress(
            model=model,
            endpoints=tuple(dict.fromkeys(endpoint(url) for url in urls)),
            settings=settings or ServerSettings(),
        )
        keys = keys_of(
            self._address.endpoints, given=api_key, environment=os.environ, named=self._address.settings.key_env
        )
        self._model = ServedModel(self._address, keys)
        self._sampling = sampling
        self._numbers = itertools.count()
        self._sessions: set[ServerSession] = set()
        self._closed = False

    @classmethod
    def from_address(cls, address: str, *, sampling: Sampling | None = None) -> Self:
        """Return the engine of `openai:NAME@URL[,URL...][?setting=value&...]`.

        Raises:
            UsageError: the address has another form.
        """
        found = parse_address(address)
        return cls(found.model, [each.url for each in found.endpoints], settings=found.settings, sampling=sampling)

    @property
    def name(self) -> str:
        """The model's name and where it is."""
        places = [urlsplit(each.url).netloc for each in self._address.endpoints]
        return f"{self._address.model}@{','.join(places)}"

    async def open(self, tools: Sequence[ToolSchema]) -> ServerSession:
        """Open a conversation in which the model may call `tools`; asks the server what it is on first use.

        Raises:
            ModelNotFound: the server has no such model.
            EngineFailed: no server can be reached.
            UsageError: the server wants another API key.
            EngineClosed: the engine was closed.
        """
        if self._closed:
            raise EngineClosed(f"the engine of {self.name} is closed: make a new one")
        conversation = f"conversation-{next(self._numbers)}"
        self._model.client.hold()
        try:
            await self._model.ready(conversation)
        except BaseException:
            self._model.router.leave(conversation)
            await self._model.client.release()
            raise
        session = ServerSession(
            self._model,
            tools,
            conversation=conversation,
            sampling=self._sampling,
            on_close=lambda: self._sessions.discard(session),
        )
        self._sessions.add(session)
        return session

    def statistics(self) -> ServerStatistics:
        """Return counts so far, and by server whether guessing is on at which load."""
        return self._model.statistics()

    async def counters(self) -> ServerCounters | None:
        """Return the servers' own counters (of all their clients); None where they tell none."""
        self._model.client.hold()
        try:
            return await self._model.counters()
        finally:
            await self._model.client.release()

    async def aclose(self) -> None:
        """Close what is open in this event loop; sessions end with an error."""
        self._closed = True
        for session in list(self._sessions):
            await session.aclose()
