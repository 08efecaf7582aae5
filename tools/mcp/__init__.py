"""Tools of Model Context Protocol servers."""

from .errors import MCPNotInstalled, MCPServerFailed, MCPToolsError
from .questions import Elicit, Question
from .servers import MCPStatistics, MCPTools

__all__ = [
    "Elicit",
    "MCPNotInstalled",
    "MCPServerFailed",
    "MCPStatistics",
    "MCPTools",
    "MCPToolsError",
    "Question",
]
