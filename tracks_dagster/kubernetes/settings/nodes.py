"""How the values of a cluster's settings are read from located nodes: words, lists, labels, JSON.

A reader takes (path, node, problems), collects what is wrong, each with its line, and returns a value
that is only used when nothing was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracks_dagster.attempts.kube_words import LABEL_KEY, LABEL_VALUE
from tracks_dagster.track.records import Json
from tracks_dagster.track.text import units
from tracks_dagster.track.text.located import Node, Problem, entries, problem
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import in_quotes, shown

Read = Callable[[str, Node, list[Problem]], Any]

# Names of the API: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def scalar(read: units.Reader[Any]) -> Read:
    """Return a reader of one value; `read` raises ValueError with what is wrong."""

    def found(path: str, node: Node, problems: list[Problem]) -> Any:
        try:
            return read(node.value)
        except ValueError as error:
            problems.append(problem(node, path, str(error)))
            return None

    return found


def said(pattern: re.Pattern[str], what: str, example: str) -> units.Reader[str]:
    """Return a reader of words that `pattern` matches as a whole."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"{shown(value)} is not {what}; write for example {example}.")
        return value

    return read


def word(what: str, valid: Sequence[str]) -> Read:
    """Return a reader of one of these words."""
    return scalar(units.one_of(what, {each: each for each in valid}))


def read_items(read: Read) -> Read:
    """Return a reader of a list, each item by `read`."""

    def found(path: str, node: Node, problems: list[Problem]) -> tuple[Any, ...]:
        return tuple(
            read(f"{path}[{index}]", item, problems)
            for index, item in enumerate(items_of(node, path, problems))
        )

    return found


def read_labels(path: str, node: Node, problems: list[Problem]) -> dict[str, str]:
    """Read labels of nodes: names and values as the API takes them."""
    found: dict[str, str] = {}
    for key, given in entries(node, path, problems):
        if not LABEL_KEY.fullmatch(key):
            words = (
                f"{key!r} is not the name of a label; write for example gpu, or example.com/gpu."
            )
            problems.append(problem(given, path, words))
        elif not isinstance(given.value, str):
            problems.append(problem(given, f"{path}.{key}", in_quotes(given.value)))
        elif not LABEL_VALUE.fullmatch(given.value):
            words = (
                f"{shown(given.value)} is no value of a label: 63 of A-Z, a-z, 0-9, '-_.' at most."
            )
            problems.append(problem(given, f"{path}.{key}", words))
        else:
            found[key] = given.value
    return found


def items_of(node: Node, what: str, problems: list[Problem]) -> list[Node]:
    """Return the items of a list; anything else is a problem."""
    if isinstance(node.value, Sequence) and not isinstance(node.value, str):
        return list(node.value)
    words = f"{shown(node.value)} stands where a list belongs; begin each item with `- `."
    problems.append(problem(node, what, words))
    return []


def to_json(node: Node) -> Json:
    """Return a value without its lines."""
    if isinstance(node.value, Mapping):
        return {key: to_json(value) for key, value in node.value.items()}
    if isinstance(node.value, Sequence) and not isinstance(node.value, str):
        return [to_json(item) for item in node.value]
    return node.value


def unknown_keys(
    path: str, node: Node, valid: Sequence[str], problems: list[Problem]
) -> Mapping[str, Node]:
    """Collect keys that are not `valid`; return the others."""
    found = {}
    for key, given in entries(node, path, problems):
        if key in valid:
            found[key] = given
        else:
            problems.append(problem(given, path, unknown("key", key, valid)))
    return found
