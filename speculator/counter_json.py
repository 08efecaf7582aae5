"""What in a JSON result may be an argument: its leaves by path, and its objects as records of several values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any

from agent_runtime.tools.canonical import is_shallow, plain
from agent_runtime.tools.values import canonical_json

LONGEST_VALUE = 200
"""Characters of a string that may still be an argument."""
MOST_FIELDS = 60
"""Scalars of one object that are remembered."""

_DIGIT = re.compile(r"\d")

Key = str
"""A value as canonical JSON: what makes values equal."""


def key_of(value: Any) -> Key:
    """Return the form in which values are compared."""
    if type(value) is str:
        return encode_basestring(value)  # the same, without an encoder of its own for each of many words
    return canonical_json(plain(value))


def parse(content: str) -> Any:
    """Return a result's content as JSON; None where it is no object or array, or nested absurdly deep."""
    if content.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if is_shallow(value) else None


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) in the document's own order; positions in lists are blurred to `[]`.

    A key that holds a digit is data, not a name: it is yielded as a value at `.*`, and blurred in the paths below it.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            below = f"{path}.{_blurred(name)}"
            if below.endswith("*"):
                yield below, name
            yield from leaves(item, below)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item, f"{path}[]")
    elif value is not None and value != "" and not (isinstance(value, str) and len(value) > LONGEST_VALUE):
        yield path, value


def objects(value: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (path, object) for every object of a document, outer ones first; paths as in `leaves`."""
    if isinstance(value, Mapping):
        if value:
            yield path, value
        for name, item in value.items():
            yield from objects(item, f"{path}.{_blurred(name)}")
    elif isinstance(value, list):
        for item in value:
            yield from objects(item, f"{path}[]")


def fields(value: Mapping[str, Any]) -> dict[str, Key]:
    """Return an object's scalars by path; of several at one path the first."""
    found: dict[str, Key] = {}
    for path, leaf in leaves(value):
        if path not in found:
            found[path] = key_of(leaf)
            if len(found) >= MOST_FIELDS:
                break
    return found


def lists(value: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return an object's lists of objects, by path."""
    return {f".{name}": item for name, item in value.items() if is_list_of_objects(item)}


def is_list_of_objects(value: Any) -> bool:
    """Tell whether a value is a list that holds objects only, at least one."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def projected(items: list[Mapping[str, Any]], kept: tuple[str, ...]) -> Key | None:
    """Return a list of objects with only the members `kept`; None where an object lacks one."""
    if any(name not in item for item in items for name in kept):
        return None
    return key_of([{name: item[name] for name in kept} for item in items])


def _blurred(name: str) -> str:
    return name if _DIGIT.search(name) is None else "*"
