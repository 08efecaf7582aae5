"""A function's arguments as a pydantic model: the JSON Schema a model reads, and validation of what it writes."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import docstring_parser
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, SecretBytes, SecretStr, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from .canonical import plain, secret_digest
from .context import ToolContext
from .errors import InvalidArguments, ToolDefinitionError
from .values import canonical_json

_SHOWN_ERRORS = 4
_SHOWN_VALUE = 40


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out the titles that pydantic makes of names: they tell a model nothing and cost it tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool: its name for the model, and whether the function takes it by position only."""

    name: str
    by_position: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """What the model may pass to a function, built of its type hints and docstring."""

    description: str
    model: type[BaseModel]
    parameters: tuple[Parameter, ...]
    takes_context: bool
    secret: frozenset[str]
    """Arguments whose type holds a `SecretStr` or `SecretBytes`."""
    takes_url: bool

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema (2020-12) of the arguments."""
        schema = self.model.model_json_schema(schema_generator=_WithoutTitles)
        schema.pop("title", None)
        schema.pop("description", None)
        schema.setdefault("properties", {})
        return schema

    def validate(self, arguments: Mapping[str, Any], *, secret: frozenset[str]) -> dict[str, Any]:
        """Return the arguments as the function takes them, defaults filled in.

        Raises:
            InvalidArguments: they don't fit; the message says which and why, without values of secret arguments.
        """
        try:
            valid = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            known = [parameter.name for parameter in self.parameters]
            raise InvalidArguments(_explain(error, known, secret)) from None
        return {parameter.name: getattr(valid, _field(i)) for i, parameter in enumerate(self.parameters)}


def canonical_arguments(values: Mapping[str, Any], secret: frozenset[str]) -> str:
    """Return validated arguments as canonical JSON; `secret` ones as keyed hashes."""
    form = {name: plain(value) for name, value in values.items()}
    for name in secret & form.keys():
        form[name] = secret_digest(canonical_json(form[name]))
    return canonical_json(form)


def signature_of(function: Callable[..., Any], *, name: str) -> Signature:
    """Read what a model may pass to `function` off its type hints and docstring.

    Raises:
        ToolDefinitionError: the function can't be described: `*args`, an annotation that can't be resolved or has
            no JSON form, ...
    """
    try:
        signature = inspect.signature(function)
        hints = _type_hints(function)
    except (NameError, TypeError, ValueError) as error:
        raise ToolDefinitionError(f"tool {name!r}: its signature can't be read: {error}") from None
    doc = _docstring(function)
    described = {item.arg_name: item.description or "" for item in doc.params}
    fields: dict[str, Any] = {}
    parameters: list[Parameter] = []
    takes_context = takes_url = False
    secret: set[str] = set()
    for position, parameter in enumerate(signature.parameters.values()):
        hint = hints.get(parameter.name, Any)
        if _is_context(hint):
            if position != 0 or parameter.kind is parameter.KEYWORD_ONLY:
                raise ToolDefinitionError(f"tool {name!r}: the ToolContext must be its first parameter")
            takes_context = True
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ToolDefinitionError(f"tool {name!r}: it takes *{parameter.name}; give every argument its own name")
        if position == 0 and parameter.name in ("self", "cls") and hint is Any:
            raise ToolDefinitionError(f"tool {name!r}: it is a method; pass the bound one instead: tool(object.{name})")
        if _contains(hint, SecretStr, SecretBytes):
            secret.add(parameter.name)
        takes_url = takes_url or parameter.name.lower() in ("url", "uri") or _contains(hint, AnyUrl)
        # Fields have neutral names: a parameter may be called `json` or `model_id`, which pydantic keeps for itself.
        default = ... if parameter.default is parameter.empty else parameter.default
        info = Field(alias=parameter.name, description=described.get(parameter.name) or None)
        fields[_field(len(parameters))] = (Annotated[hint, info], default)
        parameters.append(Parameter(parameter.name, parameter.kind is parameter.POSITIONAL_ONLY))
    try:
        model = create_model(
            name, __config__=ConfigDict(extra="forbid", validate_default=False, protected_namespaces=()), **fields
        )
        result = Signature(_summary(doc), model, tuple(parameters), takes_context, frozenset(secret), takes_url)
        result.json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
        problem = str(error).strip().partition("\n")[0]
        raise ToolDefinitionError(f"tool {name!r}: its arguments can't be described to a model: {problem}") from None
    return result


def _field(position: int) -> str:
    return f"argument_{position}"


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    target: Any = inspect.unwrap(function)
    while hasattr(target, "func") and not inspect.isroutine(target):  # functools.partial
        target = target.func
    if not inspect.isroutine(target):
        target = type(target).__call__
    return typing.get_type_hints(target, include_extras=True)


def _is_context(hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(origin, ToolContext)


def _contains(hint: Any, *kinds: type) -> bool:
    """Tell whether an annotation names one of `kinds`, also inside unions and containers."""
    if isinstance(hint, type) and issubclass(hint, kinds):
        return True
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return any(_contains(field.annotation, *kinds) for field in hint.model_fields.values())
    return any(_contains(part, *kinds) for part in typing.get_args(hint))


def _docstring(function: Callable[..., Any]) -> docstring_parser.Docstring:
    target = function
    while hasattr(target, "func") and not inspect.isroutine(target):
        target = target.func
    text = inspect.getdoc(target) or ""
    try:
        return docstring_parser.parse(text)
    except docstring_parser.ParseError:
        plain_text = docstring_parser.Docstring()
        plain_text.short_description = text
        return plain_text


def _summary(doc: docstring_parser.Docstring) -> str:
    parts = (doc.short_description, doc.long_description)
    return "\n\n".join(part.strip() for part in parts if part and part.strip())


def _explain(error: ValidationError, known: list[str], secret: frozenset[str]) -> str:
    problems = error.errors(include_url=False, include_context=False)
    lines = []
    for problem in problems[:_SHOWN_ERRORS]:
        path = ".".join(str(part) for part in problem["loc"])
        top = str(problem["loc"][0]) if problem["loc"] else ""
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            lines.append(f"unknown argument '{path}' (known: {', '.join(known) or 'none'})")
        elif problem["type"] == "missing":
            lines.append(f"missing argument '{path}'")
        else:
            got = "" if top in secret else f", got {_shown(problem['input'])}"
            lines.append(f"{path or 'arguments'}: {problem['msg']}{got}")
    if len(problems) > _SHOWN_ERRORS:
        lines.append(f"and {len(problems) - _SHOWN_ERRORS} more")
    return "; ".join(lines)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_VALUE else text[: _SHOWN_VALUE - 3] + "..."
