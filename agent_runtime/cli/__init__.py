"""The `agent` command. Importing it is cheap; commands import what they need when they run."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `agent` command and exit with its code.

    Args:
        arguments: the words after `agent`; None takes them from the process.
    """
    from .app import run

    sys.exit(run(arguments))
