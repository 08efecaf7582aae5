"""The local engine: a model of `transformers` in this process, on a thread of its own, for many conversations."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.to_thread

from agent_runtime.decoding.threads import configure_threads
from agent_runtime.errors import EngineClosed, EngineFailed, ModelNotFound, UsageError

from .base import ToolSchema
from .drafting import DraftSettings, draft_kinds
from .locate import LoadSettings, locate

if TYPE_CHECKING:
    from agent_runtime.decoding.requests import Sampling
    from agent_runtime.decoding.statistics import WorkerStatistics

    from .loading import LoadedModel
    from .session import LocalSession

CACHES_KEPT = 4
"""Closed conversations whose caches stay (memory permitting), so that the next one finds its instructions read."""


class LocalEngine:
    """Runs any causal language model that `transformers` can load.

    The model loads in a worker thread when the first session opens and is shared by all sessions, also of different
    event loops.

    Args:
        model: Hub id, local folder, or GGUF file (converted once, then kept in the user's cache folder).
        device: `auto` (CUDA if there is any), `cpu`, `cuda` or `cuda:N`.
        dtype: `auto` (the checkpoint's on a GPU, fp32 on a CPU), `float32`, `bfloat16` or `float16`.
        revision: Branch, tag or commit of a hub model.
        trust_remote_code: Run code from the model's repository. Off unless you have read and trust it.
        threads: torch's threads on a CPU; None leaves one core free.
        kv_budget: Bytes of keys and values over all conversations; None chooses by the memory there is. Idle
            conversations give way first.
        prefill_chunk: Prompt tokens read per step; a long prompt can be cancelled in between.
        max_rows: Rows (generations and probes) that decode together; others queue.
        deterministic: No row shares a forward pass with another, so that numbers never depend on company.
        executor: Who runs the forward passes; `auto` takes the lean one where the architecture allows.
        quantise: `int8` rounds the model's weights to 8 bits (Llama, Mistral, Qwen2, Qwen3): half the memory of bf16,
            and faster where memory is what a step waits for; the model is then a slightly different one.
        sampling: Defaults of all sessions; None takes the model's own generation defaults.
        drafts: Who proposes tokens of the agent, which the model then verifies: `auto` for all that need nothing but
            the text (and a draft model if one is given), `none`, or some of `call`, `lookup`, `suffix`, `grammar`,
            `model`, `layers`, `medusa`. What the model says doesn't depend on it.
        draft_tokens: Tokens to draft whenever something is proposed; None chooses by measured cost.
        draft_model: A smaller model with the same tokenizer, for the `model` draft.
        draft_sampled: Let it sample where the agent samples, instead of proposing its likeliest tokens.
        draft_quantise: Round its weights: `int8`, or `4bit` on CUDA (extra `bitsandbytes`).
        layers: Layers that the `layers` draft keeps; () takes those that a search has found.
        heads: File of Medusa heads for the `medusa` draft; None takes the one in the model's folder.
        share_drafts: Let the `suffix` draft learn from earlier conversations of the same agent (same instructions and
            tools). How quickly one conversation is answered then tells something about others.

    Raises:
        UsageError: a setting can't be used. The model itself is looked at when the first session opens.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
        threads: int | None = None,
        kv_budget: int | None = None,
        prefill_chunk: int = 256,
        max_rows: int = 16,
        deterministic: bool = False,
        executor: Literal["auto", "lean", "hf"] = "auto",
        quantise: Literal["int8"] | None = None,
        sampling: Sampling | None = None,
        drafts: Literal["auto", "none"] | Collection[str] = "auto",
        draft_tokens: int | None = None,
        draft_model: str | Path | None = None,
        draft_sampled: bool = False,
        draft_quantise: Literal["int8", "4bit"] | None = None,
        layers: Sequence[int] = (),
        heads: str | Path | None = None,
        share_drafts: bool = False,
    ) -> None:
        for name, value in (
            ("threads", threads),
            ("kv_budget", kv_budget),
            ("prefill_chunk", prefill_chunk),
            ("max_rows", max_rows),
            ("draft_tokens", draft_tokens),
        ):
            if value is not None and value < 1:
                raise UsageError(f"LocalEngine({name}={value}): give a number of at least 1")
        if executor not in ("auto", "lean", "hf"):
            raise UsageError(f"LocalEngine(executor={executor!r}): give 'auto', 'lean' or 'hf'")
        self.model = model
        self._sampling = sampling
        self._threads = threads
        self._settings = LoadSettings(
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            kv_budget=kv_budget,
            prefill_chunk=prefill_chunk,
            max_rows=max_rows,
            deterministic=deterministic,
            executor=executor,
            quantise=quantise,
            drafting=DraftSettings(
                kinds=draft_kinds(drafts, with_model=draft_model is not None),
                tokens=draft_tokens,
                model=draft_model,
                sampled=draft_sampled,
                quantise=draft_quantise,
                layers=tuple(layers),
                heads=heads,
                shared=share_drafts,
            ),
        )
        self._loading = threading.Lock()
        self._loaded: LoadedModel | None = None
        self._closed = False
        self._numbers = itertools.count()
        self._resting: deque[str] = deque()

    @property
    def name(self) -> str:
        """The model's name: its hub id, or the name of its folder or file."""
        try:
            return locate(self.model).name
        except ModelNotFound:  # opening a session says so
            return str(self.model)

    async def open(self, tools: Sequence[ToolSchema]) -> LocalSession:
        """Open a conversation in which the model may call `tools`; loads the model on first use.

        Raises:
            ModelNotFound: there is no such model, on this machine or on the hub.
            ModelUnsupported: it can't run an agent, e.g. because it has no chat template.
            MissingExtra: reading it needs a package that isn't installed.
            EngineClosed: the engine was closed.
        """
        tools = tuple(tools)
        model = self._loaded
        if model is None or self._closed or (tools and model.known_grammar(tools) is None):
            model = await anyio.to_thread.run_sync(self._prepare, tools, abandon_on_cancel=True)
        from .session import LocalSession

        owner = f"session-{next(self._numbers)}"
        return LocalSession(model, tools, owner=owner, sampling=self._sampling, on_close=self._rest)

    def statistics(self) -> WorkerStatistics | None:
        """Return counts of the model's thread; None before the model is loaded."""
        return self._loaded.worker.statistics() if self._loaded is not None else None

    async def aclose(self) -> None:
        """Stop the model's thread and free its memory; sessions that are still open end with an error."""
        self._closed = True
        if self._loaded is not None or self._loading.locked():
            await anyio.to_thread.run_sync(self._unload)

    def _prepare(self, tools: tuple[ToolSchema, ...]) -> LoadedModel:
        """Load the model if it isn't, and compile what a probe with these tools needs; runs in a worker thread."""
        with self._loading:
            if self._closed:
                raise EngineClosed(f"the engine of {self.model} is closed: make a new one")
            if self._loaded is None:
                configure_threads(self._threads)  # before torch comes in, which the next line does
                from .loading import load

                self._loaded = load(self.model, self._settings)
            model = self._loaded
        if tools:
            try:
                model.grammar(tools)
            except EngineFailed:
                pass  # the agent works without guesses; the first probe says why there are none
        return model

    def _unload(self) -> None:
        with self._loading:  # waits for a load that is under way
            model, self._loaded = self._loaded, None
        if model is not None:
            model.worker.close()

    def _rest(self, session: LocalSession) -> None:
        """Let the caches of all but the latest closed conversations go."""
        self._resting.append(session.owner)
        while len(self._resting) > CACHES_KEPT:
            owner = self._resting.popleft()
            if self._loaded is not None:
                self._loaded.worker.forget(owner)
