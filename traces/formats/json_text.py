"""Reads one JSON text that nobody vouches for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from .errors import Broken

MAX_DEPTH = 100
"""Objects and arrays that may stand inside each other."""


def loads(text: bytes | str) -> Any:
    """Return the value of a JSON text, whose numbers are finite and whose strings are valid Unicode.

    Raises:
        Broken: it is no JSON, no UTF-8, nested too deeply, or holds a number that is none or is too large.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = _DECODER.decode(text)
    except RecursionError:
        raise Broken(_TOO_DEEP) from None
    except UnicodeDecodeError as error:
        raise Broken(f"no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Broken(f"no JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise Broken(f"no JSON: {str(error).split(';')[0]}") from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    if "\\ud" in text or "\\uD" in text:
        value = _without_surrogates(value)
    return value


_TOO_DEEP = f"no JSON we take: more than {MAX_DEPTH} levels deep"


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise Broken("no JSON we take: a number too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise Broken(f"no JSON: {name} is no number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for parent in level for child in _children(parent) if isinstance(child, (dict, list))]
        if not level:
            return
    raise Broken(_TOO_DEEP)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


_LONE = re.compile("[\ud800-\udfff]")


def _without_surrogates(value: Any) -> Any:
    """Return the value with lone surrogates replaced: they can be neither stored nor printed."""
    if isinstance(value, str):
        return _LONE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
