"""One step of the executor and of the model worker against `model.generate` and against the matrix products alone.

`agent bench decode` measures whole messages, with drafts; this takes their parts asunder. Everything runs interleaved
in one process on the same model; figures are medians. Rows of the table:

- floor: the model's matrix products of one token (or two rows), nothing else: linear layers as the library stores them
- products: those of one token as the executor does them (own layout, NumPy where that is used), with attention's two
- step: one forward of the executor and the choice of the token, without the worker; also with all processors of
  sampling (temperature, top-k, top-p, min-p, repetition penalty)
- worker: tokens through `ModelWorker` and an event loop, per token
- generate: the library's own loop, per token

    python benchmarks/bench_decode.py                 # a random model of the pocket model's shape
    python benchmarks/bench_decode.py --model FOLDER  # a model of one's own
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from agent_runtime.decoding.threads import configure_threads


def build(arguments: argparse.Namespace) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    if arguments.model:
        return AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=768,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def products(model: Any, rows: int) -> Callable[[], None]:
    """Every weight matrix of the model times `rows` vectors, as the library stores them."""
    import torch

    weights = [
        module.weight.detach().clone()
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.endswith("lm_head")
    ]
    weights.append(model.get_output_embeddings().weight.detach().clone())
    inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1]) for weight in weights}

    def run() -> None:
        for weight in weights:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    return run


def per_call(function: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(calls):
        started = clock()
        function()
        times.append(clock() - started)
    return statistics.median(times)


def stepper(worker: Any, rows: int, context: int, *, processors: bool = False) -> Callable[[], Any]:
    import torch
    from agent_runtime.decoding.executor import Block
    from agent_runtime.decoding.requests import Sampling
    from agent_runtime.decoding.sampling import Sampler
    from agent_runtime.decoding.verify import verify_rows

    executor = worker.executor
    greedy = Sampling()
    warped = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.1, seed=1)
    samplers = [
        Sampler(
            warped if processors else greedy,
            vocab_size=executor.vocab_size,
            device=torch.device("cpu"),
            prompt=[1] * context,
        )
        for _ in range(rows)
    ]
    caches = [executor.new_cache(context + 64) for _ in range(rows)]
    for cache in caches:
        executor.forward([Block(cache, [1] * context, context)])

    def run() -> Any:
        logits = executor.forward([Block(cache, [5], 0) for cache in caches])
        chosen = verify_rows(list(logits.split(1)), [None] * rows, samplers, [None] * rows)
        for cache in caches:
            executor.crop(cache, context)
        return chosen

    return run


async def through_worker(
    worker: Any, prompt: tuple[int, ...], count: int, probe: bool, clock: Callable[[], float]
) -> tuple[float, float]:
    """Return seconds per token of a row, and the slowdown per token that it reports, beside a probe if asked."""
    import anyio
    from agent_runtime.decoding.requests import Finished, Ready, RowRequest

    async def drain(request: RowRequest) -> tuple[float, Finished]:
        started = clock()
        finished = None
        async for event in worker.submit(request):
            if isinstance(event, Ready):
                started = clock()
            finished = event
        assert isinstance(finished, Finished)
        return clock() - started, finished

    async with anyio.create_task_group() as group:
        if probe:
            asked = RowRequest(prompt=(*prompt, 3), max_new_tokens=count, owner="a", background=True)
            group.start_soon(drain, asked)
        seconds, finished = await drain(RowRequest(prompt=prompt, max_new_tokens=count, owner="a"))
    worker.forget("a")
    return seconds / count, finished.slowdown_s / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or hub id; default: random weights of the pocket model's shape")
    parser.add_argument("--executor", default="auto", choices=["auto", "lean", "hf"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--context", type=int, default=300, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=100, help="tokens per run")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--clock", default="wall", choices=["wall", "cpu"], help="cpu: time of all threads, steadier on a busy machine"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    threads = configure_threads(arguments.threads)
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time

    import anyio
    import torch
    from agent_runtime.decoding.worker import ModelWorker

    from agent_runtime.bench.decode_floor import Floor

    torch.set_grad_enabled(False)
    model = build(arguments)
    ids = torch.randint(0, model.config.vocab_size, (1, arguments.context))
    prompt, count = tuple(ids[0].tolist()), arguments.tokens
    floors = {rows: products(model, rows) for rows in (1, 2)}

    def generate() -> float:
        times = []
        for length in (1, count + 1):  # the difference leaves the prompt out
            started = clock()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=length,
                min_new_tokens=length,
                do_sample=False,
                pad_token_id=0,
            )
            times.append(clock() - started)
        return (times[1] - times[0]) / count

    figures: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        figures.setdefault(name, []).append(seconds * 1e6)

    with ModelWorker(model, executor=arguments.executor) as worker, torch.inference_mode():
        steps = {rows: stepper(worker, rows, arguments.context) for rows in (1, 2)}
        processed = stepper(worker, 1, arguments.context, processors=True)
        products_of_executor = Floor(worker.executor, model, context=arguments.context)
        for round_ in range(arguments.rounds + 1):
            for rows in (1, 2):
                note(f"floor, {rows} row(s)", per_call(floors[rows], count, clock))
                note(f"step, {rows} row(s)", per_call(steps[rows], count, clock))
            note("products", per_call(products_of_executor.seconds, count, clock))
            note("step, all processors", per_call(processed, count, clock))
            alone, _ = anyio.run(through_worker, worker, prompt, count, False, clock)
            note("worker", alone)
            beside, slowdown = anyio.run(through_worker, worker, prompt, count, True, clock)
            note("worker, beside a probe", beside)
            note("slowdown reported", slowdown)
            note("generate", generate())
            if round_ == 0:
                figures.clear()  # warm-up
        name = worker.statistics().executor
    medians = {key: statistics.median(values) for key, values in figures.items()}
    medians["step / products"] = medians["step, 1 row(s)"] / medians["products"]
    medians["all processors / products"] = medians["step, all processors"] / medians["products"]
    medians["step / floor"] = medians["step, 1 row(s)"] / medians["floor, 1 row(s)"]
    medians["all processors / floor"] = medians["step, all processors"] / medians["floor, 1 row(s)"]
    medians["generate / worker"] = medians["generate"] / medians["worker"]
    medians["generate / step"] = medians["generate"] / medians["step, 1 row(s)"]
    medians["two rows / one"] = medians["step, 2 row(s)"] / medians["step, 1 row(s)"]
    if arguments.json:
        print(
            json.dumps({"executor": name, "threads": threads, "unit": f"us per token ({arguments.clock})", **medians})
        )
        return
    print(
        f"executor {name}, {threads} thread(s), context {arguments.context}, us per token ({arguments.clock}, median):"
    )
    for key, value in medians.items():
        print(f"  {key:<28}{value:10.2f}")


if __name__ == "__main__":
    main()
