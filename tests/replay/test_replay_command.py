"""`agent replay`: its options, what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.cli.app import run

EFFECTS = '[tools.find]\neffect = "read"\n[tools.look]\neffect = "read"\n[tools.buy]\neffect = "write"\n'


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def agent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    monkeypatch.delenv("AGENT_RUNTIME_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words: object) -> Ended:
        capsys.readouterr()
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return Ended(int(code), captured.out, captured.err)

    return call


def chat(number: int, *, latency_s: float | None) -> dict[str, Any]:
    """Return one conversation as chat JSONL: find an item by name, look at what was found, answer."""
    timed = {} if latency_s is None else {"latency_s": latency_s}

    def asks(id: str, name: str, **arguments: Any) -> dict[str, Any]:
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": id, "type": "function", "function": function}],
        }

    return {
        "id": f"c{number}",
        "messages": [
            {"role": "user", "content": f"Is the thing{number} in stock?"},
            asks("1", "find", kind="thing"),
            {"role": "tool", "tool_call_id": "1", "content": json.dumps({"item": 100 + number}), **timed},
            asks("2", "look", item=100 + number),
            {"role": "tool", "tool_call_id": "2", "content": "yes", **timed},
            {"role": "assistant", "content": "It is."},
        ],
    }


@pytest.fixture
def recordings(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "chats.jsonl", *, latency_s: float | None = 0.5, count: int = 12) -> Path:
        path = tmp_path / name
        lines = [json.dumps(chat(number, latency_s=latency_s)) for number in range(count)]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    path = tmp_path / "effects.toml"
    path.write_text(EFFECTS)
    return path


def report(ended: Ended) -> dict[str, Any]:
    assert ended.code == 0, ended.err
    loaded = json.loads(ended.out)
    assert isinstance(loaded, dict)
    return loaded


def test_the_report_has_the_promised_keys(agent, recordings, effects):
    found = report(agent("replay", recordings(), "--effects", effects, "--json"))
    assert found["trajectories"] == 12
    assert found["boundaries"] == 24
    assert found["predictor"] == "counter"
    assert {"exact", "name", "exact_over_reads", "reads"} <= found["hit_at_1"].keys()
    assert found["hit_at_1"]["reads"] == 24
    assert 0 < found["hit_at_1"]["exact"] <= found["hit_at_1"]["name"] <= 1
    assert found["coverage"] == 1.0
    latency = found["latency"]
    assert {"source", "serial_ms", "speculative_ms", "speedup"} <= latency.keys()
    assert (latency["source"], latency["generation_source"]) == ("recorded", "injected")
    assert latency["serial_ms"] == pytest.approx(12 * (3 * 1000 + 2 * 500))
    assert latency["speculative_ms"] < latency["serial_ms"]
    assert found["fit"]["how"] == "leaving one group out"


def test_the_latency_is_null_where_nothing_was_recorded_and_none_injected(agent, recordings, effects):
    path = recordings(latency_s=None)
    assert report(agent("replay", path, "--effects", effects, "--json"))["latency"] is None
    injected = report(agent("replay", path, "--effects", effects, "--tool-latency", 250, "--json"))["latency"]
    assert (injected["source"], injected["tool_latency_ms"]) == ("injected", 250)


def test_a_sweep_plays_every_combination_in_virtual_time(agent, recordings, effects):
    words = ["--time", "virtual", "--tool-latency", "100,800", "--min-confidence", "0,0.5", "--wasted-calls", "1,32"]
    found = report(agent("replay", recordings(), "--effects", effects, *words, "--json"))
    assert len(found["what_if"]) == 8
    assert {point["tool_latency_ms"] for point in found["what_if"]} == {100, 800}
    for point in found["what_if"]:
        assert point["speculative_ms"] <= point["serial_ms"] + 1e-6
        assert point["speedup"] == pytest.approx(point["expected"]["speedup"], rel=0.02)
    assert found["latency"]["time"] == "virtual"


def test_a_person_reads_where_the_figures_come_from(agent, recordings, effects):
    ended = agent("replay", recordings(), "--effects", effects, "--time", "virtual", "--tool-latency", 250)
    assert ended.code == 0, ended.err
    for part in ("250 ms injected", "1.0 s injected", "leaving one group", "Hit@1", "by name", "closed"):
        assert part in ended.out
    assert "\x1b" not in ended.out


def test_without_an_effects_file_it_says_that_nothing_may_start_early(agent, recordings):
    ended = agent("replay", recordings(), "--json")
    assert report(ended)["hit_at_1"]["reads"] == 0
    assert "--effects" in ended.err


def test_the_counter_can_be_fitted_on_other_recordings(agent, recordings, effects):
    other = recordings("other.jsonl", count=20)
    found = report(agent("replay", recordings(), "--fit", other, "--effects", effects, "--json"))
    assert found["fit"]["how"] == "other recordings"
    assert found["fit"]["trajectories"] == 20


def test_several_files_are_one_replay(agent, recordings, effects):
    paths = [recordings("one.jsonl", count=3), recordings("two.jsonl", count=4)]
    assert report(agent("replay", *paths, "--effects", effects, "--json"))["trajectories"] == 7


def test_a_broken_record_is_said_on_stderr_and_the_good_ones_are_replayed(agent, recordings, effects):
    path = recordings(count=3)
    path.write_text(path.read_text() + '{"messages": [{"role": "us')
    ended = agent("replay", path, "--effects", effects, "--json")
    assert report(ended)["trajectories"] == 3
    assert f"warning: {path}" in ended.err


def test_a_file_that_cannot_be_read_does_not_keep_the_others_from_being_replayed(agent, recordings, tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_text("not a recording")
    ended = agent("replay", broken, recordings(count=3), tmp_path / "missing.jsonl", "--json")
    assert report(ended)["trajectories"] == 3
    assert f"warning: can't read {tmp_path / 'missing.jsonl'}" in ended.err
    assert str(broken) in ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tool-latency", "fast"], "--tool-latency"),
        (["--tool-latency", "-1"], "at least 0"),
        (["--tool-latency", "1,2"], "--time virtual"),
        (["--min-confidence", "2", "--time", "virtual"], "min_confidence"),
        (["--in-flight", "-1", "--time", "virtual"], "--in-flight"),
        (["--wasted-calls", "few"], "--wasted-calls"),
        (["--generation-ms", "nan"], "--generation-ms"),
        (["--model", "m"], "--predictor"),
        (["--predictor", "oracle"], "oracle"),
        (["--effects", "none.toml"], "none.toml"),
        (["--format", "unheard-of"], "unheard-of"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(agent, recordings, words, said):
    ended = agent("replay", recordings(count=2), *words)
    assert ended.code == 2
    assert ended.out == ""
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_a_file_that_is_no_recording_is_named(agent, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary,\n")
    ended = agent("replay", path)
    assert ended.code != 0
    assert str(path) in ended.err


def test_recordings_of_an_airline_agent_are_replayed(agent, shared_data):
    words = ["--effects", shared_data / "tau-bench-airline-effects.toml", "--limit", 6, "--json"]
    found = report(agent("replay", shared_data / "tau-bench-airline-gpt-4o.json", *words))
    assert found["trajectories"] == 6
    assert found["hit_at_1"]["reads"] > 0
    assert found["latency"] is None


def test_the_example_of_the_documentation_runs(recordings, effects, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    recordings("traces.jsonl")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "replay.md", "exec", dont_inherit=True), {})
    assert "'source': 'injected'" in capsys.readouterr().out
