"""Messages from servers: text, thinking and calls, usage, and what a broken stream becomes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from agent_runtime.tools.values import MalformedCall, ToolCall

from agent_runtime import UsageError
from agent_runtime.engines.base import CallClosed, Delta, PromptReady
from agent_runtime.engines.server import ServerEngine, ServerRejected, ServerSettings, StreamBroken
from agent_runtime.engines.server.sse import EventStream
from agent_runtime.errors import ContextOverflow, EngineClosed, EngineFailed

from .conftest import ASK, TOOLS, FakeServer, Reply, called, generated, said, used


def engine(server: FakeServer, **settings: Any) -> ServerEngine:
    return ServerEngine("m", server.url, settings=ServerSettings(**{"retry_for": 0.0, **settings}))


@pytest.mark.anyio
async def test_text_comes_in_pieces_and_usage_with_what_the_cache_served(fake: FakeServer) -> None:
    fake.chats.append(Reply(chunks=[said("Hel"), said("lo"), said(finish="stop"), used(10, 2, 4)]))
    session = await engine(fake).open(TOOLS)
    events, last = await generated(session)
    assert [event.text for event in events if isinstance(event, Delta)] == ["Hel", "lo"]
    assert PromptReady(prompt_tokens=10, reused_tokens=4) in events
    assert (last.message.text, last.finish_reason, last.completion_tokens) == ("Hello", "stop", 2)
    assert session.statistics().reused_tokens == 4
    await session.aclose()


@pytest.mark.anyio
async def test_reasoning_is_thinking_whether_the_server_splits_it_off_or_leaves_it_in_the_text(
    fake: FakeServer,
) -> None:
    for chunks in (
        [said(reasoning_content="Let me "), said(reasoning="see."), said("Seven.")],
        [said("<thi"), said("nk>\nLet me see."), said("\n</think>\nSeven.")],
    ):
        fake.chats.append(Reply(chunks=[*chunks, said(finish="stop")]))
        session = await engine(fake).open(TOOLS)
        _, last = await generated(session)
        assert (last.message.thinking, last.message.text) == ("Let me see.", "Seven.")
        await session.aclose()


@pytest.mark.anyio
async def test_a_call_is_announced_once_and_only_when_the_server_has_closed_it(fake: FakeServer) -> None:
    fake.chats.append(
        Reply(
            chunks=[
                called(0, "get_order", ""),
                called(0, None, '{"order_id": "4"'),
                called(0, None, "}"),
                called(1, "list_orders", "{}"),
                called(0, None, '{"order_id": "5"}'),  # too late: that call is closed
                said(finish="tool_calls"),
            ]
        )
    )
    session = await engine(fake).open(TOOLS)
    seen: list[CallClosed] = []
    async with session.generate(ASK, max_tokens=64) as stream:
        async for event in stream:
            seen += [event] if isinstance(event, CallClosed) else []
    assert [event.call for event in seen] == [ToolCall("get_order", {"order_id": "4"}), ToolCall("list_orders", {})]
    await session.aclose()


@pytest.mark.anyio
async def test_arguments_that_parse_so_far_may_go_on(fake: FakeServer) -> None:
    fake.chats.append(Reply(chunks=[called(0, "get_order", "4"), called(0, None, "2"), said(finish="tool_calls")]))
    session = await engine(fake).open(TOOLS)
    _, last = await generated(session)
    assert last.message.calls == (
        MalformedCall('{"name": "get_order", "arguments": 42}', 'the "arguments" of get_order must be a JSON object'),
    )
    await session.aclose()


@pytest.mark.anyio
async def test_broken_arguments_and_calls_cut_off_are_malformed(fake: FakeServer) -> None:
    for finish, reason in (("tool_calls", "not valid JSON"), ("length", "cut off")):
        fake.chats.append(Reply(chunks=[called(0, "get_order", '{"order_id": '), said(finish=finish)]))
        session = await engine(fake).open(TOOLS)
        _, last = await generated(session)
        (call,) = last.message.calls
        assert isinstance(call, MalformedCall) and reason in call.reason
        await session.aclose()


@pytest.mark.anyio
async def test_calls_that_the_server_left_in_the_text_are_calls(fake: FakeServer) -> None:
    block = '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "</tool_call>"}}\n</tool_call>'
    bare = '```json\n{"name": "list_orders", "arguments": {}}\n```'
    for text, call in ((block, ToolCall("get_order", {"order_id": "</tool_call>"})), (bare, ToolCall("list_orders"))):
        fake.chats.append(Reply(chunks=[*map(said, text), said(finish="stop")]))
        session = await engine(fake).open(TOOLS)
        _, last = await generated(session)
        assert last.message.calls == (call,)
        assert last.finish_reason == "calls"
        await session.aclose()


@pytest.mark.anyio
async def test_a_server_without_a_call_parser_is_asked_again_without_one(fake: FakeServer) -> None:
    reason = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    fake.chats += [
        Reply(status=400, body={"error": {"message": reason}}),
        Reply(chunks=[said("Hi"), said(finish="stop")]),
        Reply(chunks=[said("Hi"), said(finish="stop")]),
    ]
    session = await engine(fake).open(TOOLS)
    await generated(session)
    await generated(session)
    assert [request.body["tool_choice"] for request in fake.requests()] == ["auto", "none", "none"]
    await session.aclose()


@pytest.mark.anyio
async def test_a_field_that_a_server_refuses_is_left_out_from_then_on(fake: FakeServer) -> None:
    fake.chats += [
        Reply(status=422, body={"detail": "Unexpected fields in the request: {'stream_options'}"}),
        Reply(chunks=[said("Hi"), said(finish="stop")]),
    ]
    session = await engine(fake).open(TOOLS)
    await generated(session)
    first, second = fake.requests()
    assert "stream_options" in first.body and "stream_options" not in second.body
    await session.aclose()


@pytest.mark.anyio
async def test_a_stream_that_dies_after_something_was_handed_out_is_one_clear_error(fake: FakeServer) -> None:
    fake.chats.append(Reply(chunks=[said("Hel")], dies=True))
    session = await engine(fake, retry_for=30.0).open(TOOLS)
    with pytest.raises(StreamBroken, match="lost in the middle of a message"):
        await generated(session)
    assert len(fake.requests()) == 1
    await session.aclose()


@pytest.mark.anyio
async def test_a_stream_that_dies_before_that_is_begun_again_and_announces_its_calls_once(fake: FakeServer) -> None:
    whole = [called(0, "list_orders", "{}"), said(finish="tool_calls"), used(9, 3)]
    fake.chats += [
        Reply(chunks=[said(role="assistant"), *whole[:1]], dies=True),
        Reply(chunks=[said(role="assistant"), *whole]),
    ]
    retried = engine(fake, retry_for=30.0)
    session = await retried.open(TOOLS)
    events, last = await generated(session)
    assert [event.call for event in events if isinstance(event, CallClosed)] == [ToolCall("list_orders")]
    assert sum(isinstance(event, PromptReady) for event in events) == 1
    assert last.message.calls == (ToolCall("list_orders"),)
    assert retried.statistics().retries == 1
    await session.aclose()


@pytest.mark.anyio
async def test_a_stream_that_ends_without_an_end_is_no_message(fake: FakeServer) -> None:
    fake.chats.append(Reply(chunks=[said("Hel"), b"data: [DONE]\n\n"]))
    session = await engine(fake).open(TOOLS)
    with pytest.raises(StreamBroken, match="ended before the message did"):
        await generated(session)
    await session.aclose()


@pytest.mark.anyio
async def test_an_error_inside_the_stream_is_told_in_the_servers_words(fake: FakeServer) -> None:
    fake.chats.append(Reply(chunks=[said("Hel"), {"error": {"message": "out of memory", "code": 500}}]))
    session = await engine(fake).open(TOOLS)
    with pytest.raises(ServerRejected, match="out of memory"):
        await generated(session)
    await session.aclose()


@pytest.mark.anyio
async def test_what_a_content_filter_withholds_is_an_error(fake: FakeServer) -> None:
    fake.chats.append(Reply(chunks=[said("Hel"), said(finish="content_filter")]))
    session = await engine(fake).open(TOOLS)
    with pytest.raises(EngineFailed, match="content_filter"):
        await generated(session)
    await session.aclose()


@pytest.mark.anyio
async def test_leaving_a_generation_closes_its_request(fake: FakeServer) -> None:
    fake.chats.append(Reply(chunks=[said("Hel")], waits=True))
    session = await engine(fake).open(TOOLS)
    async with session.generate(ASK, max_tokens=64) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                break
    assert fake.requests()[0].left.wait(10)
    await session.aclose()


@pytest.mark.anyio
async def test_closing_a_session_ends_its_generation_as_an_error(fake: FakeServer) -> None:
    fake.chats.append(Reply(chunks=[said("Hel")], waits=True))
    session = await engine(fake).open(TOOLS)
    async with anyio.create_task_group() as group:
        with pytest.raises(EngineClosed):
            async with session.generate(ASK, max_tokens=64) as stream:
                async for _ in stream:
                    group.start_soon(session.aclose)
    assert fake.requests()[0].left.wait(10)


@pytest.mark.anyio
async def test_a_conversation_that_outgrew_the_context_says_so(fake: FakeServer) -> None:
    reason = "This model's maximum context length is 2048 tokens. However, you requested 2300 tokens"
    fake.chats.append(Reply(status=400, body={"error": {"message": reason}}))
    session = await engine(fake).open(TOOLS)
    with pytest.raises(ContextOverflow) as caught:
        await generated(session)
    assert (caught.value.prompt_tokens, caught.value.context_tokens) == (2300, 2048)
    await session.aclose()


@pytest.mark.anyio
async def test_an_address_without_the_interface_says_what_is_missing(fake: FakeServer) -> None:
    wrong = ServerEngine("m", fake.url.removesuffix("/v1"), settings=ServerSettings(retry_for=0.0))
    session = await wrong.open(TOOLS)
    with pytest.raises(UsageError, match="most addresses end in /v1"):
        await generated(session)
    await session.aclose()


def test_events_are_read_whatever_the_pieces_and_line_ends_are() -> None:
    body = ': hello\r\ndata: {"a": "\u2028"}\r\n\r\ndata: 1\rdata: 2\r\rid: 7\ndata:3\n\ndata: never ended'.encode()
    for size in (1, 2, 3, 7, len(body)):
        events = EventStream()
        found = [data for at in range(0, len(body), size) for data in events.feed(body[at : at + size])]
        assert found == ['{"a": "\u2028"}', "1\n2", "3"], size
