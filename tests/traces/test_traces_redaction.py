from __future__ import annotations

import json

import pytest
from agent_runtime.tools.values import CallDemanded, CallFinished, MalformedCall, Outcome, ToolCall
from agent_runtime.traces import Redactor, TraceStore
from agent_runtime.traces.events import (
    EVENT_ADAPTER,
    Event,
    GenerationFinished,
    ProbeFinished,
    RunFinished,
    RunStarted,
    TurnFinished,
    TurnStarted,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

KEY = b"k" * 32
MARK = "redacted:hmac:"


@pytest.fixture
def redactor() -> Redactor:
    return Redactor(KEY, {"login": ["pin", "password"]})


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("use sk-proj-abcdefghij0123456789 please", "sk-proj-abcdefghij0123456789"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("token ghp_abcdefghijklmnopqrstuvwxyz012345", "ghp_abcdefghijklmnopqrstuvwxyz012345"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "hf_abcdefghijklmnopqrstuvwxyz"),
        ("xoxb-1234567890-abcdef", "xoxb-1234567890-abcdef"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
        ("Authorization: Bearer abc123def456", "abc123def456"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("curl -H 'X-Api-Key: 5f4dcc3b' https://host", "5f4dcc3b"),
        ('{"headers": {"Cookie": "session=8d7f; theme=dark"}}', "8d7f"),
        (r'{"body": "{\"password\": \"hunter2hunter2\"}"}', "hunter2hunter2"),
        ("postgresql://shop:hunter2@db/shop", "hunter2"),
        ("DB_PASSWORD=correct-horse", "correct-horse"),
        ("api_key=0a1b2c3d4e5f60718293", "0a1b2c3d4e5f60718293"),
        ("?access_token=9f8e7d6c5b4a39281706&page=2", "9f8e7d6c5b4a39281706"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    ],
)
def test_text_that_looks_like_a_credential_is_replaced(redactor: Redactor, text: str, secret: str) -> None:
    redacted = redactor.text(text)
    assert secret not in redacted and MARK in redacted
    assert redactor.text(redacted) == redacted, "what is redacted once stays as it is"


@pytest.mark.parametrize(
    "text",
    [
        "Where is order 1042, and when will it arrive?",
        "basic functionality, bearer instruments, token authentication",
        "max_tokens=4096, tokens: 123456789",
        "the token: please wait",
        "I forgot my password: please reset it",
        '{"order_id": 1042, "status": "shipped", "email": "ann@example.org"}',
        "https://example.org:8080/path?page=2",
        "sk-learn and task-oriented",
    ],
)
def test_ordinary_text_stays_as_it_is(redactor: Redactor, text: str) -> None:
    assert redactor.text(text) == text


def test_equal_secrets_stay_equal_and_other_keys_give_other_hashes(redactor: Redactor) -> None:
    call = {"name": "login", "arguments": {"pin": 4711, "user": "ann"}}
    first, again = redactor.redact(call), Redactor(KEY, {"login": ["pin"]}).redact(call)
    assert first == again
    assert first["arguments"]["pin"].startswith(MARK) and first["arguments"]["user"] == "ann"
    assert Redactor(b"x" * 32, {"login": ["pin"]}).redact(call) != first
    assert redactor.redact({"name": "login", "arguments": {"pin": 4712}})["arguments"] != first["arguments"]


def test_only_the_tool_that_declares_an_argument_secret_has_it_redacted(redactor: Redactor) -> None:
    call = {"name": "board", "arguments": {"pin": "a note", "user": None}}
    assert redactor.redact(call) == call


def test_secret_strings_are_redacted_wherever_they_stand(redactor: Redactor) -> None:
    class Credentials(BaseModel):
        login: str
        phrase: SecretStr

    given = Credentials(login="ann", phrase=SecretStr("open sesame"))
    event = RunStarted(
        at=0.0, agent="a", model="m", task="say open sesame", settings={"deep": [{"credentials": given}]}
    )
    redacted = redactor.redact(EVENT_ADAPTER.dump_python(event))
    assert "sesame" not in json.dumps(redacted)
    assert redacted["settings"]["deep"][0]["credentials"]["login"] == "ann"


def test_a_secret_met_once_is_taken_out_of_all_later_text(redactor: Redactor) -> None:
    message = {
        "text": 'I log in with "tr0ub4dor"',
        "calls": [{"name": "login", "arguments": {"password": "tr0ub4dor"}}],
    }
    assert "tr0ub4dor" not in json.dumps(redactor.redact(message)), "the text stands before the call"
    assert "tr0ub4dor" not in redactor.text("logged in with tr0ub4dor")


def test_a_secret_in_a_broken_call_is_redacted_like_that_in_a_whole_one(redactor: Redactor) -> None:
    whole = redactor.redact({"name": "login", "arguments": {"pin": 47}})["arguments"]["pin"]
    assert redactor.text('{"name": "login", "arguments": {"pin": 47, "user') == (
        '{"name": "login", "arguments": {"pin": "' + whole + '", "user'
    )
    assert "hunt" not in redactor.text('{"name": "login", "arguments": {"password": "hunt')


def test_values_that_json_has_no_word_for_can_be_written(redactor: Redactor) -> None:
    redacted = redactor.redact({"score": float("nan"), "path": object, "half": "\ud800", "pair": "\ud83d\ude00"})
    assert json.loads(json.dumps(redacted, allow_nan=False))["pair"] == "\N{GRINNING FACE}"
    json.dumps(redacted).encode()


@given(st.text(), st.text(min_size=1))
def test_redacting_twice_changes_nothing_more(prose: str, secret: str) -> None:
    redactor = Redactor(KEY, {"login": ["pin"]})
    once = redactor.redact({"text": prose, "call": {"name": "login", "arguments": {"pin": secret}}})
    assert redactor.redact(once)["call"] == once["call"]


SECRETS = ["tr0ub4dor&3", "sk-live0123456789abcdefgh", "Zm9vYmFyYmF6cXV4", "open sesame", "hunter2hunter2"]


def _telltale_run() -> list[Event]:
    password, key, bearer, phrase, other = SECRETS
    call = ToolCall("login", {"user": "ann", "password": password})
    return [
        RunStarted(at=0.0, agent="a", model="m", task=f"my key is {key}", settings={"phrase": SecretStr(phrase)}),
        TurnStarted(turn=0, at=0.0),
        ProbeFinished(turn=0, at=0.1, probe=0, completed=True, call=call, confidence=1.0),
        CallDemanded(turn=0, at=0.2, index=0, call=call, pre_executable=False),
        GenerationFinished(
            turn=0,
            at=0.3,
            thinking=f"the password is {password}",
            text=f"Logging in with {password}",
            calls=(call, MalformedCall(f'{{"name": "login", "arguments": {{"password": "{other}', "broken off")),
            finish_reason="calls",
            prompt_tokens=1,
            completion_tokens=1,
            thinking_tokens=1,
            forwards=1,
            generation_ms=300.0,
            slowdown_ms=0.0,
        ),
        CallFinished(
            turn=0,
            at=0.4,
            index=0,
            tool="login",
            outcome=Outcome("ok", f'{{"authorization": "Bearer {bearer}", "note": "{phrase}"}}', 0.3, 0.4),
        ),
        TurnFinished(turn=0, at=0.4),
        RunFinished(at=0.5, status="failed", output=f"used {key}", error=f"{password} was refused"),
    ]


@pytest.mark.anyio
async def test_no_secret_is_in_the_bytes_of_the_database(tmp_path) -> None:
    events = _telltale_run()
    assert isinstance(events[0], RunStarted)
    with TraceStore.open(tmp_path / "traces.db") as store:
        async with store.start_run(events[0], secrets={"login": {"password"}}) as writer:
            for event in events:
                writer.append(event)
                await writer.durable()
            await writer.durable()
            files = [file.read_bytes() for file in tmp_path.iterdir()]
            assert files and any(b"ann" in data for data in files)
            for secret in SECRETS:
                assert not any(secret.encode() in data for data in files), secret
        read = list(store.events(writer.run_id))
        demanded = next(event for event in read if isinstance(event, CallDemanded))
        probed = next(event for event in read if isinstance(event, ProbeFinished))
        assert probed.call == demanded.call, "equality survives"
    for file in tmp_path.iterdir():
        for secret in SECRETS:
            assert secret.encode() not in file.read_bytes(), secret


# --- what is written without being taken apart --------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *(
            "sk-proj-abcdefghij0123456789",
            "ghp_abcdefghijklmnopqrstuvwxyz012345",
            "AKIAIOSFODNN7EXAMPLE",
            "basic",
            "token",
        ),
        *("Bearer abc123def456", "TOKEN=abc123def4567890", "tokens", "pass", "word: hunter22", "PassWord='hunter22'"),
        *(
            "passwd",
            "pwd=hunter22",
            "ſecret=a1b2c3d4e5f6a7b8",
            "authorızation: abcdef",
            "X-Api-Key: 5f4dcc3b",
            "api key",
        ),
        *("://shop:hunter2@db", "://host/path", "user@host", "\n", "\t", " ", '"', "\\", "=", ":", "|", "\0", "é"),
        *("\u212aelvin", "\ud83d\ude00", "\ud800", "123456", "654321pin", "pin", "password", "login", MARK, "x"),
        "-----BEGIN PRIVATE KEY-----",
    ]
)
TEXTS = st.lists(PIECES, max_size=4).map("".join)
VALUES = st.recursive(
    TEXTS
    | st.none()
    | st.integers()
    | st.floats()
    | st.builds(SecretStr, TEXTS.filter(bool))  # an empty one hides nothing, and is written as it is
    | st.sampled_from(["123456", "654321pin"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
NAMED_ARGUMENTS = st.dictionaries(st.sampled_from(["pin", "password", "Api-Key", "id", "note"]), VALUES, max_size=3)
CALLS = st.builds(ToolCall, st.sampled_from(["login", "search", "secret tool"]), NAMED_ARGUMENTS)
EVENTS = st.one_of(
    st.builds(
        CallDemanded, turn=st.just(0), at=st.just(0.0), index=st.just(0), call=CALLS, pre_executable=st.booleans()
    ),
    st.builds(RunFinished, at=st.just(0.0), status=st.just("done"), output=TEXTS),
    st.builds(RunStarted, at=st.just(0.0), agent=TEXTS, model=TEXTS, task=TEXTS, settings=NAMED_ARGUMENTS),
)


@given(st.lists(EVENTS, max_size=4))
def test_the_quick_way_writes_what_the_thorough_way_writes(events: list[Event]) -> None:
    """Values that can hold no secret are written as they are; that must never show."""
    quick, thorough = Redactor(KEY, {"login": ["pin", "password"]}), Redactor(KEY, {"login": ["pin", "password"]})
    for event in events:
        value = EVENT_ADAPTER.dump_python(event)
        written = quick.dump(event, lambda value=value: value)
        assert json.loads(written) == json.loads(json.dumps(thorough.redact(value), allow_nan=False))


def test_an_event_that_holds_no_secret_is_not_taken_apart(redactor: Redactor) -> None:
    def in_full() -> object:
        pytest.fail("taken apart")

    event = CallFinished(turn=0, at=1.0, index=0, tool="search", outcome=Outcome("ok", '{"tokens": 7}', 0.0, 1.0))
    assert json.loads(redactor.dump(event, in_full))["outcome"]["content"] == '{"tokens": 7}'
