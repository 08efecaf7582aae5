"""Whether the code that runs serves a guess. A tool's function must not ask this; its connection has to."""

from __future__ import annotations

import anyio


def is_guess() -> bool:
    """Tell whether the current task executes a guess: the dispatcher names its tasks by what they do.

    A server's questions and its restart are for demanded calls only. The result is the same for both, so the promise
    that a model sees the same with guessing on and off is kept.
    """
    return (anyio.get_current_task().name or "").startswith("guess ")
