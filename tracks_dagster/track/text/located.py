"""What a person's file says, with the line of every value, so that an error can name it.

Whoever parses the file makes `Node`s of it; whoever knows what it should say collects `Problem`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.track.text.units import shown

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
