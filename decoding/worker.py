"""The model thread: rows of many conversations, decoded together, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from .requests import RowRequest
from .row import Row

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from .statistics import WorkerStatistics


class ModelWorker:
    """Owns a model and the one thread that runs it.

    `submit` may be called from any event loop (asyncio or trio) and never blocks. Use as a context manager or `close`.
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
        executor: Literal["auto", "lean", "hf"] = "auto",
        threads: int | None = None,
    ) -> None:
        """Start the thread. `detokenize` is needed by requests with stop strings only."""

    def submit(self, request: RowRequest) -> Row:
        """Queue a row; call from within the event loop that will iterate it.

        Raises PromptRejected, KvBudgetExceeded, WorkerStopped.
        """
        raise RuntimeError

    def forget(self, owner: str) -> None:
        """Drop the idle cache entries of `owner` at the next step boundary."""

    def statistics(self) -> WorkerStatistics:
        """Return counts since the start."""
        raise RuntimeError

    def close(self) -> None:
        """Stop after the current step, end every row with WorkerStopped, join the thread."""
