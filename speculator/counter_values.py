"""Where values stand: in the text of a message (by the shape of what is written) and in JSON (by its path).

Nothing here knows any tool. A shape is what remains of a word when its letters and digits are blurred, so that an id
seen for the first time looks like the ids seen before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agent_runtime.tools.canonical import is_shallow, plain
from agent_runtime.tools.values import canonical_json

LONGEST_TEXT = 20_000
"""Characters of a text that are searched for values."""
MOST_LEAVES = 400
"""Values of one JSON document that are remembered."""
LONGEST_VALUE = 200
"""Characters of a string in a result that may still be an argument."""

_WORD = re.compile(r"[^\W_]+(?:[-_.@:/+'][^\W_]+)*")
_RUN = re.compile(r"[A-Z0-9]*[A-Z][A-Z0-9]*(?![a-z])|[A-Z]?[^\W\dA-Z_]+|\d+|.", re.DOTALL)
_QUOTED = re.compile(r"[\"“”]([^\"“”\n]{1,80})[\"“”]|(?<!\w)'([^'\n]{1,80})'(?!\w)")
_NAME = re.compile(r"(?<![\w'])[A-Z][\w'’-]*(?: (?:(?:of|the|and|in|de|la|von|&) )*[A-Z0-9][\w'’-]*)*(?: [a-z][\w-]*)?")
_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = "|".join(month if len(month) < 4 else f"{month[:3]}(?:{month[3:]})?" for month in _MONTHS)
_DAY = re.compile(
    rf"\b(?:(?P<month>{_MONTH})\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?"
    rf"|(?P<day2>\d{{1,2}})(?:st|nd|rd|th)? (?:of )?(?P<month2>{_MONTH}))\b(?:,? (?P<year>\d{{4}})\b)?",
    re.IGNORECASE,
)

Key = str
"""A value in canonical JSON: what makes values equal."""


def key_of(value: Any) -> Key:
    """Return the form in which values are compared."""
    return canonical_json(plain(value))


def shape(text: str) -> str:
    """Return the shape of a word: `mia_li_3668` -> `a_a_9`, `2024-05-20` -> `9-9-9`, `JG7FMM` -> `X6`."""
    parts = []
    for run in _RUN.findall(text[:80]):
        first = run[0]
        if first.isdigit() and run.isdigit():
            parts.append("9")
        elif run.isalnum() and run.upper() == run and len(run) > 1:
            parts.append(f"X{len(run)}")
        elif first.isalpha():
            parts.append("A" if first.isupper() and len(run) == 1 else "Aa" if first.isupper() else "a")
        else:
            parts.append(first)
    return "".join(parts)


def spans(text: str) -> Iterator[tuple[str, str]]:
    """Yield (shape, value) for everything in `text` that may be an argument, in the order of the text.

    Words with digits, signs or capitals, runs of capitalised words, quoted text, and days (as `MM-DD` where the year is
    not written, under the shape `day`).
    """
    text = text[:LONGEST_TEXT]
    for match in _WORD.finditer(text):
        word = match.group()
        if not word.isalpha() or not word.islower():
            form = shape(word)
            if form in ("Aa", "a'a", "Aa'a", "A"):
                continue
            yield form, word
            if "@" in word:
                local = word.partition("@")[0]
                yield shape(local) + "@", local
    for match in _NAME.finditer(text):
        name = match.group()
        yield "Name", name
        head, _, tail = name.rpartition(" ")
        if tail.islower() and head:
            yield "Name", head
    for match in _QUOTED.finditer(text):
        yield "quoted", match.group(1) or match.group(2)
    for match in _DAY.finditer(text):
        month = match["month"] or match["month2"]
        number = next(index for index, name in enumerate(_MONTHS, 1) if name.startswith(month[:3].lower()))
        day = f"{number:02d}-{int(match['day'] or match['day2']):02d}"
        if match["year"]:
            yield "date", f"{match['year']}-{day}"
        else:
            yield "day", day


def words(text: str) -> list[str]:
    """Return the lower-case words of a text, without those that hold a digit or a sign."""
    return [word for word in re.findall(r"[^\W\d_]+(?:'[a-z]+)?", text[:4000].lower()) if len(word) > 1]


def parse(content: str) -> Any:
    """Return a result's content as JSON; None where it isn't a JSON object or array (or is nested absurdly)."""
    if not content or content.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if is_shallow(value) else None


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) of a JSON value, in its own order; list positions are blurred to `[]`.

    A key that holds a digit is data: it is yielded as a value at `path.*`, and blurred to `*` in what lies below.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            data = any(letter.isdigit() for letter in name)
            if data:
                yield f"{path}.*", name
            yield from leaves(item, f"{path}.*" if data else f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item, f"{path}[]")
    elif value is not None and value != "" and not (isinstance(value, str) and len(value) > LONGEST_VALUE):
        yield path, value
