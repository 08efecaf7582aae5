"""A real MCP server made with the SDK, which can be told to misbehave: started as a process by the tests.

Environment: MCP_LOG names a file to which each call's name is appended; MCP_PORT makes it serve HTTP on that port.
"""

from __future__ import annotations

import base64
import os
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.types import CallToolResult, EmbeddedResource, ImageContent, TextContent, TextResourceContents, ToolAnnotations
from pydantic import BaseModel

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
server = MCPServer("faulty")


def log(text: str) -> None:
    with open(os.environ["MCP_LOG"], "a", encoding="utf-8") as file:
        file.write(text + "\n")


@server.tool(annotations=READS)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    log("add")
    return a + b


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def search_web(query: str) -> str:
    """A read whose arguments leave the machine, as all do that don't say otherwise."""
    return query


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, open_world_hint=False))
def overwrite(key: str) -> str:
    """An idempotent write that doesn't say that it destroys nothing."""
    return key


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=False, open_world_hint=False))
def put(key: str) -> str:
    """An idempotent write that destroys nothing."""
    return key


@server.tool(annotations=READS)
async def hang(mark: str) -> str:
    """Never answers; tells the log when it begins and when it is cancelled."""
    log(f"hang {mark}")
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        log(f"cancelled {mark}")
        raise
    return "unreachable"


@server.tool(annotations=READS)
def die(once: str = "") -> str:
    """Ends the server's process, or does so the first time only, if `once` names a file."""
    log("die")
    if once and os.path.exists(once):
        return "alive"
    if once:
        with open(once, "w", encoding="utf-8"):
            pass
    os._exit(3)


@server.tool()
def die_writing() -> str:
    """A write in the middle of which the process ends."""
    log("die_writing")
    os._exit(3)


@server.tool()
async def change(ctx: Context, what: str) -> str:
    """Changes `add`: its schema, its annotations, nothing, or all of it."""
    log(f"change {what}")

    def add_three(a: int, b: int, c: int = 0) -> int:
        """Add three numbers."""
        log("add")
        return a + b + c

    server.remove_tool("add")
    if what == "schema":
        server.add_tool(add_three, name="add", annotations=READS)
    elif what == "annotations":
        server.add_tool(add, annotations=ToolAnnotations(destructive_hint=True))
    elif what == "nothing":
        server.add_tool(add, annotations=READS)
    await ctx.notify_tools_changed()
    return "changed"


class Name(BaseModel):
    name: str


def ask_name() -> Elicit[Name]:
    log("ask")
    return Elicit("What is your name?", Name)


@server.tool(annotations=READS)
def greet(greeting: str, who: Annotated[Name, Resolve(ask_name)]) -> str:
    """Asks a person for a name."""
    log("greet")
    return f"{greeting}, {who.name}"


@server.tool(annotations=READS)
def big(characters: int) -> str:
    """A long text."""
    return "x" * characters


@server.tool(annotations=READS)
def fail(reason: str) -> str:
    """Fails, and says why."""
    raise ToolError(reason)


class Point(BaseModel):
    x: int
    y: int


@server.tool(annotations=READS)
def point() -> Point:
    """Structured content."""
    return Point(x=1, y=2)


@server.tool(annotations=READS)
def mixed() -> CallToolResult:
    """Everything a result may hold."""
    return CallToolResult(
        content=[
            TextContent(text="first"),
            ImageContent(data=base64.b64encode(b"123456").decode(), mime_type="image/png"),
            EmbeddedResource(resource=TextResourceContents(uri="memo:1", text="a memo")),
        ],
        structured_content={"more": [1, 2]},
    )


@server.tool(annotations=READS)
def header(ctx: Context, name: str) -> str:
    """A header of the HTTP request behind the call."""
    return (ctx.headers or {}).get(name, "none")


if __name__ == "__main__":
    if "MCP_PORT" in os.environ:
        server.run("streamable-http", host="127.0.0.1", port=int(os.environ["MCP_PORT"]))
    else:
        server.run("stdio")
