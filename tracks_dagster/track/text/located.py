"""What a person's file says, with the line of every value, so that an error can name it.

Whoever parses the file makes `Node`s of it; whoever knows what it should say collects `Problem`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value. line: 1-based, of its key where it has one."""

    line: int
    value: Scalar | Mapping[str, Node] | Sequence[Node]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Problem:
    """One thing that is wrong with a file."""

    line: int
    words: str


def told(what: str, problems: Sequence[Problem]) -> str:
    """Return everything that is wrong with a file, a line each, in its order."""
    count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
    lines = [f"  line {problem.line}: {problem.words}" for problem in sorted(problems)]
    return "\n".join([f"{what} cannot be used; it has {count}:", *lines])


def entries(node: Node, what: str, problems: list[Problem]) -> list[tuple[str, Node]]:
    """Return the keys of a mapping with their values; anything else is a problem."""
    if isinstance(node.value, Mapping):
        return list(node.value.items())
    words = f"{shown(node.value)} stands where keys with values belong."
    problems.append(problem(node, what, words))
    return []


def problem(node: Node, path: str, words: str) -> Problem:
    """Return what is wrong with the value at `path`."""
    return Problem(line=node.line, words=f"{path}: {words}")


def unknown(what: str, given: str, valid: Sequence[str]) -> str:
    """Say that `given` is no such thing, what it may have meant, and what there is."""
    close = get_close_matches(given, valid, n=1)
    listed = (
        f"{'did you mean ' + close[0] + '? There' if close else 'there'} are: {', '.join(valid)}."
    )
    return f"{given!r} is no {what}; {listed}"


def shown(value: object) -> str:
    """Return a value as its file had it, or what kind of thing it is."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def in_quotes(value: object) -> str:
    """Say that a text belongs here, where YAML found a number or a truth."""
    return f"{shown(value)} is not text; write it in quotes."
