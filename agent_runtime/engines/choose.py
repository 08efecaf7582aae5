"""Which engine runs a model, by how the model is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent_runtime.errors import UsageError

if TYPE_CHECKING:
    from .base import Engine


def engine_for(model: str | Path, *, device: str = "auto") -> Engine:
    """Return the engine of a model: a server's for `openai:NAME@URL`, else the local one. Nothing is loaded yet.

    Raises:
        UsageError: the name can't be read, or a device is named for a model that a server runs.
    """
    if isinstance(model, str) and model.startswith("openai:"):
        from .server.engine import ServerEngine

        if device != "auto":
            raise UsageError(f"the server of {model.partition('?')[0]} chooses its own device; leave the device out")
        return ServerEngine.from_address(model)
    from .local import LocalEngine

    return LocalEngine(model, device=device)
