"""What a model reads of a tool's result: text as it is, structured content as JSON, anything else by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from ..errors import ToolFailure

if TYPE_CHECKING:
    import mcp
    import mcp.types

_LONGEST_ERROR = 4_000

View = Callable[["mcp.types.CallToolResult"], str]
"""Makes of a server's result the text that the model reads."""


def read(result: mcp.types.CallToolResult, *, view: View | None, longest: int) -> str:
    """Return a result as a model reads it, in at most about `longest` characters.

    Raises:
        ToolFailure: the result is an error; its text is the message.
    """
    text = text_of(result) if view is None else view(result)
    if result.is_error:
        raise ToolFailure("tool_error", bounded(text.strip() or "the tool failed and says no more", _LONGEST_ERROR))
    return bounded(text, longest)


def text_of(result: mcp.types.CallToolResult) -> str:
    """Return all of a result as text."""
    parts = list(_blocks(result.content))
    if result.structured_content is not None and not _says(parts, result.structured_content):
        parts.append(to_json(result.structured_content, inf_nan_mode="strings").decode())
    return "\n".join(parts)


def bounded(text: str, longest: int) -> str:
    """Return the text, or its beginning and a note on how much was left out."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n[cut: {len(text)} characters, the first {longest} are shown]"


def _blocks(content: list[Any]) -> Iterator[str]:
    for block in content:
        match block.type:
            case "text":
                yield block.text
            case "image" | "audio":
                yield f"[{block.type}: {block.mime_type}, {_bytes(block.data)}]"
            case "resource_link":
                yield f"[link: {block.name}, {block.uri}]"
            case "resource":
                text = getattr(block.resource, "text", None)
                if text is None:
                    kind = block.resource.mime_type or "data"
                    text = f"[resource: {block.resource.uri}, {kind}, {_bytes(block.resource.blob)}]"
                yield text
            case other:
                yield f"[{other}]"


def _bytes(base64: str) -> str:
    return f"{len(base64) * 3 // 4} bytes"


def _says(parts: list[str], structured: Any) -> bool:
    """Tell whether the text already holds the structured content, as the specification asks of servers."""
    if not parts:
        return False
    wrapped = structured.get("result") if isinstance(structured, dict) and structured.keys() == {"result"} else None
    if wrapped is not None and ("\n".join(parts) == wrapped or _parsed(parts) == wrapped):
        return True  # the SDK's own form of a plain value
    return any(_loads(part) == structured for part in parts)


def _parsed(parts: list[str]) -> Any:
    values = [_loads(part) for part in parts]
    return values[0] if len(values) == 1 else values


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
