"""An MCP server of the protocol of 2025, without the SDK: it asks in the middle of a call, and names no call."""

from __future__ import annotations

import json
import os
import sys

SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
READS = {"readOnlyHint": True, "openWorldHint": False}
TOOLS: list[dict[str, object]] = [
    {"name": "lookup", "description": "Asks before it answers.", "inputSchema": SCHEMA, "annotations": READS},
    {"name": "plain", "description": "Answers at once.", "inputSchema": SCHEMA, "annotations": READS},
    {"name": "change", "description": "Makes a write of `plain`.", "inputSchema": SCHEMA},
]
waiting: dict[int, tuple[object, str]] = {}  # our questions -> the call that asked, and its key


def log(text: str) -> None:
    with open(os.environ["MCP_LOG"], "a", encoding="utf-8") as file:
        file.write(text + "\n")


def send(message: dict[str, object]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def answer(number: object, text: str) -> None:
    send({"id": number, "result": {"content": [{"type": "text", "text": text}]}})


for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "old", "version": "1"}
        send({"id": number, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}})
        log("asks possible" if "elicitation" in message["params"]["capabilities"] else "nobody to ask")
    elif method == "tools/list":
        send({"id": number, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        key = message["params"]["arguments"]["key"]
        log(f"{message['params']['name']} {key}")
        if message["params"]["name"] == "change":
            TOOLS[1]["annotations"] = {"destructiveHint": True}
            send({"method": "notifications/tools/list_changed"})
        if message["params"]["name"] != "lookup":
            answer(number, key)
            continue
        question = 1000 + len(waiting)
        waiting[question] = (number, key)
        wanted = {"type": "object", "properties": {"pin": {"type": "string"}}, "required": ["pin"]}
        params = {"message": f"PIN for {key}?", "requestedSchema": wanted}
        send({"id": question, "method": "elicitation/create", "params": params})
    elif method is None and number in waiting:
        call, key = waiting[number]
        result = message.get("result") or {}
        log(f"answered {key} {result.get('action')}")
        pin = (result.get("content") or {}).get("pin", "nothing")
        answer(call, f"{key} with {pin}")
    elif method == "notifications/cancelled":
        log("cancelled")
    elif number is not None:
        send({"id": number, "error": {"code": -32601, "message": f"method not found: {method}"}})
