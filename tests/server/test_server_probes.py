"""Probes on a server: their prefix, their guiding and their confidence; and when guessing stops."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.drafting import acceptance_by_position, mean_accepted_length

from agent_runtime.demo.agent import POCKET
from agent_runtime.engines.base import Delta, ProbeResult
from agent_runtime.engines.server import ServerEngine, ServerSettings
from agent_runtime.engines.server.metrics import read_counters
from agent_runtime.engines.server.model_text import load_text
from agent_runtime.engines.server.pacing import BLOCK, FIRST, NEEDED, TRIAL_AFTER, Pacing

from .conftest import ASK, TOOLS, FakeServer, Reply, generated, said, used

CALL = '<tool_call>\n{"name": "get_order", "arguments": {"order_id": "7"}'
POCKET_TEXT = load_text(str(POCKET), name="pocket", here_only=True)
PROMPT = list(POCKET_TEXT.render(ASK, [tool.as_function() for tool in TOOLS]))


def answer(text: str, logprob: float = -0.1, *, finish: str = "stop", cached: int = 128) -> dict[str, Any]:
    """Return a completion in the form of vLLM; every character is a token, and a last one ends it."""
    tokens = [*text, "<end>"]
    return {
        "choices": [
            {
                "text": text,
                "finish_reason": finish,
                "logprobs": {"tokens": tokens, "token_logprobs": [logprob] * len(tokens)},
            }
        ],
        "usage": {"completion_tokens": len(tokens), "prompt_tokens_details": {"cached_tokens": cached}},
    }


@pytest.fixture
def vllm() -> Iterator[FakeServer]:
    with FakeServer(owner="vllm", listed={"max_model_len": 2048}).running() as server:
        yield server


def engine(server: FakeServer, **settings: Any) -> ServerEngine:
    settings = {"retry_for": 0.0, "tokenizer": str(POCKET), **settings}
    return ServerEngine("m", server.url, settings=ServerSettings(**settings))


async def probed(made: ServerEngine, server: FakeServer, *, position: int = 0, told: bool = True) -> ProbeResult:
    """Probe while a generation has given its first chunks and goes on."""
    first = said(role="assistant")
    ids = POCKET_TEXT.tokenizer.encode("<think>\nso", add_special_tokens=False)
    if told:
        first["prompt_token_ids"] = PROMPT
    thinking = said("<think>\nso")
    thinking["choices"][0]["token_ids"] = ids
    server.chats.append(Reply(chunks=[first, thinking], waits=True))
    session = await made.open(TOOLS)
    try:
        async with session.generate(ASK, max_tokens=64) as stream:
            async for event in stream:
                if isinstance(event, Delta):
                    return await session.probe(ASK, position=position, max_tokens=96)
        raise AssertionError("the stream ended")
    finally:
        await session.aclose()


@pytest.mark.anyio
async def test_a_probe_goes_on_from_the_very_ids_of_the_agents_request(vllm: FakeServer) -> None:
    vllm.completions.append(Reply(body=answer(CALL, cached=32)))
    made = engine(vllm)
    result = await probed(made, vllm, position=2)
    assert result.call == ToolCall("get_order", {"order_id": "7"})
    (sent,) = vllm.requests("/v1/completions")
    written = POCKET_TEXT.tokenizer.encode("<think>\nso", add_special_tokens=False)[:2]
    suffix = POCKET_TEXT.tokenizer.encode("<|speculate|>", add_special_tokens=False)
    assert sent.body["prompt"] == PROMPT + written + suffix
    assert sent.body["priority"] == 1 and sent.body["temperature"] == 0
    assert "get_order" in sent.body["structured_outputs"]["grammar"]
    found = made.statistics()
    assert (found.prefixes_compared, found.prefixes_identical) == (1, 1)
    assert (found.probes, found.probe_cached_tokens) == (1, 32)


@pytest.mark.anyio
async def test_confidence_is_of_the_choices_and_not_of_the_closing(vllm: FakeServer) -> None:
    vllm.completions.append(Reply(body=answer(CALL, -0.01)))
    result = await probed(engine(vllm), vllm)
    assert result.confidence == pytest.approx(math.exp(-0.01 * len(CALL)), rel=1e-6)


@pytest.mark.anyio
async def test_no_text_is_no_call_and_a_cut_or_unreadable_answer_says_nothing(vllm: FakeServer) -> None:
    for body, call, completed in (
        (answer("", -0.5), None, True),
        (answer(CALL, finish="length"), None, False),
        (answer("<tool_call>\nwhat?"), None, False),
        ({"choices": [{"text": CALL, "finish_reason": "stop", "logprobs": None}]}, None, False),
    ):
        vllm.completions.append(Reply(body=body))
        result = await probed(engine(vllm), vllm)
        assert (result.call, result.completed) == (call, completed)
    assert vllm.completions == []


@pytest.mark.anyio
async def test_the_servers_tokenizer_decides_where_the_stream_tells_no_ids(vllm: FakeServer) -> None:
    vllm.tokens = [1, 2, 3]
    vllm.completions.append(Reply(body=answer(CALL)))
    made = engine(vllm)
    await probed(made, vllm, told=False)
    assert vllm.requests("/v1/completions")[0].body["prompt"][:3] == [1, 2, 3]
    asked = vllm.requests("/tokenize")[0].body
    assert asked["messages"] == [{"role": "user", "content": ASK[0].content}] and asked["add_generation_prompt"]
    assert (made.statistics().prefixes_compared, made.statistics().prefixes_identical) == (1, 0)


@pytest.mark.anyio
async def test_a_grammar_that_the_server_refuses_gives_way_to_a_schema_and_that_to_nothing(vllm: FakeServer) -> None:
    no = Reply(status=400, body={"error": {"message": "cannot compile"}})
    bare = '{"name": "get_order", "arguments": {"order_id": "7"}}'
    vllm.completions += [no, no, Reply(body=answer(bare))]
    result = await probed(engine(vllm), vllm)
    assert result.call == ToolCall("get_order", {"order_id": "7"})
    grammar, schema, free = (each.body.get("structured_outputs") for each in vllm.requests("/v1/completions"))
    assert "grammar" in grammar and "anyOf" in schema["json"] and free is None


@pytest.mark.anyio
@pytest.mark.parametrize(("version", "field"), [("0.9.1", "guided_grammar"), ("0.32.0", "structured_outputs")])
async def test_guiding_is_asked_for_in_the_servers_version_of_it(vllm: FakeServer, version: str, field: str) -> None:
    vllm.version = version
    vllm.completions.append(Reply(body=answer(CALL)))
    await probed(engine(vllm), vllm)
    assert field in vllm.requests("/v1/completions")[0].body


@pytest.mark.anyio
async def test_sglang_is_held_to_a_schema_in_its_own_field() -> None:
    with FakeServer(owner="sglang").running() as server:
        server.completions.append(Reply(body=answer('{"name": "list_orders", "arguments": {}}')))
        result = await probed(engine(server), server)
        sent = server.requests("/v1/completions")[0].body
        assert result.call == ToolCall("list_orders")
        assert json.loads(sent["json_schema"])["anyOf"][0]["properties"]["name"] == {"const": "get_order"}
        assert sent["prompt"][len(PROMPT) :] == POCKET_TEXT.tokenizer.encode("<|speculate|><tool_call>\n")
        assert server.requests()[0].body["return_prompt_token_ids"]


@pytest.mark.anyio
async def test_a_server_that_can_not_be_probed_is_named_with_the_reason_and_not_asked(fake: FakeServer) -> None:
    fake.completions.append(Reply(status=404, body={"detail": "Not Found"}))
    made = engine(fake)
    with pytest.raises(Exception, match="404"):
        await probed(made, fake)
    assert not (await probed(made, fake)).completed
    assert len(fake.requests("/v1/completions")) == 1
    assert "refuses" in (made.statistics().endpoints[0].no_guesses or "")
    without = ServerEngine("m", fake.url, settings=ServerSettings(retry_for=0.0))
    fake.chats.append(Reply(chunks=[said("Hi"), said(finish="stop"), used(3, 1)]))
    session = await without.open(TOOLS)
    assert not (await session.probe(ASK, max_tokens=9)).completed
    assert "?tokenizer=" in (without.statistics().endpoints[0].no_guesses or "")
    await generated(session)
    await session.aclose()


@pytest.mark.anyio
async def test_without_a_tokenizer_here_the_servers_own_writes_the_suffix(vllm: FakeServer) -> None:
    vllm.tokens = [7, 8]
    vllm.completions.append(Reply(body=answer('{"name": "list_orders", "arguments": {}}')))
    first = said(role="assistant") | {"prompt_token_ids": [1, 2, 3]}
    vllm.chats.append(Reply(chunks=[first, said("<think>\nso")], waits=True))
    session = await ServerEngine("m", vllm.url, settings=ServerSettings(retry_for=0.0)).open(TOOLS)
    async with session.generate(ASK, max_tokens=64) as stream:
        async for event in stream:
            if isinstance(event, Delta):
                result = await session.probe(ASK, max_tokens=96)
                break
    assert result.call == ToolCall("list_orders")
    sent = vllm.requests("/v1/completions")[0].body
    assert sent["prompt"] == [1, 2, 3, 7, 8] and "json" in sent["structured_outputs"]
    assert vllm.requests("/tokenize")[0].body["prompt"] == "<tool_call>\n"
    await session.aclose()


@pytest.mark.anyio
async def test_a_probe_waits_for_the_agents_first_chunk(vllm: FakeServer) -> None:
    vllm.completions.append(Reply(body=answer(CALL)))
    first = said(role="assistant") | {"prompt_token_ids": PROMPT}
    vllm.chats.append(Reply(chunks=[first, said("Hi")], waits=True))
    session = await engine(vllm).open(TOOLS)
    answers: list[ProbeResult] = []
    answered = anyio.Event()

    async def probe() -> None:
        answers.append(await session.probe(ASK, max_tokens=96))
        answered.set()

    async with anyio.create_task_group() as group:
        async with session.generate(ASK, max_tokens=64) as stream:
            group.start_soon(probe)
            async for _ in stream:
                await answered.wait()
                break
    assert [each.path for each in vllm.received] == ["/v1/chat/completions", "/v1/completions"]
    assert vllm.received[1].body["prompt"][: len(PROMPT)] == PROMPT
    assert answers[0].call is not None
    await session.aclose()


@pytest.mark.anyio
async def test_a_cancelled_probe_closes_its_request(vllm: FakeServer) -> None:
    vllm.completions.append(Reply(chunks=[b" "], waits=True))
    session = await engine(vllm).open(TOOLS)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: session.probe(ASK, max_tokens=96))
        while not vllm.requests("/v1/completions"):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert vllm.requests("/v1/completions")[0].left.wait(10)
    await session.aclose()


@pytest.mark.anyio
async def test_ids_are_read_by_the_models_own_tokenizer_whatever_the_servers_parser_made_of_them(
    vllm: FakeServer,
) -> None:
    text = '<think>\nhm\n</think>\n<tool_call>\n{"name": "list_orders", "arguments": {}}\n</tool_call>'
    chunks = []
    for token in POCKET_TEXT.tokenizer.encode(text, add_special_tokens=False):
        chunk = said("what the server's parser thinks")
        chunk["choices"][0]["token_ids"] = [token]
        chunks.append(chunk)
    vllm.chats.append(Reply(chunks=[*chunks, said(finish="stop"), used(40, len(chunks))]))
    session = await engine(vllm).open(TOOLS)
    _, last = await generated(session)
    assert (last.message.thinking, last.message.text) == ("hm", "")
    assert last.message.calls == (ToolCall("list_orders"),)
    await session.aclose()


# --- pacing ---------------------------------------------------------------------------------------------------


def decode(pacing: Pacing, blocks: int, ms: float, *, busy: bool) -> None:
    for _ in range(blocks):
        pacing.step(BLOCK * ms / 1000, BLOCK, busy=busy)


def test_guessing_stops_where_it_slows_the_agents_and_comes_back_with_hysteresis() -> None:
    pacing = Pacing(1.5)
    decode(pacing, NEEDED, 10, busy=False)
    decode(pacing, NEEDED, 14, busy=True)
    assert pacing.may_probe()  # 1.4 is below the limit
    decode(pacing, 2 * NEEDED, 30, busy=True)
    assert not pacing.may_probe()
    decode(pacing, TRIAL_AFTER, 10, busy=False)
    assert pacing.may_probe()  # a trial
    decode(pacing, NEEDED, 14, busy=True)
    assert not pacing.may_probe()  # 1.4 is not enough to go on again
    decode(pacing, 2 * TRIAL_AFTER, 10, busy=False)
    decode(pacing, NEEDED, 11, busy=True)
    assert pacing.may_probe()
    (load,) = pacing.statistics()
    assert load.guessing and load.switched == 2


def test_guessing_pauses_to_learn_what_tokens_take_without_it() -> None:
    pacing = Pacing()
    decode(pacing, FIRST, 10, busy=True)
    assert not pacing.may_probe()
    decode(pacing, NEEDED, 10, busy=False)
    assert pacing.may_probe()
    assert pacing.declined == 1


def test_loads_are_compared_with_their_like_only() -> None:
    pacing = Pacing()
    pacing.agents = 1
    decode(pacing, NEEDED, 10, busy=False)
    pacing.agents = 32
    decode(pacing, NEEDED, 90, busy=True)
    assert pacing.may_probe()
    decode(pacing, NEEDED, 40, busy=False)
    decode(pacing, 1, 90, busy=True)
    assert not pacing.may_probe()
    pacing.agents = 1
    assert pacing.may_probe()
    assert [(load.agents, load.guessing) for load in pacing.statistics()] == [("1", True), ("32-63", False)]


def test_what_probes_added_to_a_step_is_told_once_it_is_known() -> None:
    pacing = Pacing()
    assert pacing.step(1.0, BLOCK, busy=True) == 0.0
    decode(pacing, NEEDED, 10, busy=False)
    assert pacing.step(BLOCK * 0.015, BLOCK, busy=True) == pytest.approx(BLOCK * 0.005)
    assert pacing.step(BLOCK * 0.015, BLOCK, busy=False) == 0.0


# --- counters -------------------------------------------------------------------------------------------------

PAGE = """
# HELP vllm:prefix_cache_hits_total Prefix cache hits
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 640.0
vllm:prefix_cache_hits_total{engine="0",model_name="other"} 9.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4.0
vllm:broken{a="}"} NaN
"""


def test_a_servers_counters_are_read_and_compared() -> None:
    before = read_counters(PAGE, model="m")
    after = read_counters(
        PAGE.replace(" 640.0", " 768.0").replace(" 10.0", " 15.0").replace(" 8.0", " 11.0"), model="m"
    )
    assert (before.prefix_queries, before.prefix_hits) == (1000, 640)
    assert before.drafting is not None
    assert mean_accepted_length(before.drafting) == pytest.approx(2.2)
    assert acceptance_by_position(before.drafting) == [0.8, 0.4]
    since = after.since(before)
    assert since.prefix_hits == 128
    assert since.drafting == replace(before.drafting, drafts=5, draft_tokens=0, accepted_per_position=(3, 0))
    assert before.since(after).prefix_hits == 640  # the server started anew
    assert read_counters("nothing").drafting is None


@pytest.mark.anyio
async def test_drafts_are_told_by_request_or_else_by_the_servers_counters(vllm: FakeServer) -> None:
    own = {
        "mean_acceptance_length": 2.5,
        "acceptance_histogram": [1, 0, 1],
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": 2,
        "num_draft_tokens": 4,
    }
    vllm.metrics = PAGE
    vllm.chats.append(
        Reply(chunks=[said("Hi"), said(finish="stop"), used(9, 6) | {"metrics": {"speculative_decoding": own}}])
    )
    vllm.chats.append(Reply(chunks=[said("Hi"), said(finish="stop"), used(9, 6)]))
    session = await engine(vllm).open(TOOLS)
    _, last = await generated(session)
    (drafting,) = last.drafting
    assert (drafting.kind, drafting.drafts, drafting.draft_tokens) == ("server", 2, 4)
    assert drafting.accepted_per_position == (1, 1)
    vllm.metrics = PAGE.replace(" 10.0", " 13.0")
    _, last = await generated(session)
    assert [each.drafts for each in last.drafting] == [3]
    await session.aclose()
