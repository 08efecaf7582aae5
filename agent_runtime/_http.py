"""The only module that knows which HTTP library is in use, so that changing it is a change of one line."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from httpx import AsyncClient as Client
from httpx import ConnectError, ConnectTimeout, HTTPError, HTTPStatusError, Response, TimeoutException

__all__ = [
    "Client",
    "ConnectError",
    "ConnectTimeout",
    "HTTPError",
    "HTTPStatusError",
    "Response",
    "TimeoutException",
    "client",
]


def client(
    base_url: str,
    timeout: float = 30.0,
    *,
    headers: Mapping[str, str] | None = None,
    connect_timeout: float | None = None,
    max_connections: int | None = 100,
) -> Client:
    """Return an async client for `base_url`; `timeout` in seconds holds for each phase of a request.

    `connect_timeout` holds for connecting instead, and more than `max_connections` requests wait for each other. The
    environment's proxies are ignored for the loopback interface, as a proxy could not reach it.
    """
    loopback = httpx.URL(base_url).host in ("localhost", "127.0.0.1", "::1")
    return httpx.AsyncClient(
        base_url=base_url,
        timeout=httpx.Timeout(timeout, connect=timeout if connect_timeout is None else connect_timeout),
        headers=headers,
        limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=20),
        trust_env=not loopback,
    )
