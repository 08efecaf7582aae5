"""`agent run shop`: the built-in agent on its own model, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[..., Any]


def test_a_task_longer_than_the_context_ends_with_one_line(agent: Command, tmp_path: Path) -> None:
    ended = agent("run", "shop", "word " * 2500, "--db", tmp_path / "traces.db")
    assert ended.code == 1 and ended.out == ""
    (line,) = ended.err.splitlines()
    assert line.startswith("error: the conversation has ") and "context holds 2048" in line


def test_the_built_in_agent_answers_and_says_what_guessing_did(agent: Command, tmp_path: Path) -> None:
    database = tmp_path / "traces.db"
    ended = agent("run", "shop", "Where is order O-7802?", "--db", database, "--json")
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert told["status"] == "done" and told["speculation"]["boundaries"] >= 1
    assert told["usage"]["reused_tokens"] > 0
    assert told["decoding"]["mean_accepted_length"] > 1.0 and told["decoding"]["lossless"] is True
    listed = json.loads(agent("runs", "list", "--db", database, "--json").out)
    assert told["run_id"] in json.dumps(listed)
