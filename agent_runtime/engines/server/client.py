"""Requests to servers: JSON in, JSON or a stream of it out, faults as errors that name the server and no secret."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.lowlevel import RunVar

from agent_runtime import _http
from agent_runtime.errors import UsageError

from .address import Endpoint
from .faults import ServerRejected, ServerSilent, ServerUnreachable, StreamBroken, error_text, retry_after
from .sse import EventStream

_numbers = itertools.count()
_DONE = "[DONE]"
_BODY_ENDS = 0.5
"""Seconds that the end of a body may take after the stream's last event."""


@dataclass(slots=True)
class _Pool:
    """The connections of one event loop, and how many sessions use them."""

    users: int = 0
    clients: dict[Endpoint, _http.Client] = field(default_factory=dict)


class ServerClient:
    """Talks to the endpoints of one model.

    Connections belong to an event loop, so each loop has its own; `hold` says who needs them, and they are closed when
    nobody does.

    Args:
        keys: The API key by endpoint. It leaves this object in request headers only, never in an error.
        timeout: Seconds of silence after which a request counts as lost.
        connect_timeout: Seconds to connect.
    """

    def __init__(self, keys: Mapping[Endpoint, str], *, timeout: float, connect_timeout: float) -> None:
        self._keys = dict(keys)
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        # Such variables are told apart by name, so no later client may get this one's: its connections carry the key.
        self._pools: RunVar[_Pool] = RunVar(f"agent_runtime.server.{next(_numbers)}")

    def hold(self) -> None:
        """Note that one more session of this event loop needs connections."""
        self._pool().users += 1

    async def release(self) -> None:
        """Note that a session needs them no longer; the last one closes them."""
        pool = self._pool()
        pool.users -= 1
        if pool.users <= 0:
            clients, pool.clients = list(pool.clients.values()), {}
            with anyio.CancelScope(shield=True):
                for client in clients:
                    await client.aclose()

    async def get(self, endpoint: Endpoint, url: str) -> str:
        """Return the body that a GET gives.

        Raises:
            ServerUnreachable, ServerSilent, ServerRejected: it gives none.
        """
        with self._named(endpoint):
            response = await self._client(endpoint).get(url)
            self._check(endpoint, response, response.text)
            return response.text

    async def post(self, endpoint: Endpoint, url: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON that a POST of JSON gives.

        Raises:
            ServerUnreachable, ServerSilent, ServerRejected: it gives none.
        """
        with self._named(endpoint):
            response = await self._client(endpoint).post(url, json=body)
            self._check(endpoint, response, response.text)
        try:
            return json.loads(response.text)
        except ValueError:
            raise ServerRejected(endpoint, response.status_code, "what it sent is not JSON") from None

    @asynccontextmanager
    async def stream(
        self, endpoint: Endpoint, url: str, body: Mapping[str, Any]
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """POST, and iterate over the JSON objects that stream back. Leaving the context closes the request.

        Raises:
            ServerUnreachable, ServerSilent, ServerRejected: the server gives no stream.
            StreamBroken: on iterating, the connection was lost.
        """
        client = self._client(endpoint)
        with self._named(endpoint):
            response = await client.send(client.build_request("POST", url, json=body), stream=True)
        pieces = response.aiter_bytes()
        try:
            if response.is_error:
                with self._named(endpoint):
                    self._check(endpoint, response, (await response.aread()).decode("utf-8", "replace"))
            async with aclosing(self._chunks(endpoint, pieces)) as chunks:
                yield chunks
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
                # The library's generators are nested, and closing the outer one leaves the inner ones to the garbage
                # collector, which trio complains of. Read on: on a closed connection all of them end at once.
                with suppress(Exception):
                    async for _ in pieces:
                        pass

    async def _chunks(self, endpoint: Endpoint, pieces: AsyncIterator[bytes]) -> AsyncGenerator[dict[str, Any], None]:
        events = EventStream()
        with self._named(endpoint, broken=True):
            async for piece in pieces:
                for data in events.feed(piece):
                    if data.strip() == _DONE:
                        with anyio.move_on_after(_BODY_ENDS):  # a body read to its end leaves the connection usable
                            async for _ in pieces:
                                pass
                        return
                    chunk = self._json(endpoint, data)
                    if not isinstance(chunk, dict):
                        raise StreamBroken(endpoint, "what it streams is not what was asked for")
                    if chunk.get("error"):
                        raise self._refused(endpoint, chunk)
                    yield chunk

    def _refused(self, endpoint: Endpoint, chunk: Mapping[str, Any]) -> ServerRejected:
        """Return the error that a stream holds instead of more of the message."""
        error = chunk["error"]
        code = error.get("code") if isinstance(error, dict) else None
        return ServerRejected(
            endpoint, code if isinstance(code, int) else 500, self._without_key(endpoint, error_text(json.dumps(chunk)))
        )

    def _json(self, endpoint: Endpoint, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise StreamBroken(endpoint, "what it sent is not JSON") from None

    def _check(self, endpoint: Endpoint, response: _http.Response, body: str) -> None:
        if response.is_success:
            return
        status, reason = response.status_code, self._without_key(endpoint, error_text(body))
        if status in (401, 403):
            given = "refuses the API key" if endpoint in self._keys else "wants an API key"
            raise UsageError(
                f"the server at {endpoint.place} {given} ({status}: {reason}): set OPENAI_API_KEY, "
                "or name another variable with ?key_env=NAME (a plain http:// address needs that)"
            )
        raise ServerRejected(endpoint, status, reason, retry_after(response.headers.get("retry-after")))

    def _without_key(self, endpoint: Endpoint, text: str) -> str:
        """Return a server's words, which may quote what it was sent, without the key."""
        key = self._keys.get(endpoint)
        return text.replace(key, "***") if key else text

    @contextmanager
    def _named(self, endpoint: Endpoint, *, broken: bool = False) -> Iterator[None]:
        """Turn what the HTTP library raises into one line; `broken` says that the answer had begun."""
        try:
            yield
        except (_http.ConnectError, _http.ConnectTimeout) as error:
            reason = "no answer in time" if isinstance(error, _http.ConnectTimeout) else _words(error)
            raise ServerUnreachable(endpoint, self._without_key(endpoint, reason)) from None
        except _http.TimeoutException:
            raise ServerSilent(endpoint, self._timeout) from None
        except _http.HTTPError as error:
            reason = self._without_key(endpoint, _words(error))
            raise (StreamBroken if broken else ServerUnreachable)(endpoint, reason) from None

    def _pool(self) -> _Pool:
        try:
            return self._pools.get()
        except LookupError:
            pool = _Pool()
            self._pools.set(pool)
            return pool

    def _client(self, endpoint: Endpoint) -> _http.Client:
        clients = self._pool().clients
        if endpoint not in clients:
            key = self._keys.get(endpoint)
            clients[endpoint] = _http.client(
                endpoint.url,
                self._timeout,
                headers={"Authorization": f"Bearer {key}"} if key else None,
                connect_timeout=self._connect_timeout,
                max_connections=None,  # the server queues better than the client does
            )
        return clients[endpoint]


def _words(error: BaseException) -> str:
    """Return why a request failed; the operating system's own words where there are some."""
    cause: BaseException | None = error
    while cause is not None:
        inner = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause
        if isinstance(inner, OSError) and inner.errno:
            return os.strerror(inner.errno or 0).lower()
        cause = inner.__cause__ or inner.__context__
    return " ".join(str(error).split()) or type(error).__name__


def keys_of(
    endpoints: Sequence[Endpoint], *, given: str | None, environment: Mapping[str, str], named: str | None
) -> dict[Endpoint, str]:
    """Return the API key of each endpoint: the one given or named, or OPENAI_API_KEY where nobody on the way reads it.

    Raises:
        UsageError: the variable that was named is not set.
    """
    if given is None and named is not None:
        given = environment.get(named)
        if not given:
            raise UsageError(f"the environment variable {named} is not set: put the server's API key into it")
    if given:
        return dict.fromkeys(endpoints, given)
    usual = environment.get("OPENAI_API_KEY")
    return {endpoint: usual for endpoint in endpoints if endpoint.is_private} if usual else {}
