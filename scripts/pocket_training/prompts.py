"""The system prefix every sample shares: the shop's instructions and its tools, through the chat template."""

from __future__ import annotations

import inspect
from typing import Any

from agent_runtime.demo.shop.instructions import INSTRUCTIONS
from agent_runtime.demo.shop.store import READS, WRITES, Store

_TYPES = {"str": "string", "int": "integer"}


def tool_schemas() -> list[dict[str, Any]]:
    """Return the shop's tools as the JSON schemas that a chat template is given."""
    schemas = []
    for name in (*READS, *WRITES):
        method = getattr(Store, name)
        parameters = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
        schemas.append(
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": inspect.getdoc(method),
                    "parameters": {
                        "type": "object",
                        "properties": {p.name: {"type": _TYPES[str(p.annotation)]} for p in parameters},
                        "required": [p.name for p in parameters],
                    },
                },
            }
        )
    return schemas


def system_text() -> str:
    """Return the rendered system block."""
    tools = " ".join(
        f"{tool['function']['name']}({', '.join(tool['function']['parameters']['properties'])})"
        for tool in tool_schemas()
    )
    return f"<|im_start|>system\n{INSTRUCTIONS}\ntools: {tools}<|im_end|>\n"
