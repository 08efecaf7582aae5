"""The command line's pages and its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agent_runtime.cli.pages import page

ROOT = Path(__file__).parents[2]


def test_the_generated_page_of_the_command_line_is_up_to_date() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == page(), "run `make docs`"


def test_help_needs_neither_torch_nor_the_rooms() -> None:
    code = (
        "import sys\n"
        "from agent_runtime.cli.app import run\n"
        "code = run(['run', '--help'])\n"
        "heavy = {'torch', 'transformers', 'sqlalchemy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--speculate" in done.stdout


def test_every_daily_command_has_a_help_text() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in (
        "demo",
        "test",
        "test-vllm",
        "lint",
        "types",
        "imports",
        "bench",
        "docs",
        "pocket",
        "pocket-drafts",
        "dev",
        "clean",
    ):
        assert f"  make {target} " in listed
