"""Reads a user's rules of the classifier from a YAML file, with the line of every field.

Nothing of a rule is judged here; `reasons.user_rules` does.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import yaml

from tracks_dagster.reasons.user_rules import Row, UserRules, bad_rules, check_rules
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json

FILE_BYTES_MAX = 1024 * 1024
_EXAMPLE = '- {name: lustre-evicted, reason: storage_io, pattern: "LustreError.{0,80}evicted"}'


def read_rules(path: Path) -> UserRules:
    """Return the rules of `path`: a YAML list of mappings, or one below the key `rules`.

    Raises InvalidInput for a file that cannot be read, and with all errors and their lines for one
    that does not hold rules.
    """
    text = _read(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise bad_rules(str(path), [(line, f"no YAML: {what}")]) from error
    except RecursionError as error:
        raise bad_rules(str(path), [(1, "nested too deeply")]) from error
    rows, errors = _rows(node)
    return check_rules(rows, str(path), errors)


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"The rules file {path} cannot be read: {error.strerror}.") from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidInput(
            f"The rules file {path} has {len(data)} bytes; at most {FILE_BYTES_MAX}."
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise bad_rules(str(path), [(line, "not UTF-8")]) from error


def _rows(node: Any) -> tuple[list[Row], list[tuple[int, str]]]:
    """Return the rows of the file, and (line, what is wrong) for what is none."""
    if node is None:
        return [], []
    if isinstance(node, yaml.MappingNode):
        inner = {key.value: value for key, value in node.value if isinstance(key.value, str)}
        if set(inner) != {"rules"}:
            return [], [(_line(node), f"expected a list of rules, such as {_EXAMPLE}")]
        node = inner["rules"]
    if not isinstance(node, yaml.SequenceNode):
        return [], [(_line(node), f"expected a list of rules, such as {_EXAMPLE}")]
    rows, errors = [], []
    for each in node.value:
        if isinstance(each, yaml.MappingNode):
            rows.append(_row(each))
        else:
            errors.append((_line(each), f"expected a rule, such as {_EXAMPLE}"))
    return rows, errors


def _row(node: yaml.MappingNode) -> Row:
    """Return one mapping with the line of each field; a value that is no scalar stays as its kind."""
    fields: dict[str, Json] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        name = str(key.value)
        fields[name] = _scalar(value) if isinstance(value, yaml.ScalarNode) else [value.id]
        lines[name] = _line(key)
    return Row(line=_line(node), fields=fields, lines=lines)


def _scalar(node: yaml.ScalarNode) -> Json:
    """Return a number as one, true and false as such, anything else as the text that stands there."""
    kind = node.tag.rpartition(":")[2]
    text: str = node.value
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    if kind in ("int", "float"):
        with contextlib.suppress(ValueError):
            return float(text)
    return text


def _line(node: Any) -> int:
    line: int = node.start_mark.line
    return line + 1
