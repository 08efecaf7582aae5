"""`bench_decode`: what it compares, what it counts, and that every mode says the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from agent_runtime.decoding.lean import LeanExecutor
from agent_runtime.decoding.tally import DraftCounts
from agent_runtime.speculator.grammar import CallFormat
from agent_runtime.tools import ToolCall
from transformers import AutoTokenizer, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from agent_runtime import Agent
from agent_runtime.bench.decode import bench_decode
from agent_runtime.bench.decode_baselines import Baselines
from agent_runtime.bench.decode_call import CallCost, call_cost, call_place
from agent_runtime.bench.decode_floor import Floor
from agent_runtime.bench.decode_modes import BASELINES, OURS, Decoded
from agent_runtime.bench.decode_prompts import built_in
from agent_runtime.bench.decode_report import Measured, report
from agent_runtime.cli.app import run
from agent_runtime.demo.agent import POCKET
from agent_runtime.engines.local import LocalEngine
from agent_runtime.errors import UsageError

BY_MODE = ("tokens_per_s", "forwards_per_token", "mean_accepted_length")
PROMISED = {*BY_MODE, "identical_fp32", "matmul_floor_tokens_per_s", "lossless", "call_forwards_per_token_on_hits"}
torch.set_num_threads(1)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the layers that a search finds out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model that reads and writes as pocket does."""
    path = tmp_path_factory.mktemp("tiny")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(POCKET / name, path / name)
    tokenizer = AutoTokenizer.from_pretrained(path)
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen3ForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)  # spreads the logits out, so that greedy choices are no ties
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(path)
    return path


# --- whole measurements ----------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_pocket_says_the_same_in_every_mode() -> None:
    told: list[tuple[str, int, int]] = []
    with anyio.fail_after(300):
        measured = await bench_decode(tasks=2, max_tokens=48, on_progress=lambda *seen: told.append(seen))
    found = json.loads(json.dumps(measured.to_json()))
    assert found.keys() >= PROMISED and found["lossless"] is True
    assert found["identical_fp32"] is True and set(found["different_prompts"].values()) == {0}
    for key in BY_MODE:
        assert set(found[key]) == {*BASELINES, *OURS}
    missing = {mode for mode, rate in found["tokens_per_s"].items() if rate is None}
    assert missing == set(found["absent"])
    assert found["forwards_per_token"]["none"] == found["forwards_per_token"]["hf_generate"]
    assert found["forwards_per_token"]["combined"] < found["forwards_per_token"]["none"] == 1
    assert found["mean_accepted_length"]["none"] == found["mean_accepted_length"]["hf_generate"] == 1
    assert found["call"]["hits"] <= found["call"]["boundaries"] and found["call"]["boundaries"] > 0
    assert found["call_forwards_per_token_on_hits"] <= 0.35
    assert found["call"]["forwards_per_token_on_hits"]["none"] == 1
    assert found["seconds"]["call"].keys() == {"decode", "first", "draft", "forward", "verify", "host"}
    assert found["closed_form"]["call"].keys() == {"k", "alpha", "c", "speedup", "drafted_share", "measured"}
    assert told == [("recorded", 1, 2), ("recorded", 2, 2), ("decoded", 1, 2), ("decoded", 2, 2)]


@pytest.mark.anyio
async def test_a_model_of_ones_own_says_the_same_in_every_mode(folder: Path, tmp_path: Path) -> None:
    with anyio.fail_after(120):
        measured = await bench_decode(str(folder), tasks=2, max_tokens=12)
    assert measured.identical_fp32 is True and set(measured.different_prompts.values()) == {0}
    assert (measured.conversations, measured.prompts, measured.executor) == (2, 2, "lean")
    assert set(measured.absent) == {"hf_assistant", "model", "medusa"}
    assert {mode for mode, rate in measured.tokens_per_s.items() if rate is None} == set(measured.absent)
    assert "--draft-model" in measured.absent["model"]
    assert measured.matmul_floor_tokens_per_s is not None and measured.matmul_floor_tokens_per_s > 0
    assert measured.call["probe_tokens"] > 0  # the prompt with tools was probed


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_draft_model_serves_both_loops(folder: Path) -> None:
    with anyio.fail_after(120):
        measured = await bench_decode(str(folder), tasks=1, max_tokens=12, draft_model=folder)
    assert set(measured.absent) == {"medusa"} and measured.identical_fp32 is True
    assert measured.mean_accepted_length["hf_assistant"] is not None
    assert measured.mean_accepted_length["hf_assistant"] > 1  # the draft is the model itself


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_agent_of_ones_own_is_measured_on_requests(folder: Path) -> None:
    async with Agent("own", LocalEngine(folder), traces=False) as agent:
        with anyio.fail_after(120):
            measured = await bench_decode(agent, tasks=["Say something."], max_tokens=8)
        with pytest.raises(UsageError, match="own generates no tasks"):
            await bench_decode(agent, tasks=3)
    assert (measured.conversations, measured.identical_fp32) == (1, True)
    assert measured.call["boundaries"] == 0 and measured.call_forwards_per_token_on_hits is None


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_mode_that_the_library_refuses_is_left_out_with_its_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Baselines.decode
    calls: list[str] = []

    def decode(self: Baselines, mode: str, prompt: tuple[int, ...], max_tokens: int) -> Decoded:
        calls.append(mode)
        if mode == "hf_prompt_lookup" and calls.count(mode) == 3:  # after the warm-up and one prompt
            raise ValueError("assisted generation is not supported with this cache\nmore")
        return whole(self, mode, prompt, max_tokens)

    monkeypatch.setattr(Baselines, "decode", decode)
    with anyio.fail_after(120):
        measured = await bench_decode(str(folder), tasks=3, max_tokens=6)
    assert measured.absent["hf_prompt_lookup"].endswith(
        "ValueError: assisted generation is not supported with this cache"
    )
    assert measured.tokens_per_s["hf_prompt_lookup"] is None and calls.count("hf_prompt_lookup") == 3
    assert measured.tokens_per_s["hf_generate"] is not None


@pytest.mark.anyio
async def test_nothing_to_decode_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one task"):
        await bench_decode(tasks=0)


def test_half_of_the_built_in_prompts_have_tools() -> None:
    made = built_in(20, max_tokens=5)
    assert len(made) == 20 and sum(bool(conversation.tools) for conversation in made) == 10
    assert len({conversation.prompts for conversation in made}) == 20
    assert built_in(3, max_tokens=5) == made[:3]


# --- counting --------------------------------------------------------------------------------------------------------


def test_a_call_costs_the_passes_that_gave_any_of_its_tokens() -> None:
    decoded = Decoded(mode="call", ids=tuple(range(10)), seconds=1.0, forwards=4, steps=(1, 2, 4, 1, 2))
    assert call_cost(decoded, (2, 7)) == CallCost(2, 5)  # tokens 1-2 and 3-6
    assert call_cost(decoded, (0, 3)) == CallCost(2, 3)  # tokens 0 and 1-2
    assert call_cost(decoded, (7, 10)) == CallCost(2, 3)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('so <tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call> end', True),
        ('<tool_call>{"name":"f","arguments":{}}</tool_call><tool_call>{}</tool_call>', True),
        ('<tool_call>\n{"name": "f", "argu', False),
        ('<tool_call>\n{"name": "f"}', False),
        ("no call at all {}", False),
    ],
)
def test_a_call_reaches_from_mark_to_mark(text: str, call: bool) -> None:
    place = call_place(CallFormat(), text)
    assert (place is not None) is call
    if place is not None:
        written = text[slice(*place)]
        assert written.startswith("<tool_call>") and written.endswith("</tool_call>") and written.count("<") == 2


def figures(prompts: list[Measured]) -> Any:
    return report(
        prompts,
        floor_s=[0.01, 0.02, 0.5],
        absent={},
        model="m",
        executor="lean",
        dtype="float32",
        device="cpu",
        threads=1,
        conversations=1,
    )


def test_figures_follow_from_what_was_decoded() -> None:
    tally = DraftCounts(
        kind="call", drafts=2, draft_tokens=8, accepted_tokens=6, accepted_per_position=(2, 2, 1, 1), draft_s=0.08
    )
    ids = tuple(range(9))
    modes = {
        "hf_generate": Decoded(mode="hf_generate", ids=ids, seconds=1.8, forwards=8),
        "none": Decoded(mode="none", ids=ids, seconds=0.8, forwards=8, steps=(1,) * 9),
        "call": Decoded(mode="call", ids=ids, seconds=0.3, forwards=2, steps=(1, 4, 4), drafting=(tally,)),
    }
    guessed = ToolCall("f", {"a": 1})
    hit = Measured(
        prompt_tokens=5,
        decoded=modes,
        call=guessed,
        guess=ToolCall("f", {"a": 1}),
        call_costs={"call": CallCost(2, 8), "none": CallCost(8, 8)},
    )
    miss = Measured(prompt_tokens=7, decoded=modes, call=guessed, call_costs={"call": CallCost(8, 8)})
    found = figures([hit, miss])
    assert found.tokens_per_s["none"] == pytest.approx(11.25) and found.tokens_per_s["medusa"] is None
    assert found.over_hf_generate["call"] == pytest.approx(6.0)
    assert found.forwards_per_token["call"] == pytest.approx(2 / 9)
    assert (found.mean_accepted_length["call"], found.mean_accepted_length["none"]) == (4.0, 1.0)
    assert found.acceptance_by_position["call"] == [1.0, 1.0, 0.5, 0.5]
    assert (found.matmul_floor_tokens_per_s, found.floor_over_none) == (50.0, pytest.approx(50 / 11.25))
    assert found.call["hit_at_1"] == 0.5 and found.call_forwards_per_token_on_hits == 0.25
    assert found.call["forwards_per_token_on_hits"]["none"] == 1.0
    form = found.closed_form["call"]
    assert (form["k"], form["drafted_share"], form["measured"]) == (4, 1.0, pytest.approx(8 / 3))
    assert form["c"] == pytest.approx(0.1) and sum(form["alpha"] ** i for i in range(1, 5)) == pytest.approx(3.0)
    assert found.identical_fp32 is True and found.prompt_tokens == 6


def test_a_mode_that_says_something_else_is_told() -> None:
    modes = {mode: Decoded(mode=mode, ids=(1, 2, 3), seconds=1.0, forwards=2) for mode in ("none", "hf_generate")}
    modes["lookup"] = Decoded(mode="lookup", ids=(1, 2, 4), seconds=1.0, forwards=2)
    found = figures([Measured(prompt_tokens=1, decoded=modes)])
    assert found.identical_fp32 is False
    assert found.different_prompts == {"hf_generate": 0, "none": 0, "lookup": 1}


def test_the_floor_is_measured_in_the_executors_layout_and_in_the_librarys(folder: Path) -> None:
    from agent_runtime.decoding.hf import HfExecutor

    network = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert Floor(HfExecutor(network), network, context=9).seconds() > 0
    assert Floor(LeanExecutor(network), network, context=9).seconds() > 0


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand in for the measurement; return what it was asked for."""
    seen: dict[str, Any] = {}

    async def measure(target: Any, **options: Any) -> Any:
        seen.update(options, target=getattr(target, "name", target))
        modes = {mode: Decoded(mode=mode, ids=(1, 2, 3), seconds=0.1, forwards=2) for mode in ("none", "hf_generate")}
        return figures([Measured(prompt_tokens=1, decoded=modes)])

    monkeypatch.setattr("agent_runtime.bench.decode.bench_decode", measure)
    return seen


def test_the_options_reach_the_measurement(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "decode", "shop", "--tasks", "3", "--seed", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() >= PROMISED
    assert (asked["target"], asked["tasks"], asked["seed"]) == ("shop", 3, 5)


def test_a_model_is_told_from_an_agent(asked: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    for word in ("Qwen/Qwen3-0.6B", str(folder), "some.gguf"):
        assert run(["bench", "decode", word]) == 0
        assert asked["target"] == word
    (tmp_path / "tasks.txt").write_text("one\n\ntwo\n")
    agent = tmp_path / "mine.py"
    agent.write_text("from agent_runtime import Agent, ScriptedEngine\nagent = Agent('mine', ScriptedEngine([]))\n")
    assert run(["bench", "decode", f"{agent}:agent", "--tasks", str(tmp_path / "tasks.txt")]) == 0
    assert (asked["target"], asked["tasks"]) == (f"{agent}:agent", ["one", "two"])


def test_the_figures_are_readable(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "decode", "shop"]) == 0
    out = capsys.readouterr().out
    for part in ("hf_generate", "tokens/s", "30", "1.00x", "same ids in every mode: yes", "matrix products alone"):
        assert part in out
    assert "medusa" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("openai:m@http://localhost:1/v1",), "a server, which decodes by itself"),
        (("shop", "--model", "openai:m@http://localhost:1/v1"), "a server, which decodes by itself"),
        (("shop", "--tasks", "0"), "--tasks 0: give a number of at least 1"),
        (("shop", "--tasks", "missing.txt"), "can't read tasks from missing.txt"),
    ],
)
def test_what_can_not_be_measured_is_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], asked: dict[str, Any]
) -> None:
    assert run(["bench", "decode", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err and err.count("\n") == 1
