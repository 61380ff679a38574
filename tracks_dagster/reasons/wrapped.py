"""Takes a failure out of what it is wrapped in: a line of JSON, another process's exception. Pure.

A structured log has a whole traceback in one field; a worker's exception is named inside the one that
its parent raises. The words of rules fit neither, so the lines inside are read as lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json

JSON_CHARACTERS_MAX = 200_000  # of a line that is parsed
TEXT_CHARACTERS_MAX = 4_000_000  # of a text whose lines are joined
DEPTH_MAX = 4  # of objects in objects
_TEXTS_MAX = 40  # of one object

# Fields that hold what a program says, in the order in which it is read.
_LEVELS = ("level", "levelname", "severity", "lvl", "log.level")
_SKIPPED = frozenset(
    {"ts", "time", "timestamp", "asctime", "@timestamp", "logger", "pid", "hostname"}
)
_TYPES = (
    "class",
    "type",
    "exc_type",
    "exception_type",
    "error_type",
    "error.type",
    "exception.type",
)
_MESSAGES = ("message", "msg", "value", "exc_value", "error.message", "exception.message", "text")
_IS_EXCEPTION = re.compile(r"[\w.]*[A-Z]\w*(Error|Exception|Exit|Interrupt)$")

# A pair of fields that a collector put on lines of their own, or a cut line of JSON.
_PAIR = re.compile(
    r'"(?:[\w.]*(?:class|type|name))"\s*:\s*"([\w.]*[A-Z]\w*(?:Error|Exception))"\s*,?\s*'
)
_VALUE = re.compile(r'"(?:message|msg|value|text)"\s*:\s*"((?:[^"\\]|\\.){0,2000})')
_ESCAPED_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):\\+n|\\+n[\w.]+(Error|Exception): "
)
# "RuntimeError: Caught KeyError in DataLoader worker process 0.", "RayTaskError(ValueError): …"
_CARRIED = re.compile(
    r"\bCaught ([A-Za-z_][\w.]*(?:Error|Exception)) in \w+ (?:worker|thread|process|replica)"
    r"|\bRayTaskError\(([A-Za-z_][\w.]*(?:Error|Exception))\)"
)


def unwrapped(line: str) -> list[str]:
    """Return the lines that a line holds, the outermost first; most hold only themselves."""
    if (found := _of_json(line)) is not None:
        return [piece for text in found for piece in text.split("\n")]
    if _ESCAPED_TRACEBACK.search(line):
        return re.split(r"\\+n", line.replace('\\"', '"'))
    carried = _CARRIED.search(line)
    if carried is None:
        return [line]
    return [line, carried[1] or carried[2]]


def joined(text: str) -> str:
    """Return text in which an exception's type and message, on two lines of JSON, are one line."""
    if '"' not in text or len(text) > TEXT_CHARACTERS_MAX:
        return text
    return _PAIR.sub(lambda match: _exception_line(text, match), text)


def _exception_line(text: str, match: re.Match[str]) -> str:
    value = _VALUE.match(text, match.end())
    message = f": {value[1]}" if value is not None else ""
    return f"\n{match[1]}{message}\n"


def _of_json(line: str) -> list[str] | None:
    """Return the texts of a line that is one object of JSON; None for any other line."""
    stripped = line.strip()
    if not (stripped.startswith("{") and stripped.endswith("}")):
        return None
    if len(stripped) > JSON_CHARACTERS_MAX:
        return None
    try:
        value = parse_json(stripped, foreign=True)
    except ValueError:
        return None
    return [text for _, text in zip(range(_TEXTS_MAX), _texts(value, DEPTH_MAX), strict=False)]


def _texts(value: Mapping[str, Json], depth: int) -> Iterator[str]:
    """Yield the texts of an object: its level with what it says, then what is inside it."""
    level = next((str(value[key]) for key in _LEVELS if key in value), "")
    kind = next((str(value[key]) for key in _TYPES if key in value), "")
    message = next((str(value[key]) for key in _MESSAGES if key in value), "")
    if _IS_EXCEPTION.match(kind):
        yield f"{kind}: {message}"
        message = ""
    if message:
        yield f"{level}: {message}" if level else message
    numbers = []
    for key, each in value.items():
        if isinstance(each, Mapping) and depth > 1:
            yield from _texts(each, depth - 1)
        elif isinstance(each, str) and key not in (*_LEVELS, *_TYPES, *_MESSAGES, *_SKIPPED):
            yield each if "\n" in each else f"{level}: {key}: {each}" if level else f"{key}: {each}"
        elif isinstance(each, int | float) and key not in _SKIPPED:
            numbers.append(f"{key}: {each}")
    if numbers:
        yield ", ".join(numbers)
