"""The model thread: rows of many conversations, decoded together, one step after the other."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from .cache import PrefixStore
from .costs import CostTable, measure_costs
from .drafter import Drafter
from .drafts.base import Draft
from .errors import DecodingError, ModelUnsupported, PromptRejected, RowFailed, WorkerStopped
from .executor import Executor, ExecutorName, choose_executor
from .lean import LeanExecutor
from .quantised import quantise_lean
from .requests import RowRequest
from .row import Row
from .row_state import RowState
from .sampling import Sampler
from .scheduler import Scheduler, budget_error
from .slowdown import SlowdownMeter
from .statistics import Counts, WorkerStatistics
from .step import Stepper
from .stops import StopScanner
from .wake import waker_of_this_loop

if TYPE_CHECKING:
    from types import TracebackType

    from transformers import PreTrainedModel


DraftFactory = Callable[[Executor], Draft]
DETERMINISTIC_DRAFT = 7


class ModelWorker:
    """Owns a model and the one thread that runs it: schedule, run, postprocess, again and again.

    `submit` may be called from any event loop (asyncio or trio) and never blocks; the thread never waits for a loop.
    Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        detokenize: Callable[[Sequence[int]], str] | None = None,
        device: str | torch.device | None = None,
        prefill_chunk: int = 256,
        max_rows: int = 16,
        kv_budget_bytes: int = 2 << 30,
        deterministic: bool = False,
        executor: ExecutorName = "auto",
        quantise: Literal["int8"] | None = None,
        threads: int | None = None,
        drafts: Sequence[Draft | DraftFactory] = (),
        draft_tokens: int | None = None,
    ) -> None:
        """Move the model to `device`, build its executor and start the thread.

        Args:
            model: any causal language model of `transformers`; put into evaluation mode. The lean executor turns its
                parameters into views of fused weights, so save it before, not after.
            detokenize: ids -> text, where an incomplete last character gives U+FFFD; only stop strings need it.
            device: where the model goes; None leaves it.
            prefill_chunk: prompt tokens read per step, over all rows; a long prompt can be cancelled in between.
            max_rows: rows that decode together; others queue.
            kv_budget_bytes: bytes of keys and values over running rows and idle entries; checked between steps, so it
                is exceeded by one growth of a buffer at most.
            deterministic: every row runs in forwards of its own, and decodes in blocks of `draft_tokens` + 1 tokens (of
                one without drafts, or where the model's state can't be rewound); prompts are read in chunks, and
                prefixes re-used in lengths, that end at multiples of `prefill_chunk`. A row's numbers then don't depend
                on other rows to the last bit, but no two rows share a pass over the weights.
            executor: "auto" takes the lean one where the architecture allows, else the model's own forward.
            quantise: "int8" rounds the weights of the lean executor's products to 8 bits. It computes in bf16 then, and
                what it says is that of the rounded model, with drafts or without.
            threads: torch's threads for this process; None leaves them (see `decoding.threads`).
            drafts: who may propose tokens, which the model then verifies; or functions that make one for the executor.
            draft_tokens: tokens to draft in every step where something is proposed; None chooses by measured cost (with
                `deterministic`: 7).

        Raises:
            ModelUnsupported: no executor can run the model correctly.
        """
        loaded: Any = model
        if device is not None:
            loaded.to(device)
        loaded.eval()
        if threads is not None:
            torch.set_num_threads(threads)
        # Not inference mode: the fused weights become the model's own, and must still take part in a backward pass.
        with torch.no_grad():
            if quantise is not None:
                loaded.to(torch.bfloat16)
            self._executor: Executor = choose_executor(model, executor)
            if quantise is not None:
                if not isinstance(self._executor, LeanExecutor):
                    raise ModelUnsupported("int8 weights run on the lean executor only; leave quantise out.")
                quantise_lean(self._executor)
            self._drafts = [make(self._executor) if callable(make) else make for make in drafts]
        self._draft_tokens = DETERMINISTIC_DRAFT if draft_tokens is None and deterministic else draft_tokens
        self._device = next(model.parameters()).device
        self._detokenize = detokenize
        self._deterministic = deterministic
        self._budget = kv_budget_bytes
        self._store = PrefixStore(self._executor, kv_budget_bytes, align=prefill_chunk if deterministic else 1)
        self._scheduler = Scheduler(
            self._store, max_rows=max_rows, prefill_chunk=prefill_chunk, align_chunks=deterministic
        )
        self._meter = SlowdownMeter()
        self._counts = Counts()
        self._mail: deque[Row | str] = deque()  # new rows, and owners to forget
        self._bell = threading.Event()
        self._lock = threading.Lock()  # between submitting and dying: no row may slip through
        self._closing = False
        self._stopped: WorkerStopped | None = None
        self._chooser: Drafter | None = None
        self._thread = threading.Thread(target=self._main, name="agent-runtime-model", daemon=True)
        self._thread.start()

    # -- from any thread ----------------------------------------------------------------------------------------

    @property
    def executor(self) -> Executor:
        """What runs the forward passes. To be used by the model thread, or before any row is submitted."""
        return self._executor

    @property
    def vocab_size(self) -> int:
        """Number of logits per position."""
        return self._executor.vocab_size

    def submit(self, request: RowRequest) -> Row:
        """Queue a row; call it from within the event loop that will iterate the row.

        Raises:
            PromptRejected: the prompt is empty or holds ids that the model doesn't know.
            KvBudgetExceeded: the prompt alone needs more than the whole budget.
            WorkerStopped: the worker was closed, or its thread died.
        """
        self._check(request)
        row = Row(request, waker_of_this_loop(), self._bell.set)
        with self._lock:
            if self._stopped is not None or self._closing:
                raise self._stopped or WorkerStopped("The model worker is closed; start a new one.")
            self._mail.append(row)
        self._bell.set()
        return row

    def forget(self, owner: str) -> None:
        """Drop the idle cache entries of `owner` at the next step boundary."""
        self._mail.append(owner)
        self._bell.set()

    def statistics(self) -> WorkerStatistics:
        """Return counts since the start. Values of one call may be one step apart."""
        return self._counts.frozen(
            executor=self._executor.name,
            co_decodes=self._executor.shares_forwards and not self._deterministic,
            rows_running=len(self._scheduler.running),
            rows_waiting=len(self._scheduler.waiting) + len(self._mail),
            cache_entries=len(self._store),
            evictions=self._store.evictions,
        )

    def close(self) -> None:
        """Stop after the current step, end every row with `WorkerStopped`, join the thread. May be called twice."""
        with self._lock:
            self._closing = True
        self._bell.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> ModelWorker:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _check(self, request: RowRequest) -> None:
        prompt, vocab = request.prompt, self._executor.vocab_size
        if not prompt:
            raise PromptRejected("The prompt is empty; a row needs at least one token to continue from.")
        if min(prompt) < 0 or max(prompt) >= vocab:
            raise PromptRejected(
                f"The prompt holds token ids from {min(prompt)} to {max(prompt)}; the model knows 0 to {vocab - 1}. "
                "Check that tokenizer and model belong together."
            )
        if request.max_new_tokens < 0:
            raise PromptRejected(f"max_new_tokens is {request.max_new_tokens}; it must be 0 or more.")
        if request.sampling.stop and self._detokenize is None:
            raise PromptRejected("Stop strings need a worker with `detokenize`.")
        needed = self._executor.bytes_for(len(prompt))
        if needed > self._budget:
            raise budget_error(request.owner, needed, self._budget)

    # -- the model thread ---------------------------------------------------------------------------------------

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            with torch.inference_mode():
                self._loop()
        except BaseException as caught:  # whatever ended the thread, every row must hear of it
            error = caught
        stopped = WorkerStopped(
            "The model worker was closed while rows were running."
            if error is None
            else f"The model thread died: {type(error).__name__}: {error}. Start a new worker."
        )
        stopped.__cause__ = error
        with self._lock:
            self._stopped = stopped
            rows = [mail for mail in self._mail if isinstance(mail, Row)]
            self._mail.clear()
        rows += [state.row for state in (*self._scheduler.running, *self._scheduler.waiting)]
        for row in rows:
            # One exception object per row: tracebacks are written into it where it is raised.
            own = WorkerStopped(*stopped.args)
            own.__cause__ = error
            row.fail(own)
        self._scheduler.running.clear()
        self._scheduler.waiting.clear()
        self._store.clear()

    def _drafter(self) -> Drafter | None:
        if not self._drafts:
            return None
        executor = self._executor
        return Drafter(
            self._drafts,
            measure_costs(executor) if self._draft_tokens is None else CostTable({1: 1.0}),
            vocab_size=executor.vocab_size,
            trees=executor.trees,
            fixed=self._draft_tokens,
        )

    def _loop(self) -> None:
        self._chooser = self._drafter()
        stepper = Stepper(
            self._executor,
            self._store,
            self._chooser,
            self._counts,
            device=self._device,
            deterministic=self._deterministic,
            block_tokens=1 + (self._draft_tokens or 0) if self._chooser is not None else 1,
        )
        began = time.perf_counter()
        while True:
            self._bell.clear()
            if self._closing:  # looked at after the bell is cleared: a `close` in between would ring unheard
                return
            self._read_mail()
            planned = self._scheduler.schedule()
            for state, error in self._scheduler.failed:
                self._meter.settle(state)
                self._blame(state.row, error)
            self._scheduler.failed.clear()
            # A prompt may have been cached already, and nothing asked for beyond it.
            changed = self._announce(self._scheduler.at_rest)
            if not planned:
                if not changed:
                    self._flush()
                    self._bell.wait()
                began = time.perf_counter()
                continue
            if any(not part.row.is_ready for part in planned):
                self._flush()  # this step takes longer than a token
            stepped = stepper.run(planned)
            for state, error in stepped.failed:
                self._fail(state, error)
            # From step to step: what grammars, forks and choosing take is part of a step's price.
            ended = time.perf_counter()
            self._meter.add([part.row for part in planned], stepped.sizes, ended - began)
            if self._chooser is not None and all(part.row.is_ready for part in planned):
                self._chooser.costs.took(ended - began - stepped.model_s, drafted=stepped.drafted)
            began = ended
            self._announce([part.row for part in planned])
            self._counts.cache_bytes = self._scheduler.running_bytes + self._store.nbytes

    def _flush(self) -> None:
        for state in self._scheduler.running:
            state.row.flush()

    def _read_mail(self) -> None:
        while self._mail:
            mail = self._mail.popleft()
            if isinstance(mail, str):
                self._store.forget(mail)
                continue
            try:
                self._scheduler.add(self._state_of(mail))
            except Exception as error:
                self._blame(mail, error)
        for state in [*self._scheduler.running, *self._scheduler.waiting]:
            if state.row.cancelled:
                state.cancel()
                self._finish(state)

    def _state_of(self, row: Row) -> RowState:
        request = row.request
        sampler = Sampler(
            request.sampling, vocab_size=self._executor.vocab_size, device=self._device, prompt=request.prompt
        )
        scanner = None
        if request.sampling.stop and self._detokenize is not None:
            scanner = StopScanner(request.sampling.stop, self._detokenize, request.prompt)
        self._counts.rows += 1
        state = RowState(row, sampler, scanner, self._counts.rows)
        # What the grammar forces at the start is read together with the prompt.
        state.add_forced()
        return state

    # -- events ---------------------------------------------------------------------------------------------------

    def _announce(self, rows: Sequence[RowState]) -> bool:
        """Push the events that have come about, end the rows that are over; tell whether anything changed."""
        changed = False
        for row in list(rows):
            if row not in self._scheduler.running:
                continue
            ready = row.take_ready()
            if ready is not None:
                self._counts.prompt_tokens += ready.prompt_tokens
                self._counts.reused_tokens += ready.reused_tokens
                self._counts.bytes_copied += ready.bytes_copied
                row.push(ready)
                changed = True
            if row.reason is None and row.pending == 0 and row.is_ready:
                row.score([])  # a row that may add nothing, or whose grammar is finished at once
            if row.reason is not None:
                self._finish(row)
                changed = True
            else:
                row.push(row.take_tokens())
        return changed

    def _finish(self, row: RowState) -> None:
        row.push(row.take_tokens())
        self._counts.finish(row.emitted, row.tallies)
        self._let_go(row)
        row.push(row.finished(self._meter.settle(row)))

    # -- errors -------------------------------------------------------------------------------------------------

    def _fail(self, row: RowState, error: Exception) -> None:
        """End one row with an error; its cache is not trusted any more."""
        row.cache = None
        self._let_go(row)
        self._meter.settle(row)
        self._blame(row.row, error)

    def _let_go(self, row: RowState) -> None:
        self._scheduler.remove(row)
        if self._chooser is not None:
            self._chooser.forget(row)

    def _blame(self, row: Row, error: Exception) -> None:
        if isinstance(error, DecodingError):
            row.fail(error)
            return
        failed = RowFailed(
            f"Decoding a row of {row.request.owner!r} failed: {type(error).__name__}: {error}. Other rows go on."
        )
        failed.__cause__ = error
        row.fail(failed)
