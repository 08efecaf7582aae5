"""Naming a model: what is found, and the one line that says what to do when it isn't."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_runtime import errors
from agent_runtime.engines import gguf
from agent_runtime.engines.local import LocalEngine
from agent_runtime.engines.locate import Location, locate
from agent_runtime.errors import (
    ContextOverflow,
    LimitExceeded,
    MissingExtra,
    ModelNotFound,
    ModelUnsupported,
    UsageError,
)


def open_error(model: Any, **settings: Any) -> Exception:
    """Return the error of opening a session, checked to be one line."""
    settings.setdefault("device", "cpu")

    async def attempt() -> None:
        engine = LocalEngine(model, **settings)
        try:
            await engine.open(())
        finally:
            await engine.aclose()

    with pytest.raises(errors.AgentRuntimeError) as caught:
        anyio.run(attempt)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_folder_that_is_no_model_says_what_is_missing(tmp_path: Path) -> None:
    error = open_error(tmp_path)
    assert isinstance(error, ModelNotFound) and "config.json" in str(error) and error.exit_code == 2
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    assert "name one of them" in str(open_error(tmp_path))


@pytest.mark.parametrize("text", ["./nowhere", "/nowhere/at/all", "~/nowhere", "a b", "a/b/c"])
def test_a_path_that_is_not_there_is_no_hub_id(text: str) -> None:
    assert "there is no model at" in str(open_error(text))
    assert "there is no model at" in str(open_error(Path("nowhere")))


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x")
    assert "not a GGUF file" in str(open_error(tmp_path / "weights.bin"))


def test_an_unknown_id_while_offline_names_the_id_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    error = open_error("nobody/no-such-model")
    assert isinstance(error, ModelNotFound)
    assert "nobody/no-such-model is neither on this machine nor could it be fetched" in str(error)


def test_an_architecture_that_the_library_does_not_know_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "quantum"}')
    assert isinstance(open_error(tmp_path), ModelUnsupported)


def test_a_damaged_folder_is_named(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    error = open_error(tmp_path)
    assert isinstance(error, ModelNotFound) and str(tmp_path) in str(error)


def test_a_model_without_a_chat_template_is_refused(broken_folder: Callable[..., Path]) -> None:
    folder = broken_folder(lambda config: config.pop("chat_template", None))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    assert "has no chat template" in str(open_error(folder))


def test_settings_are_checked_when_they_are_given(folder: Path) -> None:
    for settings in ({"threads": 0}, {"kv_budget": 0}, {"prefill_chunk": 0}, {"executor": "fast"}):
        with pytest.raises(UsageError, match=next(iter(settings))):
            LocalEngine(folder, **settings)
    assert "no device 'toaster'" in str(open_error(folder, device="toaster"))
    assert "no dtype 'int3'" in str(open_error(folder, dtype="int3"))


def test_the_engines_name_is_that_of_the_model(folder: Path) -> None:
    assert LocalEngine(folder).name == folder.name
    assert LocalEngine("Qwen/Qwen3-0.6B").name == "Qwen/Qwen3-0.6B"
    assert LocalEngine("./nowhere").name == "./nowhere"


def test_files_on_the_hub_can_be_named() -> None:
    assert locate("owner/repo/file-q4.gguf") == Location(
        name="owner/repo/file-q4.gguf", source="owner/repo", gguf_file="file-q4.gguf"
    )


def test_a_failed_load_can_be_tried_again(folder: Path, tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path / "model", device="cpu")

    async def attempts() -> None:
        with pytest.raises(ModelNotFound):
            await engine.open(())
        (tmp_path / "model").symlink_to(folder)
        await engine.open(())
        await engine.aclose()

    anyio.run(attempts)


def test_gguf_without_its_packages_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    monkeypatch.setattr(gguf, "user_cache_path", lambda name: tmp_path / "cache")
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    error = open_error(tmp_path / "tiny.gguf")
    assert isinstance(error, MissingExtra) and "pip install 'agent-runtime[gguf]'" in str(error)


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[Path] = []

    def convert(file: Path, folder: Path) -> None:
        converted.append(file)
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(gguf, "find_spec", lambda name: True)
    monkeypatch.setattr(gguf, "_convert", convert)
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF 1")
    first = gguf.converted(locate(file), cache=tmp_path / "cache")
    assert gguf.converted(locate(file), cache=tmp_path / "cache") == first and len(converted) == 1
    file.write_bytes(b"GGUF 2")
    assert gguf.converted(locate(file), cache=tmp_path / "cache") != first and len(converted) == 2


def test_a_conversion_that_breaks_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(file: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise ValueError("not a model")

    monkeypatch.setattr(gguf, "find_spec", lambda name: True)
    monkeypatch.setattr(gguf, "_convert", convert)
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelUnsupported, match="can't be read as a model: not a model"):
        gguf.converted(locate(tmp_path / "tiny.gguf"), cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_documented_tree_is_the_tree_of_classes() -> None:
    assert errors.__doc__ is not None
    for line in errors.__doc__.splitlines():
        words = line.replace("│", " ").replace("├──", " ").replace("└──", " ").split()
        if words and words[0] in vars(errors):
            assert str(vars(errors)[words[0]].exit_code) in words
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == errors.__name__:
            assert name in errors.__doc__


@pytest.mark.parametrize("error", [ContextOverflow(10, 5, 12), LimitExceeded("turns", 3)])
def test_errors_survive_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
