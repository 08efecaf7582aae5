"""The canonical form in which arguments are compared: compact JSON with sorted keys, secrets behind a keyed hash."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Mapping, Set
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from .values import canonical_json

DEEPEST = 64

_KEY = secrets.token_bytes(32)  # of this process: equal secrets stay equal, and the hash tells nothing outside


def secret_digest(value: object) -> str:
    """Return a keyed hash of a secret; equal secrets give equal digests within this process."""
    text = value if isinstance(value, bytes) else str(value).encode()
    return "secret:" + hmac.new(_KEY, text, hashlib.sha256).hexdigest()


def plain(value: Any) -> Any:
    """Return a validated value as plain JSON values.

    Whole floats become integers (JSON knows one kind of number), sets are sorted, secrets become keyed hashes.
    """
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return repr(value)
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, SecretStr | SecretBytes):
        return secret_digest(value.get_secret_value())
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Set):
        return sorted((plain(item) for item in value), key=canonical_json)
    if isinstance(value, BaseModel):
        return {
            **{_alias(value, name): plain(getattr(value, name)) for name in type(value).model_fields},
            **{name: plain(item) for name, item in (value.model_extra or {}).items()},
        }
    jsonable = to_jsonable_python(value, fallback=repr)
    return jsonable if isinstance(jsonable, str | bool | int | None) else plain(jsonable)


def is_shallow(value: Any) -> bool:
    """Tell whether JSON values are nested at most `DEEPEST` levels, so that recursion over them is safe."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for item in level
            if isinstance(item, Mapping | list | tuple)
            for child in (item.values() if isinstance(item, Mapping) else item)
        ]
        if not level:
            return True
    return False


def _alias(model: BaseModel, name: str) -> str:
    return type(model).model_fields[name].alias or name


def _key(key: Any) -> str:
    return key if type(key) is str else str(plain(key))
