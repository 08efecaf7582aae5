"""How a server is reached: a process of its own over pipes, or an address over streamable HTTP."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import anyio
import httpx2  # the SDK's own HTTP library
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

Address = StdioServerParameters | str

_TIMEOUT = httpx2.Timeout(30.0, read=300.0)  # as the SDK has it: a server may hold a stream open
_TAIL = 4_096  # bytes of a server's stderr that are read to tell why it ended


def label_of(address: Address) -> str:
    """Return a short name of a server for errors and questions: no credentials, no query."""
    if isinstance(address, StdioServerParameters):
        return Path(address.command).name
    parts = urlsplit(address)
    return f"{parts.hostname or address}{f':{parts.port}' if parts.port else ''}{parts.path}"


class Transport:
    """Opens connections to one server, and tells what its process last wrote to stderr."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self._address = address
        self._headers = dict(headers)
        self._stderr: IO[str] | None = None

    @asynccontextmanager
    async def open(self, lost: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
        """Connect; `lost` is called as soon as nothing more can come from the server."""
        async with AsyncExitStack() as stack:
            if isinstance(self._address, StdioServerParameters):
                self.close()
                # The server's words would end up amid the agent's output, and not every program's stderr is a file.
                self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
                read, write = await stack.enter_async_context(stdio_client(self._address, errlog=self._stderr))
            else:
                client = None
                if self._headers:
                    client = await stack.enter_async_context(
                        httpx2.AsyncClient(headers=self._headers, timeout=_TIMEOUT)
                    )
                opening = streamable_http_client(self._address, http_client=client)
                read, write = await stack.enter_async_context(opening)
            yield _Watched(read, lost), write

    def last_words(self) -> str:
        """Return the last line that the server's process wrote to stderr, or an empty string."""
        if self._stderr is None:
            return ""
        with open(os.dup(self._stderr.fileno()), "rb") as raw:
            size = raw.seek(0, os.SEEK_END)
            raw.seek(max(0, size - _TAIL))
            lines = raw.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """Forget what the process wrote."""
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None


class _Watched:
    """A stream of messages that tells when it has ended."""

    def __init__(self, stream: Any, lost: Callable[[], None]) -> None:
        self._stream = stream
        self._lost = lost

    @property
    def last_context(self) -> Any:
        """The sender's context of the last message, where the stream knows it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._lost()
            raise

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._lost()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        closed: bool | None = await self._stream.__aexit__(*exc_info)
        return closed
