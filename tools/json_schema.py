"""Checks arguments against a JSON Schema that comes from elsewhere, as far as a wrong call can be told cheaply.

Known: `type`, `enum`, `const`, `properties`, `required`, `additionalProperties: false`, `items`. Other keywords are
left to the service that declared the schema: it checks its arguments itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import InvalidArguments

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (Mapping,),
    "array": (list, tuple),
    "null": (type(None),),
}


def conform(value: Any, schema: Mapping[str, Any], path: str = "") -> Any:
    """Return `value` with whole floats made integers where the schema wants integers.

    Raises:
        InvalidArguments: the value breaks the schema; the message names the argument.
    """
    where = path or "arguments"
    kinds = schema.get("type")
    if kinds is not None:
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        if isinstance(value, float) and value.is_integer() and "integer" in kinds and "number" not in kinds:
            value = int(value)
        if not any(_is(value, kind) for kind in kinds):
            raise InvalidArguments(f"{where}: must be of type {' or '.join(kinds)}, got {type(value).__name__}")
    if "enum" in schema and value not in schema["enum"]:
        raise InvalidArguments(f"{where}: must be one of {', '.join(map(repr, schema['enum'][:20]))}")
    if "const" in schema and value != schema["const"]:
        raise InvalidArguments(f"{where}: must be {schema['const']!r}")
    if isinstance(value, Mapping):
        return _conform_object(value, schema, path)
    items = schema.get("items")
    if isinstance(value, list | tuple) and isinstance(items, Mapping):
        return [conform(item, items, f"{where}[{number}]") for number, item in enumerate(value)]
    return value


def _conform_object(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> dict[str, Any]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            raise InvalidArguments(f"missing argument '{_join(path, name)}'")
    if schema.get("additionalProperties") is False:
        for name in value:
            if name not in properties:
                raise InvalidArguments(
                    f"unknown argument '{_join(path, name)}' (known: {', '.join(properties) or 'none'})"
                )
    return {
        name: conform(item, properties[name], _join(path, name)) if isinstance(properties.get(name), Mapping) else item
        for name, item in value.items()
    }


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind in ("integer", "number"):
        return False
    return isinstance(value, _TYPES.get(kind, (object,)))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
