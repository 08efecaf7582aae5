"""Reports of recorded runs: a page for one, figures over many, where two part."""

from __future__ import annotations

from .diff import RunsDiff, diff_runs
from .page import html_page

__all__ = ["RunsDiff", "diff_runs", "html_page"]
