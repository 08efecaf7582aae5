"""What holds for a server's tools at this moment: whether they may still be started early, and why not."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..canonical import is_shallow, plain
from ..errors import ToolDefinitionError
from ..values import canonical_json

if TYPE_CHECKING:
    import mcp


@dataclass(slots=True)
class ServerStanding:
    """What holds for all tools of a server. Every reason is a sentence, None means that nothing stands against it."""

    down: str | None = "its server isn't connected"
    """The connection is gone; a demanded call may bring it back."""
    doubt: str | None = None
    """The list of tools has changed and was not looked at yet."""
    given_up: str | None = None
    """The server died too often; this stays."""

    @property
    def objection(self) -> str | None:
        """The reason for which none of the tools may be started early now."""
        return self.given_up or self.down or self.doubt


@dataclass(slots=True)
class ToolStanding:
    """What holds for one tool. A tool that was revoked stays so for as long as its server is held open."""

    server: ServerStanding
    pin: str
    revoked: str | None = field(default=None)

    def revoke(self, reason: str) -> None:
        """Never start the tool early again; the first reason stays."""
        self.revoked = self.revoked or reason

    @property
    def objection(self) -> str | None:
        """The reason for which the tool may not be started early now."""
        return self.revoked or self.server.objection


def annotations_of(definition: mcp.Tool) -> dict[str, Any]:
    """Return a tool's annotations under their names in the protocol."""
    if definition.annotations is None:
        return {}
    return definition.annotations.model_dump(by_alias=True, exclude_none=True, mode="json")


def pin_of(definition: mcp.Tool) -> str:
    """Return a hash of what a tool's contract rests on: its schemas and its annotations.

    Raises:
        ToolDefinitionError: the schema is nested too deeply to be handled.
    """
    pinned = {
        "input": definition.input_schema,
        "output": definition.output_schema,
        "annotations": annotations_of(definition),
    }
    if not is_shallow(pinned):
        raise ToolDefinitionError(
            f"tool {definition.name!r}: its schema is nested too deeply; leave the tool out (without=[...])"
        )
    return hashlib.sha256(canonical_json(plain(pinned)).encode()).hexdigest()[:16]
