"""The shop as a real HTTP service on the loopback interface, in a thread of its own.

``POST /worlds/{world}/tools/{tool}`` with the arguments as a JSON object runs a tool on that world's store.
A call takes effect when it arrives and is answered after the tool's latency, so a call that the client gives
up on has been executed and is counted.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .client import EFFECTS, ShopClient, open_client
from .store import READS, Store, Write, to_json
from .world import World

Span = tuple[float, float]

READ_LATENCY_MS: Span = (80, 400)
WRITE_LATENCY_MS: Span = (200, 500)
DEFAULT_LATENCY_MS: dict[str, Span] = {name: READ_LATENCY_MS if name in READS else WRITE_LATENCY_MS for name in EFFECTS}
"""Lowest and highest latency per tool in milliseconds, about those of services across a network."""

_STATUS = {None: 200, "not_found": 404, "unknown_tool": 404, "refused": 409, "invalid": 422}
_POLL_SECONDS = 0.005


class ShopBackend:
    """Serves any number of separate worlds; an async context manager for asyncio and trio.

    Args:
        latency_ms: One number for all tools, or a number or a (lowest, highest) pair per tool; tools left
            out keep their default. 0 answers at once.
        seed: Decides, with the request, where in its span a latency falls: equal requests to one world
            take equal time in every run.
    """

    def __init__(
        self, *, latency_ms: float | Mapping[str, float | Span] | None = None, seed: int = 0, host: str = "127.0.0.1"
    ) -> None:
        self._latency = _spans(latency_ms)
        self._seed = seed
        self._host = host
        self._stores: dict[str, Store] = {}
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """The service's address. Raises RuntimeError while the service does not run."""
        if self._thread is None:
            raise RuntimeError("the shop does not run; enter it first with 'async with'")
        return f"http://{self._host}:{self._port}"

    # Worlds

    def add_world(self, name: str, world: World) -> Store:
        """Start a world, replacing one of the same name, and return its store."""
        self.remove_world(name)
        store = Store(world)
        self._stores[name] = store
        return store

    def remove_world(self, name: str) -> None:
        """Forget a world."""
        store = self._stores.pop(name, None)
        if store is not None:
            store.close()

    def store(self, name: str) -> Store:
        """Return the store of a world. Raises KeyError when there is no such world."""
        return self._stores[name]

    def calls(self, name: str) -> Counter[str]:
        """Return how often each tool of a world was executed, refused calls included."""
        return Counter(self._stores[name].calls)

    def writes(self, name: str) -> tuple[Write, ...]:
        """Return the writes that took effect in a world, in order."""
        return tuple(self._stores[name].writes)

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[ShopClient]:
        """Open the tools of a world."""
        async with open_client(self.base_url, name) as client:
            yield client

    # The service

    def latency_seconds(self, world: str, tool: str, arguments: Mapping[str, Any]) -> float:
        """Return how long a request takes: a point of the tool's span, decided by the request and the seed."""
        low, high = self._latency[tool]
        key = json.dumps([self._seed, world, tool, arguments], sort_keys=True)
        fraction = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) / 2**32
        return (low + (high - low) * fraction) / 1000

    async def _call_tool(self, request: Request) -> Response:
        world, tool = request.path_params["world"], request.path_params["tool"]
        store = self._stores.get(world)
        if store is None:
            return _error(404, "unknown_world", f"no world {world}")
        if tool not in EFFECTS:
            return _error(404, "unknown_tool", f"no tool {tool}")
        try:
            arguments = json.loads(await request.body())
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return _error(422, "invalid", f"the arguments of {tool} must be a JSON object")
        code, text = store.perform(tool, arguments)
        latency = self.latency_seconds(world, tool, arguments)
        if latency > 0:
            await anyio.sleep(latency)
        return Response(text, _STATUS[code], media_type="application/json")

    async def __aenter__(self) -> ShopBackend:
        """Start the service at a free port and wait until it answers."""
        # With its protocol named, asyncio turns Nagle's algorithm off; otherwise each reply waits 40 ms for an ACK.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind((self._host, 0))
        self._port = listener.getsockname()[1]
        app = Starlette(routes=[Route("/worlds/{world}/tools/{tool}", self._call_tool, methods=["POST"])])
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", http="h11", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="shop-backend", daemon=True
        )
        self._thread.start()
        try:
            while not self._server.started:
                if not self._thread.is_alive():
                    raise RuntimeError("the shop's HTTP service ended while starting")
                await anyio.sleep(_POLL_SECONDS)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the service, wait for its thread to end and forget all worlds."""
        await self._stop()

    async def _stop(self) -> None:
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is not None and thread is not None:
            server.should_exit = True
            with anyio.CancelScope(shield=True):
                # Polled: joining in a worker thread would leave that thread behind.
                while thread.is_alive():  # noqa: ASYNC110
                    await anyio.sleep(_POLL_SECONDS)
            thread.join()
        for name in list(self._stores):
            self.remove_world(name)


def _spans(latency_ms: float | Mapping[str, float | Span] | None) -> dict[str, Span]:
    if latency_ms is None:
        return dict(DEFAULT_LATENCY_MS)
    if not isinstance(latency_ms, Mapping):
        return {name: (latency_ms, latency_ms) for name in EFFECTS}
    unknown = latency_ms.keys() - EFFECTS.keys()
    if unknown:
        raise ValueError(f"no tool {', '.join(sorted(unknown))}; the shop's tools are {', '.join(EFFECTS)}")
    spans = dict(DEFAULT_LATENCY_MS)
    for name, value in latency_ms.items():
        spans[name] = value if isinstance(value, tuple) else (value, value)
    return spans


def _error(status: int, code: str, message: str) -> Response:
    return Response(to_json({"error": code, "message": message}), status, media_type="application/json")
