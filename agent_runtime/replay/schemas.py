"""The arguments of a tool as JSON Schema, read off the calls that were recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def infer_parameters(calls: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema that all of these arguments fit: names and JSON types, required what no call leaves out.

    Nothing else is guessed: no enumerations, formats or bounds, so that a call that was never seen fits too.
    """
    return _object(list(calls))


def _object(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names: dict[str, list[Any]] = {}
    for value in values:
        for name, item in value.items():
            names.setdefault(str(name), []).append(item)
    schema: dict[str, Any] = {"type": "object", "properties": {name: _schema(items) for name, items in names.items()}}
    required = [name for name, items in names.items() if len(items) == len(values)]
    return schema | ({"required": required} if required else {})


def _schema(values: Sequence[Any]) -> dict[str, Any]:
    kinds = dict.fromkeys(_kind(value) for value in values)
    if "number" in kinds:
        kinds.pop("integer", None)
    named = list(kinds)
    schema: dict[str, Any] = {"type": named[0] if len(named) == 1 else named}
    if "object" in kinds:
        schema |= _object([value for value in values if isinstance(value, Mapping)]) | {"type": schema["type"]}
    if "array" in kinds:
        items = [item for value in values if isinstance(value, list | tuple) for item in value]
        if items:
            schema["items"] = _schema(items)
    return schema


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"
