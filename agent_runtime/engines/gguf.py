"""GGUF files, converted once to a folder in Hugging Face format and kept in the user's cache.

A tokenizer takes about a minute to build from GGUF, so the second start must not do it again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from platformdirs import user_cache_path

from agent_runtime.errors import MissingExtra, ModelNotFound, ModelUnsupported

from .locate import Location

_NEEDED = ("gguf", "accelerate")


def converted(location: Location, *, revision: str | None = None, cache: Path | None = None) -> Path:
    """Return the folder that holds the file's model in Hugging Face format; convert it on first use.

    The weights are dequantised to fp32. `cache` is the folder of all conversions; None is the user's cache folder.

    Raises:
        MissingExtra: the packages that read GGUF aren't installed.
        ModelNotFound: the file can't be found or fetched.
        ModelUnsupported: the file can't be read as a model.
    """
    file = _file(location, revision)
    folder = (cache or user_cache_path("agent-runtime") / "gguf") / f"{file.stem}-{_fingerprint(file)}"
    if (folder / "config.json").is_file():
        return folder
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"reading {file.name} needs {' and '.join(missing)}: pip install 'agent-runtime[gguf]'")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and moved in one step: a conversion that was broken off leaves no half model behind.
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=folder.parent) as aside:
        try:
            _convert(file, Path(aside) / "model")
        except Exception as error:
            raise ModelUnsupported(f"{file} can't be read as a model: {error}") from error
        try:
            os.replace(Path(aside) / "model", folder)
        except OSError:
            if not (folder / "config.json").is_file():  # else another process was first
                shutil.copytree(Path(aside) / "model", folder, dirs_exist_ok=True)
    return folder


def _file(location: Location, revision: str | None) -> Path:
    assert location.gguf_file is not None
    if location.is_local:
        return Path(location.source) / location.gguf_file
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(location.source, location.gguf_file, revision=revision))
    except Exception as error:
        raise ModelNotFound(
            f"{location.name} is neither on this machine nor could it be fetched: check the name and the network"
        ) from error


def _fingerprint(file: Path) -> str:
    """Return what tells this file from another of the same name: its size, and the bytes of both ends."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        digest.update(stream.read(1 << 20))
        stream.seek(max(0, size - (1 << 20)))
        digest.update(stream.read())
    return digest.hexdigest()[:16]


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    names = {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **names)
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **names)
    # The weights are plain now; with the quantiser still attached the model refuses to be saved.
    model.hf_quantizer = None  # type: ignore[assignment]
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
