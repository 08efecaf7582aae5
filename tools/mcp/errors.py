"""Errors of MCP servers that users see.

MCPToolsError                   exit code 1
├── MCPNotInstalled             2   the extra `mcp` is needed
└── MCPServerFailed             1   a server can't be started or reached, or isn't one
"""

from __future__ import annotations

from ..errors import ToolsError


class MCPToolsError(ToolsError):
    """Base of all errors of MCP servers and their tools."""


class MCPNotInstalled(MCPToolsError):
    """Raised when the SDK of the Model Context Protocol is missing; the message says how to install it."""

    exit_code = 2


class MCPServerFailed(MCPToolsError):
    """Raised when a server can't be started or reached, or doesn't speak the protocol; the message names it."""
