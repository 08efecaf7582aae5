"""Tools: a function with the schema a model reads and the contract the dispatcher obeys."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, overload

from .canonical import is_shallow, plain
from .context import ToolContext
from .contract import DEFAULT_FRESH_FOR, ApprovalRule, Contract, resource_keys
from .errors import InvalidArguments, ToolDefinitionError
from .json_schema import conform
from .schema import Signature, canonical_arguments, signature_of
from .values import Effect, canonical_json

_OWN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FOREIGN_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Tool:
    """Something an agent may do. Two tools are equal only if they are the same object.

    Calling a tool calls its function: a decorated function stays usable as one.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments."""
    contract: Contract
    function: Callable[..., Any]
    is_async: bool
    signature: Signature | None = field(repr=False)
    """How the arguments map onto the function; None for a tool made by `from_schema`."""
    schema_hash: str
    """Short hash of the name and the parameters."""

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them: defaults filled, `10.0` made `10` for integers.

        Raises:
            InvalidArguments: they don't fit the schema; the message is short enough for a model to read.
        """
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(f"the arguments must be a JSON object, got {type(arguments).__name__}")
        if not is_shallow(arguments):
            raise InvalidArguments("the arguments are nested too deeply")
        if self.signature is not None:
            return self.signature.validate(arguments, secret=self.secret_arguments)
        valid = conform(arguments, self.parameters)
        assert isinstance(valid, dict)
        return valid

    def canonical(self, arguments: Mapping[str, Any]) -> str:
        """Return arguments, as a model wrote them, in the form in which calls are compared.

        Raises:
            InvalidArguments: they don't fit the schema.
        """
        return self.canonical_of(self.validate(arguments))

    def canonical_of(self, valid: Mapping[str, Any]) -> str:
        """Return arguments that `validate` gave in the form in which calls are compared."""
        return canonical_arguments(valid, self.contract.secret)

    @property
    def objection(self) -> str | None:
        """What stands at this moment against starting the tool early, whatever its contract says; None = nothing.

        A tool that comes from a server may lose what its contract rests on.
        """
        return None

    @property
    def secret_arguments(self) -> frozenset[str]:
        """Names of arguments that must not be stored or shown: declared secret, or typed `SecretStr`."""
        return self.contract.secret | (self.signature.secret if self.signature is not None else frozenset())

    def bind(self, valid: Mapping[str, Any], context: ToolContext) -> Callable[[], Any]:
        """Return the function with its arguments in place; calling it runs the tool."""
        if self.signature is None:
            return functools.partial(self.function, dict(valid))
        positional: list[Any] = [context] if self.signature.takes_context else []
        positional += [valid[item.name] for item in self.signature.parameters if item.by_position]
        named = {item.name: valid[item.name] for item in self.signature.parameters if not item.by_position}
        return functools.partial(self.function, *positional, **named)

    def with_contract(self, contract: Contract) -> Tool:
        """Return the same tool under another contract."""
        return replace(self, contract=contract)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the tool's function directly, with its own parameters."""
        return self.function(*args, **kwargs)

    @classmethod
    def from_function(
        cls, function: Callable[..., Any], *, name: str | None = None, contract: Contract | None = None
    ) -> Tool:
        """Make a tool of a function; without a contract it counts as a write that takes any resource key.

        Raises:
            ToolDefinitionError: the function has no usable name, or can't be described to a model.
        """
        name = name or str(getattr(function, "__name__", ""))
        if not _OWN_NAME.fullmatch(name):
            raise ToolDefinitionError(
                f"a tool can't be called {name!r}: give it a name of 1 to 64 letters, digits, '_' and '-' (name=...)"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ToolDefinitionError(f"tool {name!r}: it is a generator; return one value instead")
        signature = signature_of(function, name=name)
        if contract is None:
            contract = Contract(open_world=signature.takes_url, source="default")
        unknown = contract.secret - {item.name for item in signature.parameters}
        if unknown:
            raise ToolDefinitionError(f"tool {name!r}: secret={sorted(unknown)!r} names no argument of it")
        parameters = signature.json_schema()
        return cls(
            name=name,
            description=signature.description,
            parameters=parameters,
            contract=contract,
            function=function,
            is_async=_is_async(function),
            signature=signature,
            schema_hash=_schema_hash(name, parameters),
        )

    @classmethod
    def from_schema(
        cls,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        call: Callable[[Mapping[str, Any]], Awaitable[Any]],
        contract: Contract,
        *,
        trusted: bool,
    ) -> Tool:
        """Make a tool of a JSON Schema and an async function of one argument, the JSON object of arguments.

        This is how tools of a server come in. Where its author doesn't trust the server, only those parts of the
        contract that forbid something count.

        Raises:
            ToolDefinitionError: the name is unusable, or the schema isn't one of a JSON object.
        """
        if not _FOREIGN_NAME.fullmatch(name):
            raise ToolDefinitionError(f"a tool can't be called {name!r}: 1 to 128 letters, digits and '_./-'")
        if parameters.get("type", "object") != "object":
            raise ToolDefinitionError(f"tool {name!r}: its schema must describe an object, not {parameters['type']!r}")
        return cls(
            name=name,
            description=description,
            parameters=dict(parameters),
            contract=contract if trusted else contract.distrusted(),
            function=call,
            is_async=True,
            signature=None,
            schema_hash=_schema_hash(name, parameters),
        )


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    effect: Effect = "write",
    name: str | None = None,
    reads: Iterable[str] | None = None,
    writes: Iterable[str] | None = None,
    open_world: bool | None = None,
    destructive: bool = False,
    fresh_for: float = DEFAULT_FRESH_FOR,
    timeout: float | None = None,
    max_concurrency: int | None = None,
    rate: float | None = None,
    cost: float = 0.0,
    requires_approval: ApprovalRule = False,
    sequential: bool = False,
    secret: Iterable[str] = (),
    pre_execute: bool | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect | None = None,
    name: str | None = None,
    reads: Iterable[str] | None = None,
    writes: Iterable[str] | None = None,
    open_world: bool | None = None,
    destructive: bool = False,
    fresh_for: float = DEFAULT_FRESH_FOR,
    timeout: float | None = None,
    max_concurrency: int | None = None,
    rate: float | None = None,
    cost: float = 0.0,
    requires_approval: ApprovalRule = False,
    sequential: bool = False,
    secret: Iterable[str] = (),
    pre_execute: bool | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a sync or async function: `@tool`, or `@tool(effect="read", ...)`.

    Name, type hints and docstring become what the model reads; arguments are validated by pydantic. A synchronous
    function runs in a worker thread.

    Args:
        function: The function, where the decorator is used bare.
        effect: `read` changes nothing in the world and may be started before the agent asks; `idempotent` is a
            write that may be repeated; `write` (the default) is anything else.
        name: Name for the model; the function's own by default.
        reads: Resource keys a result depends on; a write to one of them makes it stale. None = all keys.
        writes: Resource keys a call may change. None = all keys.
        open_world: The arguments leave the machine. None = only if an argument is a URL.
        destructive: A call may destroy something.
        fresh_for: Seconds in which a result that was fetched early may be handed over.
        timeout: Seconds one execution may take.
        max_concurrency: Executions at the same time, over all runs of the process.
        rate: Calls per second, over all runs of the process.
        cost: What one call costs, in a unit of your own; recorded and shown.
        requires_approval: A person must approve each call, or those for which the function of its validated
            arguments returns True.
        sequential: No other call of a turn runs beside it.
        secret: Names of arguments that must not be stored.
        pre_execute: False = never start it early.

    Raises:
        ToolDefinitionError: the function can't be described to a model, or the contract contradicts itself.
    """

    def decorate(function: Callable[..., Any]) -> Tool:
        label = name or getattr(function, "__name__", repr(function))
        bare = Tool.from_function(function, name=name)
        assert bare.signature is not None
        try:
            contract = Contract(
                effect=effect or "write",
                reads=None if reads is None else resource_keys(reads, "reads"),
                writes=None if writes is None else resource_keys(writes, "writes"),
                open_world=bare.signature.takes_url if open_world is None else open_world,
                destructive=destructive,
                fresh_for=fresh_for,
                timeout=timeout,
                max_concurrency=max_concurrency,
                rate=rate,
                cost=cost,
                requires_approval=requires_approval,
                sequential=sequential,
                secret=resource_keys(secret, "secret"),
                pre_execute=pre_execute,
                source="default" if effect is None else "declared",
            )
        except ToolDefinitionError as error:
            raise ToolDefinitionError(f"tool {label!r}: {error}") from None
        return Tool.from_function(function, name=name, contract=contract)

    return decorate if function is None else decorate(function)


def _schema_hash(name: str, parameters: Mapping[str, Any]) -> str:
    text = canonical_json({"name": name, "parameters": plain(parameters)})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_async(function: Callable[..., Any]) -> bool:
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004
