"""The GPU benchmark runs from end to end where there is no GPU, on tiny shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.slow
def test_every_mode_gives_a_figure_and_the_tables_are_printed(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--device", "cpu", "--tiny", "--models", "qwen3-4b", "--json", path],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found = json.loads(path.read_text())["models"]["qwen3-4b"]
    assert not found["skipped"] and not found["failed"]
    expected = {"graphs", "graphs, beside a probe", "lean", "hf generate", "hf compiled"}
    drafted = {f"graphs, draft {alpha}, {length}" for alpha in (0.5, 0.7, 0.9) for length in (3, 7, 15)}
    assert set(found["modes"]) == expected | drafted
    assert all(row["tokens_per_s"] > 0 for row in found["modes"].values())
    assert found["modes"]["graphs"]["tokens_per_forward"] == 1.0
    assert found["modes"]["graphs, draft 0.9, 7"]["tokens_per_forward"] > 1.5
    assert found["steps_without_known_text"] == 0.0
    for row in ("graphs, beside a probe", "hf compiled", "forward 2 x 8, lean", "roofline"):
        assert row in done.stdout


def test_without_a_gpu_it_says_how_to_try_it() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 2 and "no CUDA device here; --device cpu --tiny" in done.stderr
