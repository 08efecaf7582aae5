"""The operator's catalogue: a small TOML or JSON file that says what tools do to the world, above all annotations."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .contract import Contract
from .errors import CatalogueError, ToolDefinitionError


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Contract fields by tool name, e.g. `{"search": {"effect": "read", "reads": ["flights"]}}`."""

    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    path: str = "the catalogue"

    def effective(self, name: str, contract: Contract) -> Contract:
        """Return the contract of tool `name`: what it says of itself, overridden by what the catalogue says.

        Raises:
            CatalogueError: the entry contradicts itself or names an unknown field.
        """
        changes = self.tools.get(name)
        if changes is None:
            return contract
        try:
            return contract.overlaid(changes, source="catalogue")
        except (ToolDefinitionError, TypeError) as error:
            raise CatalogueError(f"{self.path}, [tools.{name}]: {error}") from None


def load_catalogue(path: str | Path) -> Catalogue:
    """Read a catalogue from a `.toml` or `.json` file: `[tools.NAME]` with `effect`, `reads`, `writes`, ...

    Raises:
        CatalogueError: the file can't be read, isn't a table of tools, or an entry is wrong in itself.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix.lower() == ".json" else tomllib.loads(text)
    except OSError as error:
        raise CatalogueError(f"{path}: can't read the catalogue: {error.strerror or error}") from None
    except ValueError as error:  # both parsers' errors, and text that isn't UTF-8
        raise CatalogueError(f"{path}: not a valid catalogue: {error}") from None
    tools = content.get("tools") if isinstance(content, dict) else None
    if not isinstance(tools, dict) or not all(isinstance(entry, dict) for entry in tools.values()):
        raise CatalogueError(f'{path}: a catalogue holds one table per tool: [tools.NAME] effect = "read"')
    catalogue = Catalogue(tools, str(path))
    for name, entry in tools.items():
        _check_types(path, name, entry)
        catalogue.effective(name, Contract())  # an entry that contradicts itself fails here, not in some later run
    return catalogue


_FIELD_TYPES: Mapping[str, tuple[type, ...]] = {
    "effect": (str,),
    "reads": (list,),
    "writes": (list,),
    "secret": (list,),
    "open_world": (bool,),
    "destructive": (bool,),
    "requires_approval": (bool,),
    "sequential": (bool,),
    "pre_execute": (bool,),
    "fresh_for": (int, float),
    "timeout": (int, float),
    "rate": (int, float),
    "cost": (int, float),
    "max_concurrency": (int,),
}


def _check_types(path: Path, name: str, entry: Mapping[str, Any]) -> None:
    for key, value in entry.items():
        allowed = _FIELD_TYPES.get(key)
        if allowed is None:
            known = ", ".join(sorted(_FIELD_TYPES))
            raise CatalogueError(f"{path}, [tools.{name}]: unknown field {key!r}; known: {known}")
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise CatalogueError(
                f"{path}, [tools.{name}]: {key} = {value!r} must be {' or '.join(kind.__name__ for kind in allowed)}"
            )
