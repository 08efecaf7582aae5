"""What in a text may be an argument: ids, codes, numbers, names, quotations and days, each with its shape.

Nothing here knows any tool. A shape is what remains of a word when its letters and digits are blurred, so that an id
seen for the first time looks like the ids seen before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST_TEXT = 20_000
"""Characters of a text that are looked at."""
LONGEST_WORD = 80

_WORD = re.compile(r"[^\W_]+(?:[-_.@:/+'][^\W_]+)*")
_RUN = re.compile(r"[A-Z0-9]*[A-Z][A-Z0-9]*(?![a-z])|[A-Z]?[^\W\dA-Z_]+|\d+|.", re.DOTALL)
_QUOTED = re.compile(r"[\"“”]([^\"“”\n]{1,80})[\"“”]|(?<!\w)'([^'\n]{1,80})'(?!\w)")
_NAME = re.compile(r"(?<![\w'])[A-Z][\w'’-]*(?: (?:(?:of|the|and|in|de|la|von|&) )*[A-Z0-9][\w'’-]*)*(?: [a-z][\w-]*)?")
_ALIAS = re.compile(r"([A-Z][\w.'-]*(?: [A-Z][\w.'-]*)*) \(([A-Z0-9][\w-]{0,30})\)")
_PLAIN = re.compile(r"[^\W\d_]+(?:'[a-z]+)?")
_YEAR = re.compile(r"\b((?:19|20)\d\d)-\d\d-\d\d\b")
_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = "|".join(month if len(month) < 4 else f"{month[:3]}(?:{month[3:]})?" for month in _MONTHS)
_DAY = re.compile(
    rf"\b(?:(?P<month>{_MONTH})\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?"
    rf"|(?P<day2>\d{{1,2}})(?:st|nd|rd|th)? (?:of )?(?P<month2>{_MONTH}))\b(?:,? (?P<year>\d{{4}})\b)?",
    re.IGNORECASE,
)
_COMMON = ("A", "Aa", "a'a", "Aa'a", "A'a")
"""Shapes of ordinary words, which are no values on their own."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text that may be a value."""

    shape: str
    """Of the word, or `name`, `quoted`, `day` (`MM-DD`), `date` (`YYYY-MM-DD`)."""
    value: str
    lead: str
    """The word before it, in lower case; empty at the text's start."""


def shape(word: str) -> str:
    """Return the shape of a word: `ann_li_36` -> `a_a_9`, `2024-05-20` -> `9-9-9`, `JG7FMM` -> `X6`."""
    parts = []
    for run in _RUN.findall(word[:LONGEST_WORD]):
        if run.isdecimal():
            parts.append("9")
        elif len(run) > 1 and run.isalnum() and run.upper() == run:
            parts.append(f"X{len(run)}")
        elif run[0].isalpha():
            parts.append("a" if not run[0].isupper() else "A" if len(run) == 1 else "Aa")
        else:
            parts.append(run)
    return "".join(parts)


def spans(text: str) -> Iterator[Span]:
    """Yield everything in `text` that may be an argument: words first, then names, quotations and days.

    Of a mail address the part before the `@` is yielded too, of a name the part without the word in lower case.
    """
    text = text[:LONGEST_TEXT]
    lead = ""
    for match in _WORD.finditer(text):
        word = match.group()
        if not (word.isalpha() and word.islower()):
            form = shape(word)
            if form not in _COMMON:
                yield Span(form, word, lead)
                local, at, _ = word.partition("@")
                if at:
                    yield Span(f"{shape(local)}@", local, lead)
        lead = word.lower()
    for match in _NAME.finditer(text):
        yield from _names(text, match)
    for match in _QUOTED.finditer(text):
        yield Span("quoted", match.group(1) or match.group(2), "")
    for match in _DAY.finditer(text):
        named = (match["month"] or match["month2"])[:3].lower()
        month = next(number for number, name in enumerate(_MONTHS, 1) if name.startswith(named))
        day = f"{month:02d}-{int(match['day'] or match['day2']):02d}"
        lead = _word_before(text, match.start())
        yield Span("date", f"{match['year']}-{day}", lead) if match["year"] else Span("day", day, lead)


def _names(text: str, match: re.Match[str]) -> Iterator[Span]:
    name = match.group()
    head, _, tail = name.rpartition(" ")
    proper = head if head and tail.islower() else name
    lead = _word_before(text, match.start())
    if " " not in proper and (proper.isupper() or _opens_sentence(text, match.start())):
        return  # a code, found as a word, or no name at all
    if proper is not name:
        yield Span("name", name, lead)
    yield Span("name", proper, lead)


def _opens_sentence(text: str, at: int) -> bool:
    before = text[max(0, at - 3) : at].rstrip(" *")
    return not before or before[-1] in ".!?:\n"


def _word_before(text: str, at: int) -> str:
    words = _WORD.findall(text, max(0, at - 24), at)
    return words[-1].lower() if words else ""


def aliases(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, code) for whatever the text introduces as `Name (CODE)`."""
    for match in _ALIAS.finditer(text[:LONGEST_TEXT]):
        name, code = match.group(1), match.group(2)
        yield name, code
        _, _, rest = name.partition(" ")
        if rest and _opens_sentence(text, match.start()):
            yield rest, code  # "From Oslo (OSL)"


def years(text: str) -> list[str]:
    """Return the years of the full dates in a text."""
    return _YEAR.findall(text)


def words(text: str) -> frozenset[str]:
    """Return the words of a text in lower case, without those that hold a digit."""
    return frozenset(word for word in _PLAIN.findall(text[:4000].lower()) if len(word) > 1)
