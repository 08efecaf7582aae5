"""`agent doctor`: whether this machine has what agents need, and what to do where it hasn't."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import ExitCode, describe
from .output import note, stdout_console
from .text import one_line

State = Literal["ok", "warn", "broken"]

EXTRAS = {"gguf": "GGUF models", "trio": "runs under trio"}
WEIGHTS = ("config.json", "tokenizer.json", "model.safetensors")


@dataclass(frozen=True, slots=True)
class Check:
    """What was found; `remedy` says what to do where `state` is not ok."""

    name: str
    state: State
    detail: str
    remedy: str = ""


def doctor() -> int:
    """Check what agents need on this machine.

    Looks at Python, torch, devices, threads, the database and the demo's model.

    Exit codes: 0 nothing essential is broken, 1 something is.
    """
    from rich.text import Text

    from .setup import before_torch

    before_torch()
    console = stdout_console()
    broken = 0
    for check in checks():
        style = {"ok": "green", "warn": "yellow", "broken": "red"}[check.state]
        line = Text(f"{check.state:<7}", style=style)
        console.print(line.append(f"{check.name:<14}", "bold").append(one_line(check.detail), ""), soft_wrap=True)
        if check.remedy:
            console.print(Text(" " * 7 + one_line(check.remedy)), soft_wrap=True)
        broken += check.state == "broken"
    if broken:
        note(f"error: {broken} of the checks found something that agents can't do without; see above")
    return ExitCode.FAILED if broken else ExitCode.DONE


def checks() -> Iterator[Check]:
    """Yield the checks in order; one that breaks itself is reported, not raised."""
    for check in (python, torch, devices, threads, transformers, database, pocket, *map(_extra, EXTRAS)):
        try:
            yield check()
        except Exception as error:
            yield Check(check.__name__, "broken", describe(error), "reinstall the package into a fresh environment")


def python() -> Check:
    """Say which interpreter runs (an older one than 3.11 can't install the package)."""
    return Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def torch() -> Check:
    """Check that torch can be imported."""
    return _library("torch", "install it: pip install torch")


def transformers() -> Check:
    """Check that transformers can be imported and is new enough."""
    check = _library("transformers", 'install it: pip install "transformers>=5.24,<6"')
    if check.state == "ok" and tuple(int(part) for part in check.detail.split(".")[:2]) < (5, 24):
        return Check("transformers", "broken", check.detail, 'upgrade it: pip install "transformers>=5.24,<6"')
    return check


def _library(name: str, remedy: str) -> Check:
    try:
        importlib.import_module(name)
    except ImportError as error:
        return Check(name, "broken", f"can't be imported: {error}", remedy)
    return Check(name, "ok", importlib.metadata.version(name))


def devices() -> Check:
    """Say where models can run."""
    import torch

    if not torch.cuda.is_available():
        return Check("devices", "ok", "cpu; no CUDA device is visible, so larger models will be slow")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Check("devices", "ok", f"cpu, cuda ({', '.join(names)})")


def threads() -> Check:
    """Check that torch leaves a core to the event loop and the tools."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    used = torch.get_num_threads()
    policy = os.environ.get("OMP_WAIT_POLICY", "not set")
    found = f"{used} of {cores} cores for the model, OMP_WAIT_POLICY {policy}"
    if used >= cores > 1:
        return Check("threads", "warn", found, f"leave a core free: set OMP_NUM_THREADS={cores - 1}")
    return Check("threads", "ok", found)


def database() -> Check:
    """Check that the database of the traces can be opened and written."""
    from agent_runtime.traces.database import locate

    url = locate()
    if url.get_backend_name() != "sqlite" or url.database is None:
        return Check("database", "ok", f"{url.render_as_string(hide_password=True)} (not tried)")
    path = Path(url.database)
    place = path if path.exists() else next(parent for parent in path.parents if parent.exists())
    usable = path.is_file() if path.exists() else place.is_dir()
    if not usable or not os.access(place, os.W_OK):
        return Check(
            "database", "broken", f"{path} can't be written", f"make {place} writable, or set AGENT_RUNTIME_DB"
        )
    return Check("database", "ok", f"{path}" if path.exists() else f"{path} (the first run makes it)")


def pocket() -> Check:
    """Check that the built-in demo's model came with the package."""
    folder = Path(importlib.util.find_spec("agent_runtime.demo.pocket").submodule_search_locations[0])  # type: ignore
    missing = [name for name in WEIGHTS if not (folder / name).is_file()]
    if missing:
        return Check("pocket", "warn", f"no {', '.join(missing)} in {folder}", "train it: make pocket")
    return Check("pocket", "ok", f"{(folder / 'model.safetensors').stat().st_size / 1e6:.1f} MB of weights")


def _extra(name: str) -> Callable[[], Check]:
    def check() -> Check:
        if importlib.util.find_spec(name) is None:
            remedy = f'only for {EXTRAS[name]}: pip install "agent-runtime[{name}]"'
            return Check(name, "ok", f"not installed; {remedy}")
        return Check(name, "ok", importlib.metadata.version(name))

    check.__name__ = name
    return check
