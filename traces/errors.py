"""Errors of the traces room.

TracesError
├── DatabaseUnavailable     the database can't be opened, read or written
│   ├── DatabaseTooNew      it was made by a newer version of this package
│   └── DatabaseTooOld      it needs migrating, and migrating was not allowed
├── RunNotFound             no run has this id
│   └── AmbiguousRunId      several runs have ids that begin so
├── RunStillRunning         a run that is going on can't be removed
└── WriterFailed            what a run did can't be recorded any more
"""

from __future__ import annotations

from agent_runtime.base_error import AgentRuntimeError


class TracesError(AgentRuntimeError):
    """Base of all errors of the traces room."""


class DatabaseUnavailable(TracesError):
    """Raised when a database can't be opened, read or written; the message names it and the remedy."""

    exit_code = 2


class DatabaseTooNew(DatabaseUnavailable):
    """Raised when a database was made by a newer version of this package."""


class DatabaseTooOld(DatabaseUnavailable):
    """Raised when a database needs migrating and it was opened with `migrate=False`."""


class RunNotFound(TracesError):
    """Raised when no run has the given id."""

    exit_code = 2


class AmbiguousRunId(RunNotFound):
    """Raised when the beginning of an id fits several runs."""


class RunStillRunning(TracesError):
    """Raised when a run that is going on is to be removed."""

    exit_code = 2


class WriterFailed(TracesError):
    """Raised when the events of a run can't be written any more; the run must not go on unrecorded."""
