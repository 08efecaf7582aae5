"""Agents: a model, instructions and tools under one name, and the runs they make."""

from __future__ import annotations

import copy
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio

from agent_runtime.engines.base import Engine, Session, ToolSchema
from agent_runtime.engines.choose import engine_for
from agent_runtime.errors import AgentRuntimeError, LimitExceeded, RunFailed, UsageError
from agent_runtime.hooks import Hooks
from agent_runtime.limits import Limits
from agent_runtime.live import LiveEvents
from agent_runtime.loop import run_turns
from agent_runtime.result import RunResult
from agent_runtime.run import Run
from agent_runtime.speculator.counter import CounterPredictor
from agent_runtime.speculator.policy import Policy
from agent_runtime.speculator.predictors import Predictor
from agent_runtime.speculator.self_predictor import SelfPredictor
from agent_runtime.speculator.settings import Speculation
from agent_runtime.tools import Dispatcher, Gate, GuessLimits, Tool, as_tools, describe, load_catalogue
from agent_runtime.traces import MemoryTrace, RunTrace, TraceStore
from agent_runtime.traces.clock import under_virtual_clock
from agent_runtime.traces.events import Event, RunStarted, RunStatus
from agent_runtime.traces.messages import Message, SystemMessage, UserMessage

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling


class RunStream:
    """A run in progress: iterate over it for its events; `result` is there once the iteration has ended."""

    def __init__(self, run_id: str, live: LiveEvents) -> None:
        self.run_id = run_id
        self._live = live
        self._result: RunResult | None = None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._live

    @property
    def result(self) -> RunResult:
        """How the run ended.

        Raises:
            RuntimeError: the run has not ended yet.
        """
        if self._result is None:
            raise RuntimeError("the run has not ended: iterate over the stream to its end before reading `result`")
        return self._result


class Agent:
    """A model with instructions and tools.

    The model loads when the first run starts and is shared by all runs of this agent.

    Args:
        name: Name in traces and reports.
        model: Hub id, local folder or GGUF file of a causal language model, `openai:NAME@http://host:port/v1` for one
            that a server has, or an `Engine`.
        instructions: The system prompt.
        tools: Functions or `Tool`s. A plain function counts as a write, so that it is never started early.
        speculation: False switches guessing off; a `Speculation` says how to guess.
        limits: Bounds of each run.
        sampling: How tokens are chosen; None takes the model's own generation defaults.
        hooks: Functions called at stated points of a run.
        traces: Where runs are recorded: True is the user's own database, False only memory; or a path, a URL or
            an open `TraceStore`.
        catalogue: Operator catalogue (TOML or JSON) that overrides what tools say of themselves.
        device: `auto`, `cuda` or `cpu`; for models given by name.

    Raises:
        ToolsError: two tools share a name, or a function's signature can't be described to a model.
    """

    def __init__(
        self,
        name: str,
        model: str | Path | Engine,
        *,
        instructions: str = "",
        tools: Sequence[Tool | Callable[..., Any]] = (),
        speculation: bool | Speculation = True,
        limits: Limits | None = None,
        sampling: Sampling | None = None,
        hooks: Hooks | None = None,
        traces: bool | str | Path | TraceStore = True,
        catalogue: str | Path | None = None,
        device: str = "auto",
    ) -> None:
        self.name = name
        self.instructions = instructions
        self._catalogue = load_catalogue(catalogue) if catalogue is not None else None
        self.tools = as_tools(tools, catalogue=self._catalogue)
        self.speculation = Speculation() if speculation is True else speculation or None
        self.limits = limits or Limits()
        self.sampling = sampling
        self.hooks = hooks or Hooks()
        self.engine, self._owns_engine = _engine(model, device)
        self._traces = traces
        self._store: TraceStore | None = None
        self._store_lock = threading.Lock()
        self._policy = Policy(self.speculation)
        self._counter = _counter(self.speculation)
        self.gate = _gate(self.speculation)

    def replace(
        self,
        *,
        model: str | Path | Engine | None = None,
        device: str = "auto",
        tools: Sequence[Tool | Callable[..., Any]] | None = None,
        speculation: bool | Speculation | None = None,
        sampling: Sampling | None = None,
        traces: bool | str | Path | TraceStore | None = None,
    ) -> Agent:
        """Return the same agent with some settings changed.

        Without `model` both share one engine, and without `speculation` also what guessing has learned so far.
        """
        other = copy.copy(self)
        other._store, other._store_lock = None, threading.Lock()
        if tools is not None:
            other.tools = as_tools(tools, catalogue=self._catalogue)
        if sampling is not None:
            other.sampling = sampling
        if model is not None or device != "auto":
            given = model if model is not None else getattr(self.engine, "model", None)
            if given is None:
                raise UsageError(f"the model of agent {self.name!r} has no device to choose; leave the device out")
            other.engine, other._owns_engine = _engine(given, device)
        else:
            other._owns_engine = False
        if speculation is not None:
            other.speculation = Speculation() if speculation is True else speculation or None
            other._policy = Policy(other.speculation)
            other._counter = _counter(other.speculation)
            other.gate = _gate(other.speculation)
        if traces is not None:
            other._traces = traces
        return other

    async def run(self, task: str) -> RunResult:
        """Run the agent on a task to its end.

        Raises:
            AgentRuntimeError: the run failed or met a limit; `error.result` holds what there is of it.
            TracesError: the run can't be recorded.
            Exception: what a hook raised.
        """
        async with self.stream(task) as stream:
            async for _ in stream:
                pass
            result = stream.result
        if isinstance(result.error, AgentRuntimeError):
            result.error.result = result
        if result.error is not None:
            raise result.error
        return result

    def run_sync(self, task: str) -> RunResult:
        """Run the agent on a task from code that isn't asynchronous.

        Raises:
            AgentRuntimeError: as `run`.
            RuntimeError: an event loop is already running in this thread; `await agent.run(task)` there.
        """
        return anyio.run(self.run, task)

    @asynccontextmanager
    async def stream(self, task: str) -> AsyncIterator[RunStream]:
        """Start a run and watch it: `async with agent.stream(task) as stream: async for event in stream: ...`.

        Leaving the context before the run's end cancels the run. A run that fails ends the iteration, and
        `stream.result.error` says why. What the block itself raises comes out as it is.

        Raises:
            AgentRuntimeError: the run can't start, e.g. there is no such model.
            TracesError: the run can't be recorded, e.g. the database's folder can't be written.
            ToolDefinitionError: a tool is synchronous and the clock is virtual, which no thread follows.
        """
        live = LiveEvents()
        async with AsyncExitStack() as opened:
            session = await self.engine.open([_schema(tool) for tool in self.tools])
            opened.push_async_callback(_shielded, session.aclose)
            started = RunStarted(at=0.0, agent=self.name, model=self.engine.name, task=task, settings=self._settings())
            trace = await opened.enter_async_context(self._open_trace(started))
            stream = RunStream(trace.run_id, live)
            run = self._new_run(started, session, trace, live)
            raised: BaseException | None = None
            async with anyio.create_task_group() as background:
                background.start_soon(self._drive, run, started, stream)
                try:
                    yield stream
                except (Exception, KeyboardInterrupt, SystemExit) as error:
                    raised = error  # kept from the task group, which would wrap it in an ExceptionGroup
                finally:
                    live.detach()
                    if stream._result is None:
                        background.cancel_scope.cancel()
            if raised is not None:
                raise raised

    def _new_run(self, started: RunStarted, session: Session, trace: RunTrace, live: LiveEvents) -> Run:
        """Return a run whose clock starts now."""
        zero = anyio.current_time()
        dispatcher = Dispatcher(
            self.tools,
            gate=self.gate,
            limits=self.speculation.limits if self.speculation else GuessLimits(),
            emit=lambda event: run.emit(event),
            zero=zero,
            run_id=trace.run_id,
            before_write=trace.durable,
            approve=self.hooks.approve,
            before_call=self.hooks.before_call,
            after_call=self.hooks.after_call,
            worker_threads=not under_virtual_clock(),
        )
        run = Run(
            session=session,
            dispatcher=dispatcher,
            predictor=self._predictor(session),
            quick=self._counter,
            policy=self._policy.for_run(),
            trace=trace,
            live=live,
            limits=self.limits,
            sampling=self.sampling,
            hooks=self.hooks,
            messages=self._opening(started.task),
            zero=zero,
        )
        return run

    async def _drive(self, run: Run, started: RunStarted, stream: RunStream) -> None:
        """Run the turn loop under a dispatcher and make the result of whatever comes of it."""
        status: RunStatus = "failed"
        output = ""
        error: BaseException | None = None
        try:
            run.emit(started)
            async with run.dispatcher:
                output = await run_turns(run)
            status = "done"
        except anyio.get_cancelled_exc_class():
            # The event loops' own words for it name scopes and addresses, and differ from one loop to the other.
            status, error = "cancelled", RunFailed("the run was cancelled before it ended")
            raise
        except Exception as raised:
            error = _innermost(raised)
            status = "limit" if isinstance(error, LimitExceeded) else "failed"
        finally:
            stream._result = run.finish(status, output, error)
            stream._live.close()

    def _opening(self, task: str) -> list[Message]:
        """Return the messages a run begins with."""
        system = [SystemMessage(self.instructions)] if self.instructions else []
        return [*system, UserMessage(task)]

    def _predictor(self, session: Session) -> Predictor | None:
        settings = self.speculation
        if settings is None or settings.predictor == "counter":
            return None
        if isinstance(settings.predictor, str):
            return SelfPredictor(session, max_tokens=settings.max_probe_tokens)
        return settings.predictor

    @asynccontextmanager
    async def _open_trace(self, started: RunStarted) -> AsyncIterator[RunTrace]:
        if self._traces is False:
            yield MemoryTrace()
            return
        if isinstance(self._traces, TraceStore):
            store = self._traces
        else:
            store = self._own_store() if under_virtual_clock() else await anyio.to_thread.run_sync(self._own_store)
        secrets = {tool.name: tool.secret_arguments for tool in self.tools if tool.secret_arguments}
        async with store.start_run(started, secrets=secrets) as writer:
            yield writer

    def _own_store(self) -> TraceStore:
        """Return the agent's store; runs that begin together, perhaps in several loops, open it once."""
        with self._store_lock:
            if self._store is None:
                where = self._traces
                self._store = TraceStore.open(where if isinstance(where, str | Path) else None)
            return self._store

    def _settings(self) -> dict[str, Any]:
        described = {tool.name: tool for tool in self.tools}
        return {
            "instructions": self.instructions,
            "speculation": self.speculation.to_json() if self.speculation else None,
            "limits": asdict(self.limits),
            "sampling": asdict(self.sampling) if self.sampling else None,
            "tools": [
                row
                | {
                    "description": described[row["name"]].description,
                    "parameters": dict(described[row["name"]].parameters),
                }
                for row in describe(self.tools, self.gate)
            ],
        }

    def tool_contracts(self) -> list[dict[str, Any]]:
        """Return one row per tool: its effective contract, and why it may or may not be started early."""
        return describe(self.tools, self.gate)

    async def aclose(self) -> None:
        """Free the model that this agent loaded; an engine that was handed in stays open."""
        if self._owns_engine:
            await self.engine.aclose()
        if self._store is not None:
            self._store.close()
            self._store = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose()


def _engine(model: str | Path | Engine, device: str) -> tuple[Engine, bool]:
    """Return the engine for `model`, and whether it was made here."""
    if isinstance(model, str | Path):
        return engine_for(model, device=device), True
    return model, False


def _counter(speculation: Speculation | None) -> CounterPredictor | None:
    if speculation is None or speculation.predictor not in ("counter", "both"):
        return None
    return CounterPredictor(threshold=speculation.min_confidence)


def _gate(speculation: Speculation | None) -> Gate:
    settings = speculation or Speculation()
    return Gate(allow_idempotent=settings.allow_idempotent, allow_open_world=settings.allow_open_world)


def _schema(tool: Tool) -> ToolSchema:
    return ToolSchema(name=tool.name, description=tool.description, parameters=tool.parameters)


def _innermost(error: BaseException) -> BaseException:
    """Return what a task group wrapped, where it wrapped one thing only."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _shielded(close: Callable[[], Awaitable[None]]) -> None:
    with anyio.CancelScope(shield=True):
        await close()
