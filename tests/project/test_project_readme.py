"""The code of the README is the example's, and it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools import ToolCall

from agent_runtime import Agent, ScriptedEngine
from agent_runtime.engines.scripted import Think

ROOT = Path(__file__).parents[2]


def block(document: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.S)
    return code


def test_the_readme_s_code_is_the_example() -> None:
    assert block("README.md") == (ROOT / "examples" / "weather.py").read_text(encoding="utf-8")


@pytest.mark.anyio
async def test_the_readme_s_agent_runs() -> None:
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block("README.md"), "README.md", "exec", dont_inherit=True), names)
    agent: Agent = names["agent"]
    engine = ScriptedEngine(
        [
            (
                Think("Both."),
                ToolCall("temperature", {"city": "Oslo"}),
                ToolCall("temperature", {"city": "Rome"}),
            ),
            "Rome is warmer.",
        ]
    )
    result = await agent.replace(model=engine, traces=False).run("Is it warmer in Oslo or in Rome?")
    assert result.output == "Rome is warmer."
    assert [message.content for message in engine.conversations[1][-2:]] == ["4.5", "18.0"]


def test_the_readme_s_tool_may_start_early() -> None:
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block("README.md"), "README.md", "exec", dont_inherit=True), names)
    (row,) = names["agent"].tool_contracts()
    assert (row["name"], row["effect"], row["pre_executable"]) == ("temperature", "read", True)


@pytest.mark.anyio
async def test_the_contract_of_the_documentation_is_valid() -> None:
    names: dict[str, Any] = {"__name__": "documentation"}
    exec(compile(block("docs/early-calls.md"), "early-calls.md", "exec", dont_inherit=True), names)
    agent = Agent("orders", ScriptedEngine(["Hello."]), tools=[names["get_order"]], traces=False)
    (row,) = agent.tool_contracts()
    assert (row["effect"], row["reads"], row["fresh_for"]) == ("read", ["orders"], 10)
