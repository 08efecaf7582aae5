"""The only module that knows which HTTP library is in use, so that changing it is a change of one line."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from httpx import AsyncClient as Client
from httpx import HTTPError, HTTPStatusError, Response, TimeoutException

__all__ = ["Client", "HTTPError", "HTTPStatusError", "Response", "TimeoutException", "client"]


def client(base_url: str, timeout: float = 30.0, *, headers: Mapping[str, str] | None = None) -> Client:
    """Return an async client for `base_url`; `timeout` in seconds holds for each phase of a request.

    The environment's proxies are ignored for the loopback interface, as a proxy could not reach it.
    """
    loopback = httpx.URL(base_url).host in ("localhost", "127.0.0.1", "::1")
    return httpx.AsyncClient(base_url=base_url, timeout=timeout, headers=headers, trust_env=not loopback)
