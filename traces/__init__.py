"""What happened: the event schema, the store that keeps runs, and the ledger of what guessing did in them."""

from __future__ import annotations

from .database import default_path, locate
from .errors import (
    AmbiguousRunId,
    DatabaseTooNew,
    DatabaseTooOld,
    DatabaseUnavailable,
    RunNotFound,
    RunStillRunning,
    TracesError,
    WriterFailed,
)
from .expectation import ClosedForm, Expectation, closed_form
from .ledger import HitRate, Ledger, LedgerFold, ledger, merge
from .quantiles import Quantiles
from .reader import StoredEvents
from .redaction import Redactor
from .store import RunRow, StoreStatistics, TraceStore
from .trace import MemoryTrace, RunTrace
from .turns import GuessRecord, TurnLedger
from .writer import RunWriter, WriterStatistics

__all__ = [
    "AmbiguousRunId",
    "ClosedForm",
    "DatabaseTooNew",
    "DatabaseTooOld",
    "DatabaseUnavailable",
    "Expectation",
    "GuessRecord",
    "HitRate",
    "Ledger",
    "LedgerFold",
    "MemoryTrace",
    "Quantiles",
    "Redactor",
    "RunNotFound",
    "RunRow",
    "RunStillRunning",
    "RunTrace",
    "RunWriter",
    "StoreStatistics",
    "StoredEvents",
    "TraceStore",
    "TracesError",
    "TurnLedger",
    "WriterFailed",
    "WriterStatistics",
    "closed_form",
    "default_path",
    "ledger",
    "locate",
    "merge",
]
