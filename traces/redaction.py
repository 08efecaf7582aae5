"""Takes secrets out of what is about to be written; a keyed hash stays in their place, so that equality survives.

The key belongs to one database. Equal secrets have equal hashes within it, and the hashes say nothing to anyone who
lacks the key; against one who has the whole database they protect long secrets, not a PIN that can be tried out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent_runtime.tools.values import canonical_json
from pydantic import SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from .credentials import LIST_NAMES, may_hold_credentials, replace_credentials, secret_name

PREFIX = "redacted:hmac:"

_REDACTED = re.compile(re.escape(PREFIX) + "[0-9a-f]{32}")
_SHORTEST = 6
"""Shorter secrets are not looked for elsewhere: they would match by chance all over."""


_SECRET_STR = "*" * 10
"""How pydantic writes a `SecretStr`."""


class JsonText(str):
    """Text that is JSON already: `Database` writes it as it is."""

    __slots__ = ()


class Redactor:
    """Redacts the events of one run.

    It remembers the secrets it met, and takes them out of later text too: a model repeats in its message what a call
    was given.

    Args:
        key: The database's key.
        secrets: Names of secret arguments by tool.
    """

    def __init__(self, key: bytes, secrets: Mapping[str, Iterable[str]] | None = None) -> None:
        self._key = key
        self._secrets = {tool: frozenset(names) for tool, names in (secrets or {}).items()}
        names = sorted(set().union(*self._secrets.values()))
        self._declared = _field_pattern(names) if names else None
        self._known: set[str] = set()
        self._known_pattern: re.Pattern[str] | None = None
        self._declared_names = tuple(names)
        self._all_plain = all(map(_is_plain_json, names))

    def dump(self, value: Any, in_full: Callable[[], Any]) -> JsonText:
        """Return compact JSON of `value` without the secrets in it.

        Most values hold nothing that could be one; that is seen in their JSON, which is made anyway. The others are
        taken apart: `in_full` gives the same value as `redact` takes it.
        """
        try:
            text = to_json(value, inf_nan_mode="constants").decode()
        except (PydanticSerializationError, UnicodeError):  # halves of surrogate pairs, objects without a JSON form
            pass
        else:
            if not self._may_hold_secrets(text):
                return JsonText(text)
        return JsonText(compact_json(self.redact(in_full())))

    def redact(self, value: Any) -> Any:
        """Return JSON values equal to `value` but for the secrets in it.

        Takes what pydantic dumps in Python mode: besides JSON values also `SecretStr` and other plain objects.
        """
        self._learn(value)
        return self._redact(value)

    def text(self, text: str) -> str:
        """Return `text` without secrets."""
        text = _encodable(text)
        if _REDACTED.fullmatch(text):
            return text
        if self._known_pattern is not None:
            text = self._known_pattern.sub(lambda match: self.digest(match[0]), text)
        if self._declared is not None:  # calls that the model wrote into its text, also broken ones
            text = self._declared.sub(lambda match: match["name"] + self._quoted(match["value"]), text)
        return replace_credentials(text, self._replacement)

    def digest(self, secret: str) -> str:
        """Return what stands for a secret: equal ones give equal text."""
        code = hmac.new(self._key, secret.encode("utf-8", "replace"), hashlib.sha256)
        return PREFIX + code.hexdigest()[:32]

    def _may_hold_secrets(self, text: str) -> bool:
        """Tell whether JSON holds a secret, or what this class writes otherwise than JSON does; in doubt it says so."""
        if not self._all_plain or _SECRET_STR in text or "Infinity" in text or "NaN" in text:
            return True
        if any(name in text for name in self._declared_names):
            return True
        if self._known_pattern is not None and self._known_pattern.search(text):
            return True
        return may_hold_credentials(text)

    def _redact(self, value: Any) -> Any:
        match value:
            case float():
                return value if math.isfinite(value) else repr(value)  # JSON has no word for the others
            case None | bool() | int():
                return value
            case str():
                return self.text(value)
            case SecretStr() | SecretBytes():
                return self._secret(value)
            case Mapping():
                return self._redact_object(value)
            case list() | tuple():
                return [self._redact(item) for item in value]
            case _:
                plain = to_jsonable_python(value, fallback=repr)
                return self._redact(plain)

    def _redact_object(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        declared = self._declared_in(value)
        redacted: dict[str, Any] = {}
        for key, item in value.items():
            name = self.text(str(key))
            if key == "arguments" and declared and isinstance(item, Mapping):
                redacted[name] = {
                    self.text(str(argument)): self._secret(given)
                    if argument in declared and given is not None
                    else self._redact_field(argument, given)
                    for argument, given in item.items()
                }
            else:
                redacted[name] = self._redact_field(key, item)
        return redacted

    def _redact_field(self, key: Any, item: Any) -> Any:
        known = secret_name(key) if isinstance(key, str) else None
        if known is not None and item:
            if isinstance(item, str):
                return self._secret(item)
            if known in LIST_NAMES and isinstance(item, list | tuple):
                return [self._secret(part) if isinstance(part, str) else self._redact(part) for part in item]
        return self._redact(item)

    def _declared_in(self, value: Mapping[Any, Any]) -> frozenset[str]:
        """Return the names of secret arguments if `value` is a call of a tool that has some."""
        name = value.get("name")
        return self._secrets.get(name, frozenset()) if isinstance(name, str) else frozenset()

    def _secret(self, value: Any) -> str:
        text = _plain(value)
        return text if _REDACTED.fullmatch(text) else self.digest(text)

    def _replacement(self, secret: str) -> str:
        return secret if _REDACTED.fullmatch(secret) else self.digest(secret)

    def _quoted(self, literal: str) -> str:
        """Return a JSON literal's replacement as a JSON string, equal to that of the same value in a parsed call."""
        try:
            value = json.loads(literal)
        except ValueError:
            value = literal.strip('"')
        return literal if value is None else json.dumps(self._secret(value))

    def _learn(self, value: Any) -> None:
        """Remember every secret in `value`, before any of its text is rewritten: the text may come first."""
        before = len(self._known)
        self._find(value)
        if len(self._known) > before:
            longest_first = sorted(self._known, key=len, reverse=True)
            self._known_pattern = re.compile("|".join(map(re.escape, longest_first)))

    def _find(self, value: Any) -> None:
        match value:
            case SecretStr() | SecretBytes():
                self._remember(value)
            case Mapping():
                declared = self._declared_in(value)
                arguments = value.get("arguments")
                if declared and isinstance(arguments, Mapping):
                    for name in declared & arguments.keys():
                        self._remember(arguments[name])
                for item in value.values():
                    self._find(item)
            case list() | tuple():
                for item in value:
                    self._find(item)
            case _:
                pass

    def _remember(self, value: Any) -> None:
        if isinstance(value, Mapping | list | tuple):
            for item in value.values() if isinstance(value, Mapping) else value:
                self._remember(item)
            return
        text = _plain(value)
        if len(text) >= _SHORTEST and not isinstance(value, bool) and not _REDACTED.fullmatch(text):
            self._known |= {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
            self._all_plain = self._all_plain and _is_plain_json(text)


def compact_json(value: Any) -> str:
    """Return JSON as it is stored."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _is_plain_json(text: str) -> bool:
    """Tell whether JSON writes text as it is, however often it is put into JSON."""
    return json.dumps(text) == f'"{text}"'


def _plain(value: Any) -> str:
    """Return a secret as text; what isn't text already as canonical JSON."""
    if isinstance(value, SecretStr):
        return _encodable(value.get_secret_value())
    if isinstance(value, SecretBytes):
        return value.get_secret_value().decode("utf-8", "replace")
    if isinstance(value, str):
        return _encodable(value)
    try:
        return canonical_json(to_jsonable_python(value, fallback=repr, inf_nan_mode="strings"))
    except ValueError:  # halves of surrogate pairs, infinite numbers
        return _encodable(json.dumps(value, default=repr, sort_keys=True, ensure_ascii=False))


def _encodable(text: str) -> str:
    """Return text that every database can hold: halves of surrogate pairs are joined, or replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _field_pattern(names: list[str]) -> re.Pattern[str]:
    """Return a pattern of `"name": value` in JSON text, whole or broken off; `name` and `value` are its groups."""
    either = "|".join(map(re.escape, names))
    return re.compile(rf'(?P<name>"(?:{either})"\s*:\s*)(?P<value>"(?:[^"\\]|\\.)*"?|[^\s",}}\]\[{{]+)')
