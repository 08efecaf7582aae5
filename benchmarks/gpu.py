"""Decode speed on a GPU: captured graphs, drafts and probes beside the library's own loops and the memory's bandwidth.

Random weights of Qwen3-0.6B and Qwen3-4B shape (made on the spot, in bf16) and the pocket model. All modes of a model
run in turn, round after round, in one process; figures are medians. Under five minutes on an H200.

    python benchmarks/gpu.py --json gpu.json                # all of it
    python benchmarks/gpu.py --models qwen3-0.6b            # one model
    python benchmarks/gpu.py --device cpu --tiny            # does it run: tiny shapes, nothing is captured

Rows of the first table: tokens per second of one row behind a prompt, its tokens per forward, and the share of the
bandwidth that reading weights, keys and values once per forward comes to. "draft 0.7, 7" proposes 7 tokens per step,
each of them right with chance 0.7: what the target says in blocks of that size is found out beforehand, so that nothing
but the acceptance is made up. The second table: one forward by executor, with its greedy choice on the host, and how
long the device works on it.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import torch
from agent_runtime.decoding.costs import measure_costs
from agent_runtime.decoding.drafts.base import DraftedRow, Proposal
from agent_runtime.decoding.executor import Block, Executor
from agent_runtime.decoding.graphs import GraphExecutor
from agent_runtime.decoding.lean import LeanExecutor
from agent_runtime.decoding.requests import Finished, RowRequest
from agent_runtime.decoding.static_attention import PLAIN, SplitAttention
from agent_runtime.decoding.worker import ModelWorker
from transformers import AutoModelForCausalLM, Qwen3Config

from agent_runtime.demo.agent import POCKET

ALPHAS = (0.5, 0.7, 0.9)
DRAFTED = (3, 7, 15)
SMALL: dict[str, Any] = {"num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 1024}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {**SMALL, "intermediate_size": 3072, "num_hidden_layers": 28},
    "qwen3-4b": {
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
    },
}
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
COMPILE_S = 75
"""Seconds that must be left to begin with a model's compiled baseline."""


@dataclass
class Settings:
    device: torch.device
    tiny: bool
    context: int
    tokens: int
    rounds: int
    ends: float
    """When the whole must be over, by `time.monotonic`."""

    def left(self) -> float:
        return self.ends - time.monotonic()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass
class Figures:
    """Samples by mode; every mode is measured once per round."""

    tokens_per_s: dict[str, list[float]] = field(default_factory=dict)
    tokens_per_forward: dict[str, list[float]] = field(default_factory=dict)

    def add(self, mode: str, rate: float, per_forward: float) -> None:
        self.tokens_per_s.setdefault(mode, []).append(rate)
        self.tokens_per_forward.setdefault(mode, []).append(per_forward)

    def clear(self) -> None:
        self.tokens_per_s.clear()
        self.tokens_per_forward.clear()


class Synthetic:
    """Proposes what the target is known to say, each token spoilt with chance 1 - alpha."""

    kind: Any = "lookup"
    needs_hidden = False

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.text: list[int] | None = None
        """What the target says, prompt included; None proposes anything, to find that out."""
        self.alpha = 0.0
        self.length = 0
        self.rng = random.Random(0)
        self.steps = self.lost = 0

    def propose(self, row: DraftedRow, limit: int) -> Proposal | None:
        at, length = len(row.tokens), min(self.length, limit)
        if at == row.prompt_tokens:
            return None  # the prompt's own forward gives one token in every mode, and isn't counted
        if self.text is None:
            return Proposal("lookup", tuple(self.rng.randrange(self.vocab) for _ in range(length)))
        self.steps += 1
        if self.text[:at] != row.tokens:  # two logits were nearly equal, and blocks of another length turned them round
            self.lost += 1
            return None
        right = self.text[at : at + length]
        spoilt = (token if self.rng.random() < self.alpha else (token + 1) % self.vocab for token in right)
        return Proposal("lookup", tuple(spoilt))

    def forget(self, row: DraftedRow) -> None:
        pass


def build(name: str, settings: Settings) -> Any:
    """A model of that name, in bf16 on the device."""
    torch.manual_seed(0)
    if name == "pocket":
        model = AutoModelForCausalLM.from_pretrained(POCKET, dtype=torch.bfloat16).to(settings.device)
    else:
        shape = {"head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1e6}
        shape |= SHAPES[name] | {"tie_word_embeddings": True}
        if settings.tiny:
            shape |= {**TINY, "num_key_value_heads": 2, "vocab_size": 300}
        with torch.device(settings.device):
            model = AutoModelForCausalLM.from_config(Qwen3Config(**shape), dtype=torch.bfloat16)
    return model.eval()


def bandwidth(settings: Settings) -> float:
    """Bytes per second of a large copy, read and written."""
    source = torch.ones((1 << 31) if settings.device.type == "cuda" else 1 << 24, dtype=torch.uint8)
    source = source.to(settings.device)
    target = torch.empty_like(source)
    taken = []
    for _ in range(12):
        settings.wait()
        started = time.perf_counter()
        target.copy_(source)
        settings.wait()
        taken.append(time.perf_counter() - started)
    return 2 * source.nbytes / statistics.median(taken[2:])


def bytes_per_forward(model: Any, executor: Executor, settings: Settings) -> int:
    """What one forward of one token must read: every weight once (the tied embedding as the head), keys and values."""
    weights = sum(parameter.nbytes for parameter in model.parameters())
    return weights + executor.bytes_for(settings.context + settings.tokens // 2)


# -- through the worker -----------------------------------------------------------------------------------------------


def decode(
    worker: ModelWorker, prompt: Sequence[int], count: int, *, drafts: bool, probe: bool
) -> tuple[Finished, Any]:
    """Decode a row, beside a probe if asked, and return how it ended and its tokens."""

    async def drain(request: RowRequest) -> tuple[Finished, list[int]]:
        ids: list[int] = []
        event: Any = None
        async for event in worker.submit(request):
            ids += getattr(event, "ids", ())
        assert isinstance(event, Finished)
        return event, ids

    async def both() -> tuple[Finished, list[int]]:
        wanted = None if drafts else frozenset[Any]()
        async with anyio.create_task_group() as group:
            if probe:
                beside = RowRequest(
                    prompt=(*prompt, 3), max_new_tokens=count, owner="a", background=True, drafts=frozenset()
                )
                group.start_soon(drain, beside)
            return await drain(RowRequest(prompt=tuple(prompt), max_new_tokens=count, owner="a", drafts=wanted))

    return anyio.run(both)


def worker_modes(
    worker: ModelWorker, draft: Synthetic, prompt: list[int], settings: Settings, figures: Figures
) -> dict[str, Callable[[], None]]:
    """What one worker on captured graphs is measured with."""
    count = settings.tokens

    def once(mode: str, *, drafts: bool = False, probe: bool = False) -> None:
        finished, _ = decode(worker, prompt, count, drafts=drafts, probe=probe)
        figures.add(mode, (count - 1) / finished.decode_s, (count - 1) / finished.forwards)

    def drafted(mode: str, length: int, alpha: float, text: list[int]) -> None:
        draft.text, draft.alpha, draft.length = text, alpha, length
        once(mode, drafts=True)

    texts = {}
    for length in DRAFTED:
        draft.text, draft.length = None, length
        texts[length] = [*prompt, *decode(worker, prompt, count + length + 1, drafts=True, probe=False)[1]]
    modes: dict[str, Callable[[], None]] = {
        "graphs": lambda: once("graphs"),
        "graphs, beside a probe": lambda: once("graphs, beside a probe", probe=True),
    }
    for alpha in ALPHAS:
        for length in DRAFTED:
            mode = f"graphs, draft {alpha}, {length}"
            modes[mode] = lambda mode=mode, length=length, alpha=alpha: drafted(mode, length, alpha, texts[length])  # type: ignore[misc]
    return modes


def generate_mode(model: Any, mode: str, prompt: list[int], settings: Settings, figures: Figures) -> Callable[[], None]:
    """The library's own loop; compiled means a static cache and `torch.compile`, as it does by itself on a GPU."""
    ids = torch.tensor([prompt], device=settings.device)
    options: dict[str, Any] = {"cache_implementation": "static"} if "compiled" in mode else {}
    count = max(4, settings.tokens // 4)

    def once() -> None:
        taken = []
        for length in (1, count + 1):  # the difference leaves the prompt out
            settings.wait()
            started = time.perf_counter()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=length,
                min_new_tokens=length,
                do_sample=False,
                pad_token_id=0,
                **options,
            )
            settings.wait()
            taken.append(time.perf_counter() - started)
        figures.add(mode, count / max(taken[1] - taken[0], 1e-9), 1.0)

    return once


# -- one forward ------------------------------------------------------------------------------------------------------


def step_us(executor: LeanExecutor, batch: int, q_len: int, settings: Settings) -> tuple[float, float]:
    """Median microseconds of a forward with its greedy choices on the host, and of the device's work alone."""
    context, calls = settings.context, 4 if settings.tiny else 40
    caches = [executor.new_cache(context + q_len) for _ in range(batch)]
    for cache in caches:
        executor.forward([Block(cache, [7] * context, context)])
    blocks = [Block(cache, [5] * q_len, 0) for cache in caches]

    def forward(wait: bool) -> None:
        logits = executor.forward(blocks)
        picks = getattr(executor, "picks", None)
        if wait and picks is not None:
            picks.read()
        elif wait:
            ids = logits.argmax(-1)
            torch.stack([ids.double(), logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0].double()]).tolist()
        for cache in caches:
            executor.crop(cache, context)

    taken = []
    for _ in range(calls):
        settings.wait()
        started = time.perf_counter()
        forward(True)
        taken.append(time.perf_counter() - started)
    wall = statistics.median(taken[2:]) * 1e6
    if settings.device.type != "cuda":
        return wall, wall
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        forward(False)
    end.record()
    settings.wait()
    return wall, begin.elapsed_time(end) * 1e3 / calls


def steps(model: Any, settings: Settings) -> dict[str, Any]:
    """Forwards of several executors, interleaved: how they attend, and whether the small pieces are compiled."""
    on_gpu = settings.device.type == "cuda"
    options: dict[str, dict[str, Any]] = {"graphs, chunks": {"attention": SplitAttention(), "fuse": False}}
    options["graphs, one pass"] = {"attention": PLAIN, "fuse": False}
    if on_gpu:
        options["graphs, chunks, compiled pieces"] = {"attention": SplitAttention(), "fuse": True}
    executors: dict[str, LeanExecutor] = {}
    failed: dict[str, str] = {}
    for name, chosen in options.items():
        try:
            executors[name] = GraphExecutor(model, **chosen)
        except Exception as error:  # the others are measured all the same
            failed[name] = f"{type(error).__name__}: {error}"
    executors["lean"] = LeanExecutor(model)
    samples: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for _ in range(settings.rounds):
        for batch, q_len in ((1, 1), (1, 8), (2, 1), (2, 8)):
            for name, executor in executors.items():
                of_shape = samples.setdefault(f"{batch} x {q_len}", {})
                of_shape.setdefault(name, []).append(step_us(executor, batch, q_len, settings))
    medians = {
        shape: {
            name: {
                "wall_us": statistics.median(w for w, _ in found),
                "device_us": statistics.median(d for _, d in found),
            }
            for name, found in of_shape.items()
        }
        for shape, of_shape in samples.items()
    }
    lanes = next((e.pool.nbytes for e in executors.values() if isinstance(e, GraphExecutor)), 0)
    return {"forwards": medians, "failed": failed, "lanes_bytes": lanes}


# -- one model --------------------------------------------------------------------------------------------------------


@contextmanager
def memory_returned() -> Iterator[None]:
    """Give memory back before the next model or executor is built."""
    yield
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure(name: str, settings: Settings, copy_rate: float) -> dict[str, Any]:
    """All figures of one model."""
    started = time.monotonic()
    model = build(name, settings)
    vocab = model.config.vocab_size
    prompt = [(7 * index + 11) % vocab for index in range(settings.context)]
    figures = Figures()
    with torch.inference_mode(), memory_returned():
        forwards = steps(model, settings)
    draft = Synthetic(vocab)
    kind: Any = "graph" if settings.device.type == "cpu" else "auto"
    with (
        ModelWorker(model, executor=kind, drafts=[draft], draft_tokens=max(DRAFTED)) as worker,
        ModelWorker(model, executor="lean") as lean,
    ):
        executor = worker.executor
        needed = bytes_per_forward(model, executor, settings)
        with torch.inference_mode():
            relative = measure_costs(executor).relative()
        modes = worker_modes(worker, draft, prompt, settings, figures)

        def lean_once() -> None:
            finished, _ = decode(lean, prompt, settings.tokens, drafts=False, probe=False)
            figures.add("lean", (settings.tokens - 1) / finished.decode_s, 1.0)

        modes["lean"] = lean_once
        modes["hf generate"] = generate_mode(model, "hf generate", prompt, settings, figures)
        skipped: dict[str, str] = {}
        if settings.left() > COMPILE_S and name != "pocket":
            modes["hf compiled"] = generate_mode(model, "hf compiled", prompt, settings, figures)
        else:
            skipped["hf compiled"] = (
                "pocket is compiled for longer than it runs" if name == "pocket" else "no time left"
            )
        for round_ in range(settings.rounds + 1):
            order = list(modes)
            for mode in order[round_ % len(order) :] + order[: round_ % len(order)]:
                try:
                    modes[mode]()
                except Exception as error:
                    skipped[mode] = f"{type(error).__name__}: {error}"
                    del modes[mode]
            if round_ == 0:
                figures.clear()  # compiling, capturing, first allocations
                draft.steps = draft.lost = 0
        chosen = worker.statistics().executor
    table = {}
    for mode, rates in figures.tokens_per_s.items():
        rate, per_forward = statistics.median(rates), statistics.median(figures.tokens_per_forward[mode])
        share = rate / per_forward * needed / copy_rate
        table[mode] = {"tokens_per_s": rate, "tokens_per_forward": per_forward, "bandwidth_share": share}
    return {
        "executor": chosen,
        "weights_bytes": sum(parameter.nbytes for parameter in model.parameters()),
        "bytes_per_forward": needed,
        "roofline_tokens_per_s": copy_rate / needed,
        "modes": table,
        "expected_tokens_per_forward": {
            f"{alpha}, {length}": (1 - alpha ** (length + 1)) / (1 - alpha) for alpha in ALPHAS for length in DRAFTED
        },
        "steps_without_known_text": draft.lost / max(draft.steps, 1),
        "relative_cost_by_tokens": relative,
        "skipped": skipped,
        "seconds": time.monotonic() - started,
        **forwards,
    }


def render(result: dict[str, Any]) -> Iterator[str]:
    """The tables."""
    yield f"{result['device']}, torch {result['torch']}, a copy moves {result['copy_bytes_per_s'] / 1e9:,.0f} GB/s"
    for name, found in result["models"].items():
        yield f"\n{name}: executor {found['executor']}, roofline {found['roofline_tokens_per_s']:,.0f} tokens/s"
        yield f"  {'':<28}{'tokens/s':>10}{'per forward':>13}{'bandwidth':>11}"
        for mode, row in found["modes"].items():
            yield (
                f"  {mode:<28}{row['tokens_per_s']:>10,.0f}{row['tokens_per_forward']:>13.2f}"
                f"{row['bandwidth_share']:>11.0%}"
            )
        for shape, of_shape in found["forwards"].items():
            for executor, times in of_shape.items():
                label = f"forward {shape}, {executor}"
                yield f"  {label:<52}{times['wall_us']:>10,.0f} us{times['device_us']:>10,.0f} us on the device"
        costs = ", ".join(f"{size}: {cost:.2f}" for size, cost in found["relative_cost_by_tokens"].items())
        yield f"  cost of a forward by its tokens: {costs}"
        yield f"  drafted steps whose text had turned out differently: {found['steps_without_known_text']:.1%}"
        for what, why in (found["skipped"] | found["failed"]).items():
            yield f"  not measured: {what} ({why})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes and few tokens, to see that it runs")
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-4b,pocket")
    parser.add_argument("--context", type=int, help="tokens of the prompt (512)")
    parser.add_argument("--tokens", type=int, help="tokens per run (256)")
    parser.add_argument("--rounds", type=int, help="measured rounds (3)")
    parser.add_argument("--seconds", type=float, default=290, help="what still has time to begin is begun")
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu --tiny tries the script out")
    settings = Settings(
        device,
        arguments.tiny,
        arguments.context or (24 if arguments.tiny else 512),
        arguments.tokens or (24 if arguments.tiny else 256),
        arguments.rounds or (1 if arguments.tiny else 3),
        time.monotonic() + arguments.seconds,
    )
    torch.set_grad_enabled(False)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "context": settings.context,
        "tokens": settings.tokens,
        "rounds": settings.rounds,
        "copy_bytes_per_s": bandwidth(settings),
        "models": {},
    }
    for name in arguments.models.split(","):
        with memory_returned():
            result["models"][name] = measure(name, settings, result["copy_bytes_per_s"])
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(result, indent=1))  # as it comes: a run may be cut off
    print("\n".join(render(result)))


if __name__ == "__main__":
    main()
