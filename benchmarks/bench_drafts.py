"""What drafting costs the host: verifying a row, and following its text; medians, one thread.

OMP_NUM_THREADS=1 python benchmarks/bench_drafts.py
"""

from __future__ import annotations

import statistics
import time

import torch
from agent_runtime.decoding.drafts.base import Proposal
from agent_runtime.decoding.drafts.lookup import TailIndex
from agent_runtime.decoding.drafts.suffix import SuffixAutomaton
from agent_runtime.decoding.requests import Sampling
from agent_runtime.decoding.sampling import Sampler
from agent_runtime.decoding.verify import verify

VOCAB = 1024
ROUNDS = 400
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=0.7, seed=1),
    "sampled, top-k, top-p, penalty": Sampling(temperature=0.7, top_k=50, top_p=0.9, repetition_penalty=1.1, seed=1),
}


def verification() -> None:
    print(f"verifying one row of {VOCAB:,} logits, log-probabilities included, us")
    for name, sampling in SAMPLINGS.items():
        times: dict[int, list[float]] = {0: [], 4: [], 8: []}
        sampler = Sampler(sampling, vocab_size=VOCAB, device=torch.device("cpu"), prompt=[0])
        for _ in range(ROUNDS):
            for guesses, took in times.items():
                logits = torch.randn(1 + guesses, VOCAB)
                ids = logits.argmax(-1).tolist()
                proposal = Proposal("lookup", tuple(ids[:guesses])) if guesses else None
                started = time.perf_counter()
                verify(logits, proposal, sampler)
                took.append(time.perf_counter() - started)
        print(f"  {name:32}", ", ".join(f"k={k}: {statistics.median(t) * 1e6:.0f}" for k, t in times.items()))


def indexing() -> None:
    text = [(index * index) % 251 % 40 for index in range(20_000)]
    index = TailIndex()
    started = time.perf_counter()
    for at in range(len(text)):
        index.add(text, at)
    print(f"lookup's index: {(time.perf_counter() - started) / len(text) * 1e6:.2f} us per token")
    automaton, end = SuffixAutomaton(), 0
    started = time.perf_counter()
    for token in text:
        end = automaton.extend(end, token)
    print(f"suffix's automaton: {(time.perf_counter() - started) / len(text) * 1e6:.2f} us per token")


if __name__ == "__main__":
    with torch.inference_mode():
        verification()
    indexing()
