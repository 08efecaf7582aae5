"""The tools' JSON schemas, read from the signatures and docstrings of the client's functions."""

from __future__ import annotations

import inspect
import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .client import EFFECTS, ShopClient

_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def tools_schema() -> list[dict[str, Any]]:
    """Return the tools as OpenAI-style function schemas, in the order of `EFFECTS`."""
    return [_schema(name) for name in EFFECTS]


def _schema(name: str) -> dict[str, Any]:
    function = getattr(ShopClient, name)
    documentation = inspect.getdoc(function) or ""
    summary = documentation.partition("\n")[0]
    described = dict(re.findall(r"^ {4}(\w+): (.+)$", documentation, re.MULTILINE))
    hints = get_type_hints(function)
    hints.pop("return")
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": summary,
            "parameters": {
                "type": "object",
                "properties": {key: {**_type(hint), "description": described[key]} for key, hint in hints.items()},
                "required": list(hints),
                "additionalProperties": False,
            },
        },
    }


def _type(hint: Any) -> dict[str, Any]:
    if get_origin(hint) is Literal:
        return {"type": "string", "enum": list(get_args(hint))}
    return {"type": _JSON_TYPES[hint]}
