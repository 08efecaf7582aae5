"""Where a model is (a folder, a GGUF file, or an id on the hub) and how to load it; loads nothing itself."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agent_runtime.errors import ModelNotFound

from .drafting import DraftSettings

_HUB_ID = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_HUB_FILE = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)/(?P<file>[\w./-]+\.gguf)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """What to hand to `from_pretrained`: a folder or hub id, with the GGUF file in it if that is what was named."""

    name: str
    """For people and traces."""
    source: str
    gguf_file: str | None = None
    is_local: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How a model is loaded; `LocalEngine` says what each setting means."""

    device: str = "auto"
    dtype: str = "auto"
    revision: str | None = None
    trust_remote_code: bool = False
    kv_budget: int | None = None
    prefill_chunk: int = 256
    max_rows: int = 16
    deterministic: bool = False
    executor: Literal["auto", "lean", "hf"] = "auto"
    quantise: Literal["int8"] | None = None
    drafting: DraftSettings = field(default_factory=DraftSettings)


def locate(model: str | Path) -> Location:
    """Return where `model` is.

    Raises:
        ModelNotFound: it is neither a model's folder nor a GGUF file, and can't be a hub id.
    """
    text = os.fspath(model)
    path = Path(text).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(_not_a_model(path))
        return Location(name=path.resolve().name, source=str(path), is_local=True)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelNotFound(f"{path} is a file but not a GGUF file: name the model's folder, or a .gguf file")
        return Location(name=path.stem, source=str(path.parent), gguf_file=path.name, is_local=True)
    if (in_repository := _HUB_FILE.fullmatch(text)) and not isinstance(model, Path):
        return Location(name=text, source=in_repository["id"], gguf_file=in_repository["file"])
    if isinstance(model, Path) or text.startswith((".", "/", "~", "\\")) or not _HUB_ID.fullmatch(text):
        raise ModelNotFound(f"there is no model at {text}: check the path, or give a hub id such as Qwen/Qwen3-0.6B")
    return Location(name=text, source=text)


def _not_a_model(path: Path) -> str:
    files = sorted(file.name for file in path.glob("*.gguf"))
    if files:
        return f"{path} holds GGUF files; name one of them, e.g. {path / files[0]}"
    return f"{path} holds no model (no config.json): give a folder in Hugging Face format, a .gguf file or a hub id"
