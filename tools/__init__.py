"""The tools room: what an agent may do, and when it may be started."""

from .catalogue import Catalogue, load_catalogue
from .context import ToolContext
from .contract import Contract
from .dispatcher import Dispatcher, TurnCalls
from .errors import (
    CatalogueError,
    DispatcherError,
    InvalidArguments,
    ToolDefinitionError,
    ToolFailure,
    ToolsError,
)
from .gate import Gate, Verdict, describe
from .limits import GuessLimits
from .shared import SharedLimits
from .statistics import DispatcherStatistics
from .tool import Tool, tool
from .toolset import Toolset, as_tools
from .values import (
    CallDemanded,
    CallFinished,
    CallStarted,
    DispatchEvent,
    Effect,
    Ending,
    GuessEnded,
    GuessProposed,
    GuessStarted,
    MalformedCall,
    Outcome,
    OutcomeStatus,
    Prediction,
    RefusalReason,
    ToolCall,
)

__all__ = [
    "CallDemanded",
    "CallFinished",
    "CallStarted",
    "Catalogue",
    "CatalogueError",
    "Contract",
    "DispatchEvent",
    "Dispatcher",
    "DispatcherError",
    "DispatcherStatistics",
    "Effect",
    "Ending",
    "Gate",
    "GuessEnded",
    "GuessLimits",
    "GuessProposed",
    "GuessStarted",
    "InvalidArguments",
    "MalformedCall",
    "Outcome",
    "OutcomeStatus",
    "Prediction",
    "RefusalReason",
    "SharedLimits",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolDefinitionError",
    "ToolFailure",
    "ToolsError",
    "Toolset",
    "TurnCalls",
    "Verdict",
    "as_tools",
    "describe",
    "load_catalogue",
    "tool",
]
