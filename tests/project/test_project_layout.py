"""What is packaged, what is public, and what must not be in the tree."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import agent_runtime

ROOT = Path(__file__).parents[2]
ROOMS = ("agent_runtime", "tools", "decoding", "speculator", "traces")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def packages() -> set[str]:
    """Return the import names of every folder of the rooms that holds Python files."""
    found = set()
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            folder = file.parent.relative_to(ROOT)
            prefix = "" if room == "agent_runtime" else "agent_runtime."
            found.add(prefix + ".".join(folder.parts))
    return found


def tracked() -> list[Path]:
    """Return the files that belong to the project: those git knows, or, in an unpacked archive, all."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]


def test_every_folder_with_code_is_packaged() -> None:
    assert set(project()["tool"]["setuptools"]["packages"]) == packages()


def test_every_room_is_mapped_into_the_package() -> None:
    mapping = project()["tool"]["setuptools"]["package-dir"]
    assert mapping == {f"agent_runtime.{room}": room for room in ROOMS if room != "agent_runtime"}


def test_public_names_are_sorted_and_complete() -> None:
    assert agent_runtime.__all__ == sorted(agent_runtime.__all__)
    assert set(agent_runtime.__all__) == set(agent_runtime._HOMES)


@pytest.mark.parametrize("name", agent_runtime.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    value = getattr(agent_runtime, name)
    assert value is getattr(import_module(agent_runtime._HOMES[name]), name)
    assert name in dir(agent_runtime)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = agent_runtime.nothing


def test_the_version_is_the_changelog_s_latest() -> None:
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert versions[0] == project()["project"]["version"]


def test_modules_stay_short() -> None:
    """One subject per module: a file that outgrows this holds two."""
    long = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 450
    ]
    assert not long


UNFINISHED = ("TO" + "DO", "FIX" + "ME", "raise NotImpl" + "ementedError")
FOREIGN = re.compile(r"(?<![\w.])/" + r"(?:work|tmp|root|home)/\w")


def test_nothing_is_left_unfinished_and_no_path_of_another_machine_is_named() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path.suffix in {".json", ".lock"}:  # a tokenizer's vocabulary may spell anything
            continue
        for number, line in enumerate(text.splitlines(), 1):
            unfinished = any(word in line for word in UNFINISHED) and path.relative_to(ROOT).parts[0] != "tests"
            if unfinished or FOREIGN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found


def test_every_link_between_the_documents_leads_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)} -> {link}"
        for path in tracked()
        if path.suffix == ".md"
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", path.read_text(encoding="utf-8"))
        if not (path.parent / link).exists()
    ]
    assert not broken
