"""Errors of drafts.

DecodingError
└── DraftUnsupported      a draft cannot run with this target, on this device, or from these files
    └── TokenizersDiffer  a draft model's tokenizer is not the target's
"""

from __future__ import annotations

from ..errors import DecodingError


class DraftUnsupported(DecodingError):
    """Raised when a draft cannot run with this target, on this device, or from the files it was given."""


class TokenizersDiffer(DraftUnsupported):
    """Raised when a draft model's tokenizer is not the target's; the message says what differs."""
