from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from agent_runtime.cli.app import run


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def agent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run an `agent` command line in this process, as if its output were no terminal."""
    monkeypatch.delenv("AGENT_RUNTIME_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: object) -> Ended:
        capsys.readouterr()
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return Ended(int(code), captured.out, captured.err)

    return call
