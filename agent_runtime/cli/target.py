"""Finds the agent that a TARGET names: `module:variable`, `file.py:variable`, or the built-in `shop`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agent_runtime.errors import UsageError

from .errors import debugging
from .text import one_line

if TYPE_CHECKING:
    from agent_runtime import Agent
    from agent_runtime.engines.cassette import Cassette

BUILT_IN = "shop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says about an agent; None leaves the agent's own setting."""

    model: str | None = None
    device: str | None = None
    speculation: bool | None = None
    traces: str | None = None
    cassette: Cassette | None = None

    def given(self) -> dict[str, Any]:
        """Return the settings that were given, by name; the cassette is none of the agent's own."""
        names = (name for name in self.__slots__ if name != "cassette")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Target:
    """An agent, or what makes one: a function or class whose call gives an agent or a context manager of one."""

    name: str
    value: Any

    @asynccontextmanager
    async def open(self, options: Options | None = None) -> AsyncIterator[Agent]:
        """Hold the agent open, with `options` laid over its own settings; it is closed on leaving.

        Raises:
            UsageError: the target gives no agent, or can't take an option.
        """
        options = options or Options()
        async with self._open(options.given()) as agent:
            yield agent if options.cassette is None else options.cassette.attach(agent)

    @asynccontextmanager
    async def _open(self, given: dict[str, Any]) -> AsyncIterator[Agent]:
        from agent_runtime import Agent

        value, left = self.value, given
        if not isinstance(value, Agent) and callable(value):
            taken = _accepted(value, given)
            left = {name: given[name] for name in given.keys() - taken.keys()}
            value = value(**taken)
        if inspect.isawaitable(value):
            value = await value
        if isinstance(value, Agent):
            async with value, _changed(value, left) as agent:
                yield agent
        elif isinstance(value, AbstractAsyncContextManager):
            async with value as inner:
                if not isinstance(inner, Agent):
                    raise UsageError(self._not_an_agent(inner))
                async with _changed(inner, left) as agent:
                    yield agent
        else:
            raise UsageError(self._not_an_agent(value))

    def _not_an_agent(self, value: object) -> str:
        return f"{self.name} is a {type(value).__name__}; name an Agent, or a function that returns one"


@asynccontextmanager
async def _changed(agent: Agent, changes: dict[str, Any]) -> AsyncIterator[Agent]:
    if not changes:
        yield agent
        return
    async with agent.replace(**changes) as changed:
        yield changed


def _accepted(factory: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return those of the options that a factory has parameters for."""
    parameters = inspect.signature(factory).parameters.values()
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name not in given
    ]
    if needed:
        raise UsageError(
            f"{getattr(factory, '__name__', factory)} needs {', '.join(needed)}; "
            "give its parameters defaults, or name a function that does"
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(given)
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in given.items() if name in names}


def load_target(text: str) -> Target:
    """Import what `text` names.

    Raises:
        UsageError: it has another form, can't be imported, or has no such variable.
    """
    if text == BUILT_IN:
        from agent_runtime.demo.agent import shop_agent

        return Target(text, shop_agent)
    place, colon, variable = text.rpartition(":")
    if not colon or not place or not variable:
        raise UsageError(f"'{text}' names no agent; write module:variable, file.py:variable or {BUILT_IN}")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    try:
        return Target(text, getattr(module, variable))
    except AttributeError:
        raise UsageError(f"{place} has no '{variable}'{_suggestion(module)}") from None


def _suggestion(module: ModuleType) -> str:
    from agent_runtime import Agent

    agents = sorted(name for name, value in vars(module).items() if isinstance(value, Agent))
    return f"; agents in it: {', '.join(agents)}" if agents else "; define an Agent there"


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())  # as `python -m` does: the user's own modules stand in the working folder
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"no module named '{name}' here or installed; give a file as path.py:variable") from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no file {path}; check the path before the colon")
    # As `python file.py` does: its neighbours can be imported, and its name is the stem where that is free.
    sys.path.insert(0, str(path.resolve().parent))
    name = path.stem if path.stem not in sys.modules else f"agent_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} can't be imported; give a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations of tools are looked up here
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _broken(str(path), error) from error
    return module


def _broken(place: str, error: Exception) -> UsageError:
    if debugging():
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    if isinstance(error, SyntaxError):
        where = f" (line {error.lineno} of {error.filename})"
    else:
        where = f" (line {own[-1].lineno} of {own[-1].filename})" if own else ""
    return UsageError(f"importing {place} failed: {type(error).__name__}: {one_line(str(error))}{where}")
