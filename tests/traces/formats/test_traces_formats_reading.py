"""Reading files of any format: detection, faults, and what is kept where something is wrong."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.formats import FORMATS, WRITERS, UnreadableFile, detect, read

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}

SMALLEST: dict[str, list[dict[str, Any]]] = {
    "chat": [CHAT],
    "tau-bench": [{"task_id": 3, "traj": CHAT["messages"]}],
    "tau2": [{"info": {}, "tasks": [{"id": "1"}], "simulations": [{"id": "a", "messages": CHAT["messages"]}]}],
    "swe-agent": [{"environment": "main", "history": CHAT["messages"]}],
    "claude-code": [
        {"type": "summary", "summary": "s", "leafUuid": "u"},
        {"type": "user", "sessionId": "s", "uuid": "u", "message": {"role": "user", "content": "hi"}},
    ],
    "codex": [
        {"type": "session_meta", "timestamp": "2026-01-01T00:00:00Z", "payload": {"id": "x"}},
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": "hi"}},
    ],
}


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@pytest.mark.parametrize("name", SMALLEST)
def test_the_format_is_told_from_the_content(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "recording", *SMALLEST[name])
    assert detect(path) == name
    (trajectory,) = read(path)
    assert trajectory.format == name


@pytest.mark.parametrize("name", ["chat", "tau-bench", "tau2", "swe-agent"])
def test_objects_may_stand_over_many_lines_and_in_arrays(tmp_path: Path, name: str) -> None:
    path = tmp_path / "recording"
    path.write_text(json.dumps(SMALLEST[name][0], indent=2), "utf-8")
    assert detect(path) == name
    assert len(list(read(path))) == 1
    if name != "tau2":
        path.write_text("\ufeff" + json.dumps([SMALLEST[name][0]] * 2, indent=1), "utf-8")
        assert detect(path) == name
        assert len(list(read(path))) == 2


def test_the_names_of_formats_are_those_that_users_type() -> None:
    assert set(FORMATS) == {"own", "atif", *SMALLEST}
    assert set(WRITERS) == {"own", "atif", "chat", "perfetto", "otel", "parquet"}


def test_broken_lines_are_named_and_the_good_ones_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", CHAT, CHAT)
    good = path.read_bytes()
    path.write_bytes(b"{oops\n" + good + b'\n[1]\n{"messages": 7}\n' + good[:30])
    reading = read(path)
    assert len(list(reading)) == reading.count == 2
    assert [str(fault) for fault in reading.faults] == [
        f"{path}, line 1: no JSON: Expecting property name enclosed in double quotes at character 1",
        f"{path}, line 5: the record is an array, not an object",
        f"{path}, line 6: messages is a number, not an array",
        f"{path}, line 7: no JSON: Expecting property name enclosed in double quotes at character 30",
    ]


def test_a_broken_item_of_an_array_is_skipped_and_the_items_behind_it_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    item = json.dumps({"task_id": 1, "traj": CHAT["messages"]})
    path.write_text(f'[{item}, {{"traj": nope}}, {item}, {{"other": 1}}, {item[:-9]}')
    reading = read(path)
    assert len(list(reading)) == 2
    assert [fault.record for fault in reading.faults] == ["item 2", "item 4", "item 5"]
    assert reading.faults[-1].reason == "cut off in the middle"


def test_what_follows_an_array_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([CHAT]) + json.dumps(CHAT))
    reading = read(path)
    assert len(list(reading)) == 1
    assert reading.faults[0].where == "the end: something follows the array; it was left out"


def test_bytes_that_are_no_utf8_are_replaced_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"messages": [{"role": "user", "content": "caf\xe9"}]}\n')
    reading = read(path)
    (trajectory,) = reading
    assert trajectory.after[0].content == "caf\N{REPLACEMENT CHARACTER}"
    assert reading.faults[0].where == "document 1: no UTF-8 at byte 46: replaced"


def test_a_call_without_result_is_a_fault_and_its_trajectory_is_kept(tmp_path: Path) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    path = written(tmp_path / "a.jsonl", {"messages": [{"role": "assistant", "tool_calls": [call]}]})
    reading = read(path)
    (trajectory,) = reading
    assert trajectory.turns[0].message.calls == (ToolCall("f", {}),)
    assert trajectory.turns[0].results == (None,)
    assert reading.faults[0].where == "line 1: no result: call 1 of turn 1 (f)"


def test_a_file_of_which_nothing_can_be_read_is_an_error_that_names_its_first_fault(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", {"messages": 7}, {})
    with pytest.raises(UnreadableFile, match=r"nothing of .*a.jsonl could be read; line 1: messages is a number"):
        list(read(path, "chat"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"hello\nworld\n", "is none of the formats"),
        (b'{"a": 1}\n', "is none of the formats"),
        (b"[]", "is none of the formats"),
        (b"[1, 2", "is none of the formats.*cut off"),
        (gzip.compress(b"{}"), "compressed"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x80\x04\x95\x0f.", "is none of the formats"),
    ],
)
def test_a_file_that_is_none_of_the_formats_is_an_error_in_one_line(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=reason) as caught:
        list(read(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


def test_files_that_cannot_be_opened_and_unknown_formats_are_errors_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="No such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(UnreadableFile, match="directory"):
        read(tmp_path)
    with pytest.raises(UnreadableFile, match="No such file"):
        read(tmp_path / "nowhere", "chat")
    with pytest.raises(UnreadableFile, match="there are own, chat"):
        read(written(tmp_path / "a", CHAT), "parquet")


def test_ids_are_unique_within_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", CHAT | {"id": "x"}, CHAT | {"id": "x"}, CHAT, CHAT | {"id": 7})
    assert [trajectory.id for trajectory in read(path)] == ["x", "x (line 2)", "line 3", "7"]


def test_many_faults_are_counted_and_the_first_thousand_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(CHAT) + "\n" + "{}\n" * 1500)
    reading = read(path)
    assert len(list(reading)) == 1
    assert (len(reading.faults), reading.fault_count) == (1000, 1500)


def test_the_example_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    written(tmp_path / "recordings.jsonl", CHAT, {})
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/formats.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["() () None", "recordings.jsonl, line 2: it has no messages"]


def test_the_documentation_names_every_format_and_extra() -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats.md").read_text("utf-8")
    assert all(f"| `{name}` |" in page for name in {*FORMATS, *WRITERS})
