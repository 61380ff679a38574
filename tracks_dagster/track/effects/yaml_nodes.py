"""A person's YAML file as located values: strict, small, and without YAML's surprises.

Only mappings, lists and scalars; no anchors, tags or second document. Plain words stay words (`no`
and `on` are text, `24:00` is no number): a number is digits, a truth is true or false.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from tracks_dagster.track.errors import SettingsError
from tracks_dagster.track.text.located import Node, Problem, Scalar

FILE_BYTES_MAX = 256 * 1024  # a settings file; the shipped policy would be 8 KiB
DEPTH_MAX = 16

_INT = re.compile(r"[-+]?\d+")
_FLOAT = re.compile(r"[-+]?\d+\.\d+")
_DIGITS_MAX = 18  # longer ones are no number that anybody meant
_WORDS: Mapping[str, Scalar] = {"": None, "~": None, "null": None, "true": True, "false": False}


def read_yaml(path: Path) -> tuple[Node | None, list[Problem]]:
    """Return what the file says, None when that is nothing, and what is wrong with its form.

    Raises SettingsError when it cannot be read, is too large or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read ({error.strerror}).") from error
    if len(data) > FILE_BYTES_MAX:
        raise SettingsError(
            f"{path} has more than {FILE_BYTES_MAX // 1024} KiB; it is no such file."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SettingsError(f"{path} is not UTF-8: line {line} is not text.") from error
    return parse_yaml(text)


def parse_yaml(text: str) -> tuple[Node | None, list[Problem]]:
    """Return what `text` says, None when that is nothing, and what is wrong with its form."""
    try:
        problems = _foreign(text)
        root = None if problems else yaml.compose(text)
    except yaml.YAMLError as error:
        return None, [_broken(error, text)]
    node = None if root is None else _node(root, root.start_mark.line + 1, problems)
    return node, problems


def _foreign(text: str) -> list[Problem]:
    """Return where a file uses what is not read here; nothing after too deep a nesting is looked at."""
    problems: list[Problem] = []
    depth = 0
    for event in yaml.parse(text):
        line = event.start_mark.line + 1 if event.start_mark else 1
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            words = f"it is nested more than {DEPTH_MAX} deep."
            return [*problems, Problem(line=line, words=words)]
        named = event.anchor if isinstance(event, yaml.NodeEvent) else None
        if named is not None or getattr(event, "tag", None) is not None:
            words = "an anchor (&), alias (*) or tag (!) is not read here; write the value out."
            problems.append(Problem(line=line, words=words))
    return problems


def _node(found: yaml.Node, line: int, problems: list[Problem]) -> Node:
    if isinstance(found, yaml.MappingNode):
        return Node(line=line, value=_mapping(found, problems))
    if isinstance(found, yaml.SequenceNode):
        items = [_node(item, item.start_mark.line + 1, problems) for item in found.value]
        return Node(line=line, value=items)
    return Node(line=line, value=_scalar(found))


def _mapping(found: yaml.MappingNode, problems: list[Problem]) -> dict[str, Node]:
    entries: dict[str, Node] = {}
    for key, value in found.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            problems.append(Problem(line=line, words="a key is a word, no mapping or list."))
            continue
        if key.value in entries:
            first = entries[key.value].line
            words = f"{key.value} was given before, in line {first}; give it once."
            problems.append(Problem(line=line, words=words))
            continue
        entries[key.value] = _node(value, line, problems)
    return entries


def _scalar(found: yaml.Node) -> Scalar:
    text = str(found.value)
    if not isinstance(found, yaml.ScalarNode) or found.style is not None:
        return text  # quoted: text, whatever it looks like
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= _DIGITS_MAX and _INT.fullmatch(text):
        return int(text)
    return float(text) if len(text) <= _DIGITS_MAX and _FLOAT.fullmatch(text) else text


def _broken(error: yaml.YAMLError, text: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        words = " ".join(filter(None, (error.context, error.problem)))
        return Problem(line=mark.line + 1 if mark else 1, words=f"it is no YAML: {words}.")
    position = getattr(error, "position", 0)
    words = f"it is no YAML: {getattr(error, 'reason', error)}."
    return Problem(line=text[:position].count("\n") + 1, words=words)
