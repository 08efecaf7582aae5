"""A tiny grammar for phrasings: ``(Where is|Where's) order {order}?`` stands for two requests."""

from __future__ import annotations

import random
from functools import cache
from typing import NamedTuple, TypeAlias

Node: TypeAlias = "str | tuple[tuple[Node, ...], ...]"


class Pool(NamedTuple):
    """Interchangeable phrasings of one thing: those of the training and those kept out of it."""

    train: tuple[str, ...]
    heldout: tuple[str, ...]


@cache
def parse(template: str) -> tuple[Node, ...]:
    """Parse a template into literal strings and alternatives; alternatives nest.

    Raises ValueError when the parentheses do not match.
    """
    stack: list[list[list[Node]]] = [[[]]]
    literal = ""
    for character in template:
        if character not in "(|)" or (character == "|" and len(stack) == 1):
            literal += character
            continue
        if literal:
            stack[-1][-1].append(literal)
            literal = ""
        if character == "(":
            stack.append([[]])
        elif character == "|":
            stack[-1].append([])
        else:
            if len(stack) == 1:
                raise ValueError(f"unmatched ')' in phrasing: {template}")
            options = stack.pop()
            stack[-1][-1].append(tuple(tuple(option) for option in options))
    if literal:
        stack[-1][-1].append(literal)
    if len(stack) != 1:
        raise ValueError(f"unmatched '(' in phrasing: {template}")
    return tuple(stack[0][0])


def expand(template: str, rng: random.Random) -> str:
    """Return one of the texts a template stands for; slots in braces stay."""
    return _expand(parse(template), rng)


def _expand(nodes: tuple[Node, ...], rng: random.Random) -> str:
    parts = [node if isinstance(node, str) else _expand(rng.choice(node), rng) for node in nodes]
    return "".join(parts)


def count(template: str) -> int:
    """Return how many texts a template stands for, slots left unfilled."""
    return _count(parse(template))


def _count(nodes: tuple[Node, ...]) -> int:
    total = 1
    for node in nodes:
        if not isinstance(node, str):
            total *= sum(_count(option) for option in node)
    return total
