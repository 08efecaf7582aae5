"""Servers that refuse, hang or die: what is tried again, where conversations go, and what is never told."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import pytest
from agent_runtime.decoding.requests import Sampling

from agent_runtime import Agent, UsageError
from agent_runtime.engines.server import (
    Endpoint,
    ServerEngine,
    ServerRejected,
    ServerSettings,
    ServerSilent,
    ServerUnreachable,
)
from agent_runtime.engines.server.address import is_address, parse_address
from agent_runtime.engines.server.faults import retry_after
from agent_runtime.engines.server.routing import RESTING, Router
from agent_runtime.errors import EngineClosed, ModelNotFound

from .conftest import ASK, TOOLS, FakeServer, Reply, generated, said, used

OK = Reply(chunks=[said("Hi"), said(finish="stop"), used(5, 1)])
BUSY = {"error": {"message": "too many requests"}}


def engine(*servers: FakeServer, api_key: str | None = None, **settings: Any) -> ServerEngine:
    return ServerEngine(
        "m",
        [server.url for server in servers],
        api_key=api_key,
        settings=ServerSettings(**{"retry_for": 20.0, **settings}),
    )


def free_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return f"http://127.0.0.1:{unused.getsockname()[1]}/v1"


@pytest.fixture
def second() -> Iterator[FakeServer]:
    with FakeServer().running() as server:
        yield server


# --- trying again ---------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_what_may_pass_is_tried_again_after_the_time_that_the_server_names(fake: FakeServer, status: int) -> None:
    fake.chats += [Reply(status=status, body=BUSY, headers={"Retry-After": "0"}), OK]
    tried = engine(fake)
    session = await tried.open(TOOLS)
    _, last = await generated(session)
    assert last.message.text == "Hi"
    assert tried.statistics().retries == 1
    await session.aclose()


@pytest.mark.anyio
async def test_nobody_waits_longer_for_a_retry_than_they_said(fake: FakeServer) -> None:
    fake.chats.append(Reply(status=429, body=BUSY, headers={"Retry-After": "3600"}))
    session = await engine(fake).open(TOOLS)
    with anyio.fail_after(15), pytest.raises(ServerRejected, match="it asks to wait 3600 s"):
        await generated(session)
    assert len(fake.requests()) == 1
    await session.aclose()


@pytest.mark.anyio
async def test_what_will_not_pass_is_not_tried_again(fake: FakeServer) -> None:
    fake.chats.append(Reply(status=400, body={"error": {"message": "no such thing"}}))
    session = await engine(fake).open(TOOLS)
    with pytest.raises(ServerRejected, match="answers 400: no such thing"):
        await generated(session)
    assert len(fake.requests()) == 1
    await session.aclose()


@pytest.mark.anyio
async def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    nowhere = ServerEngine("m", free_url(), settings=ServerSettings(retry_for=0.0))
    with pytest.raises(ServerUnreachable, match=r"can't be reached \(connection refused\): start it"):
        await nowhere.open(TOOLS)


@pytest.mark.anyio
async def test_silence_ends_with_an_error(fake: FakeServer) -> None:
    fake.chats.append(Reply(chunks=[said("Hi")], waits=True))
    session = await engine(fake, timeout=0.3, retry_for=0.0).open(TOOLS)
    with pytest.raises(ServerSilent, match=r"has said nothing for 0.3 s"):
        await generated(session)
    assert fake.requests()[0].left.wait(10)
    await session.aclose()


def test_a_retry_after_is_a_number_of_seconds_or_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert retry_after("2.5") == 2.5
    assert 90 < (retry_after(soon) or 0) <= 100
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert retry_after("soon") is retry_after(None) is None


# --- several servers ------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_conversations_spread_over_servers_and_stay_where_they_are(fake: FakeServer, second: FakeServer) -> None:
    spread = engine(fake, second)
    sessions = [await spread.open(TOOLS) for _ in range(4)]
    for _ in range(3):
        fake.chats += [OK, OK]
        second.chats += [OK, OK]
        for session in sessions:
            await generated(session)
    assert [endpoint.conversations for endpoint in spread.statistics().endpoints] == [2, 2]
    assert len(fake.requests()) == len(second.requests()) == 6
    for session in sessions:
        await session.aclose()


@pytest.mark.anyio
async def test_a_conversation_moves_when_its_server_fails_and_then_stays(fake: FakeServer, second: FakeServer) -> None:
    moved = engine(fake, second)
    session = await moved.open(TOOLS)
    fake.chats.append(Reply(status=503, body=BUSY))
    second.chats += [OK, OK]
    await generated(session)
    await generated(session)
    assert (len(fake.requests()), len(second.requests())) == (1, 2)
    assert moved.statistics().moves == 1
    await session.aclose()


@pytest.mark.anyio
async def test_a_server_that_is_down_from_the_start_is_passed_over(second: FakeServer) -> None:
    second.chats.append(OK)
    half = ServerEngine("m", [free_url(), second.url], settings=ServerSettings(retry_for=20.0))
    session = await half.open(TOOLS)
    _, last = await generated(session)
    assert last.message.text == "Hi"
    await session.aclose()


def test_the_router_rests_a_failed_server_and_spreads_the_rest() -> None:
    now = 0.0
    a, b = Endpoint("http://a/v1"), Endpoint("http://b/v1")
    router = Router([a, b], now=lambda: now)
    assert [router.place(name) for name in "123"] == [a, b, a]
    router.failed(a)
    assert [router.place(name) for name in "1234"] == [b, b, b, b]
    router.failed(b)
    assert router.place("1") == b  # all failed: it doesn't wander
    now = RESTING
    assert router.place("1") == b
    router.leave("2")
    assert router.place("5") == a
    assert router.moves == 2


# --- keys and addresses ---------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_key_is_sent_and_found_nowhere_else(
    fake: FakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-verysecret-0123456789"
    monkeypatch.setenv("SERVER_KEY", secret)
    caplog.set_level(logging.DEBUG)
    fake.key = secret
    fake.chats += [
        Reply(status=400, body={"error": {"message": f"bad request with Bearer {secret}"}}),
        Reply(chunks=[{"error": {"message": f"wrong: {secret}"}}]),
    ]
    keyed = ServerEngine.from_address(f"openai:m@{fake.url}?key_env=SERVER_KEY&retry_for=0")
    agent = Agent("a", keyed, tools=[], traces=False)
    for _ in range(2):
        async with agent.stream("hello") as stream:
            async for _ in stream:
                pass
        result = stream.result
        assert result.status == "failed"
        told = [repr(result), str(result.to_json()), str(result.error), repr(result.error), repr(result.events)]
        assert not [text for text in told if secret in text]
    assert fake.requests()[0].headers["authorization"] == f"Bearer {secret}"
    assert secret not in caplog.text
    assert secret not in repr(keyed) + keyed.name + repr(keyed.statistics())


@pytest.mark.anyio
async def test_a_wrong_key_is_told_without_the_key(fake: FakeServer) -> None:
    fake.key = "right"
    with pytest.raises(UsageError, match="refuses the API key") as caught:
        await engine(fake, api_key="sk-wrong-012345").open(TOOLS)
    assert "sk-wrong" not in str(caught.value)
    with pytest.raises(UsageError, match="wants an API key"):
        await engine(fake).open(TOOLS)


def test_the_usual_key_goes_to_private_connections_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_runtime.engines.server.client import keys_of

    here, far, safe = Endpoint("http://127.0.0.1:1/v1"), Endpoint("http://far/v1"), Endpoint("https://far/v1")
    usual = {"OPENAI_API_KEY": "k"}
    assert keys_of([here, far, safe], given=None, environment=usual, named=None) == {here: "k", safe: "k"}
    assert keys_of([far], given=None, environment={"X": "x"}, named="X") == {far: "x"}
    with pytest.raises(UsageError, match="X is not set"):
        keys_of([far], given=None, environment=usual, named="X")


def test_an_address_names_a_model_its_servers_and_settings() -> None:
    found = parse_address("openai:org/model:tag@http://a:1/v1/,https://b/v1?timeout=5&tokenizer=org/model")
    assert found.model == "org/model:tag"
    assert [each.url for each in found.endpoints] == ["http://a:1/v1", "https://b/v1"]
    assert (found.settings.timeout, found.settings.tokenizer) == (5.0, "org/model")
    assert is_address("openai:m@http://a/v1") and not is_address("org/model")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("openai:m", "write openai:NAME@http"),
        ("openai:@http://a/v1", "write openai:NAME@http"),
        ("openai:m@http://user:pass@a/v1", "holds a user's name or password"),
        ("openai:m@http://a/v1?api_key=sk-1", "a key stays in an environment variable"),
        ("openai:m@http://a/v1?timeout=soon", "give a number"),
        ("openai:m@http://a/v1?timeout=0", "above 0"),
        ("openai:m@http://a/v1?calls=nobody", "give one of auto, server, client"),
        ("openai:m@http://a:99999/v1", "is no server's URL"),
    ],
)
def test_an_address_that_can_not_be_used_says_why_and_repeats_no_secret(address: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        ServerEngine.from_address(address)
    assert "pass@" not in str(caught.value) and "sk-1" not in str(caught.value)


@pytest.mark.anyio
async def test_a_model_that_the_server_does_not_have_is_told_with_those_it_has(fake: FakeServer) -> None:
    with pytest.raises(ModelNotFound, match="has no model 'other'; it has m"):
        await ServerEngine("other", fake.url).open(TOOLS)


@pytest.mark.anyio
async def test_a_sampling_setting_that_a_server_lacks_is_an_error_and_not_ignored(fake: FakeServer) -> None:
    session = await engine(fake).open(TOOLS)
    with pytest.raises(UsageError, match="doesn't take top_k"):
        await generated(session, sampling=Sampling(temperature=0.7, top_k=5))
    await session.aclose()


@pytest.mark.anyio
async def test_a_closed_engine_opens_nothing(fake: FakeServer) -> None:
    closed = engine(fake)
    session = await closed.open(TOOLS)
    await closed.aclose()
    with pytest.raises(EngineClosed):
        async with session.generate(ASK, max_tokens=5) as stream:
            async for _ in stream:
                pass
    with pytest.raises(EngineClosed):
        await closed.open(TOOLS)


def test_one_engine_serves_one_event_loop_after_another(fake: FakeServer) -> None:
    again = engine(fake)

    async def once() -> str:
        session = await again.open(TOOLS)
        try:
            return (await generated(session))[1].message.text
        finally:
            await session.aclose()

    for backend in ("asyncio", "trio", "asyncio"):
        fake.chats.append(OK)
        assert anyio.run(once, backend=backend) == "Hi"
