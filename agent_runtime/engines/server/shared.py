"""What all conversations with one served model share: connections, routes, what is known of the servers, counts."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import anyio
import anyio.to_thread

from agent_runtime.errors import EngineFailed, ModelNotFound, ModelUnsupported
from agent_runtime.traces.drafting import total
from agent_runtime.traces.events import Drafting

from .address import Endpoint, ServerAddress
from .client import ServerClient
from .faults import ServerRejected, ServerSilent, ServerUnreachable
from .metrics import ServerCounters, read_counters
from .model_text import LocalText, is_model_folder, load_text
from .pacing import Pacing
from .retrying import Retries
from .routing import Router
from .served import Served, look_at
from .statistics import Counts, EndpointStatistics, ServerStatistics

_log = logging.getLogger(__name__)

FIRST_CONTACT = 2.0
"""Seconds for which a server that never answered is tried again: a wrong address should be told soon."""


class ServedModel:
    """A model on one or more servers; made by the engine, used by its sessions."""

    def __init__(self, address: ServerAddress, keys: Mapping[Endpoint, str]) -> None:
        self.name = address.model
        self.settings = address.settings
        self.client = ServerClient(keys, timeout=self.settings.timeout, connect_timeout=self.settings.connect_timeout)
        self.router = Router(address.endpoints)
        self.counts = Counts()
        self.text: LocalText | None = None
        """The model's tokenizer, if it is on this machine."""
        self._endpoints = address.endpoints
        self._served: dict[Endpoint, Served] = {}
        self._pacing = {endpoint: Pacing(self.settings.slowdown_limit) for endpoint in address.endpoints}
        self._drafted: dict[Endpoint, ServerCounters] = {}
        self._text_tried = False

    def pacing(self, endpoint: Endpoint) -> Pacing:
        """Return what judges whether guessing slows an endpoint's agents down."""
        return self._pacing[endpoint]

    async def ready(self, conversation: str) -> None:
        """See that a conversation has a server that answers, and load the tokenizer if it is here.

        Raises:
            ModelNotFound: no such model, or no such tokenizer.
            EngineFailed: no server can be reached.
            UsageError: the server wants another API key.
        """
        retry_for = self.settings.retry_for if self._served else min(FIRST_CONTACT, self.settings.retry_for)
        async for attempt in self.retries(retry_for).attempts():
            with attempt:
                endpoint = self.router.place(conversation)
                try:
                    served = await self.served(endpoint)
                except EngineFailed as error:
                    self.failed(endpoint, error)
                    raise
        if not self._text_tried:
            await self._load_text(served)

    async def served(self, endpoint: Endpoint) -> Served:
        """Return what is known of an endpoint; it is asked the first time."""
        known = self._served.get(endpoint)
        if known is None:
            known = self._served[endpoint] = await look_at(self.client, endpoint, self.name)
            self.router.works(endpoint)
            await self.drafted(endpoint)
            known.drafts = endpoint in self._drafted
        return known

    def retries(self, retry_for: float) -> Retries:
        """Return when a request is tried again."""
        return Retries(retry_for, note=self._count_retry)

    def failed(self, endpoint: Endpoint, error: Exception) -> None:
        """Take an error into account when conversations are routed."""
        gone = isinstance(error, ServerUnreachable | ServerSilent)
        if gone or (isinstance(error, ServerRejected) and error.status >= 500):
            self.router.failed(endpoint)

    async def counters(self) -> ServerCounters | None:
        """Return the servers' own counters, summed; None where none of them tells."""
        found = [counters for endpoint in self._endpoints if (counters := await self._counters_of(endpoint))]
        return _sum(found) if found else None

    async def drafted(self, endpoint: Endpoint) -> Drafting | None:
        """Return what a server drafted since this was last asked, for servers that don't tell it by request.

        It is the server's count, over everyone who uses it, the probes of this engine included.
        """
        now = await self._counters_of(endpoint)
        if now is None or now.drafting is None:
            return None
        earlier, self._drafted[endpoint] = self._drafted.get(endpoint), now
        return now.since(earlier).drafting if earlier is not None else None

    async def _counters_of(self, endpoint: Endpoint) -> ServerCounters | None:
        served = self._served.get(endpoint)
        if served is None or not served.has_metrics:
            return None
        try:
            page = await self.client.get(endpoint, f"{endpoint.root}/metrics")
        except ServerRejected:
            served.refused.add("metrics")
            return None
        except EngineFailed:
            return None
        return read_counters(page, model=self.name)

    def no_guesses(self, endpoint: Endpoint, reason: str) -> None:
        """Note why an endpoint can't be asked for guesses; told once."""
        if endpoint.place not in self.counts.no_guesses:
            _log.warning("no calls are guessed on the server at %s: %s", endpoint.place, reason)
        self.counts.no_guesses[endpoint.place] = reason

    def add_drafting(self, drafting: Drafting) -> None:
        """Count what a message's drafts came to."""
        self.counts.drafting = total(filter(None, [self.counts.drafting, drafting]), drafting.kind)

    def statistics(self) -> ServerStatistics:
        """Return counts so far."""
        counts, loads = self.counts, self.router.conversations()
        return ServerStatistics(
            endpoints=tuple(self._about(endpoint, loads[endpoint]) for endpoint in self._endpoints),
            requests=counts.requests,
            retries=counts.retries,
            moves=self.router.moves,
            probes=counts.probes,
            probes_declined=sum(pacing.declined for pacing in self._pacing.values()),
            probe_prompt_tokens=counts.probe_prompt_tokens,
            probe_cached_tokens=counts.probe_cached_tokens,
            prefixes_compared=counts.prefixes_compared,
            prefixes_identical=counts.prefixes_identical,
            drafting=counts.drafting,
        )

    def _about(self, endpoint: Endpoint, conversations: int) -> EndpointStatistics:
        served = self._served.get(endpoint)
        return EndpointStatistics(
            place=endpoint.place,
            kind=served.kind if served else "unknown",
            version=".".join(map(str, served.version)) if served else "",
            conversations=conversations,
            loads=self._pacing[endpoint].statistics(),
            no_guesses=self.counts.no_guesses.get(endpoint.place),
        )

    def _count_retry(self, error: Exception) -> None:
        self.counts.retries += 1

    async def _load_text(self, served: Served) -> None:
        """Load the tokenizer that was named, or that of the folder that a server on this machine loaded."""
        named = self.settings.tokenizer
        if named is not None:
            self.text = await self._loaded(named, here_only=False)
        elif served.root and served.endpoint.is_here and await anyio.to_thread.run_sync(is_model_folder, served.root):
            try:
                self.text = await self._loaded(served.root, here_only=True)
            except (ModelNotFound, ModelUnsupported) as error:
                _log.warning("%s", error)
        self._text_tried = True

    async def _loaded(self, source: str, *, here_only: bool) -> LocalText:
        return await anyio.to_thread.run_sync(lambda: load_text(source, name=self.name, here_only=here_only))


def _sum(counters: list[ServerCounters]) -> ServerCounters:
    drafting = [each.drafting for each in counters if each.drafting is not None]
    queries = [each.prefix_queries for each in counters if each.prefix_queries is not None]
    hits = [each.prefix_hits for each in counters if each.prefix_hits is not None]
    return ServerCounters(
        prefix_queries=sum(queries) if queries else None,
        prefix_hits=sum(hits) if hits else None,
        drafting=total(drafting, drafting[0].kind) if drafting else None,
    )
