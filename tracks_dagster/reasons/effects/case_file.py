"""Reads cases of failures from a file: one JSON object a line, or one JSON document.

One bad line does not hide the others: what cannot be read is yielded in its place, with its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json

LINE_BYTES_MAX = 128 * 1024 * 1024  # a log is in there whole; more than this is no log tail
DOCUMENT_BYTES_MAX = LINE_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCase:
    """One case, or the problem with it. line: 1-based, where it begins."""

    line: int
    case: Mapping[str, Json] | None = None
    problem: str | None = None


def read_cases(path: Path) -> Iterator[ReadCase]:
    """Yield every case of the file in order; raises InvalidInput when it cannot be opened."""
    try:
        if (document := _document(path)) is not None:
            yield from (_case(1, each) for each in document)
            return
        with path.open("rb") as lines:
            number = 0
            while data := lines.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(data) > LINE_BYTES_MAX:
                    yield ReadCase(line=number, problem=f"longer than {LINE_BYTES_MAX} bytes")
                    while not data.endswith(b"\n") and (data := lines.readline(LINE_BYTES_MAX)):
                        pass
                elif data.strip(b"\xef\xbb\xbf \t\r\n"):
                    yield _parsed(number, data)
    except OSError as error:
        raise InvalidInput(f"The file {path} cannot be read: {error.strerror}.") from error


def _document(path: Path) -> list[Json] | None:
    """Return the cases of a file that is one JSON document over several lines; None for any other."""
    with path.open("rb") as lines:
        head = lines.readline(LINE_BYTES_MAX)
        if (
            not head
            or _parsed(1, head).case is not None
            or path.stat().st_size > DOCUMENT_BYTES_MAX
        ):
            return None
        rest = lines.read()
    try:
        value = json.loads((head + rest).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else [value]


def _parsed(number: int, data: bytes) -> ReadCase:
    try:
        return _case(number, json.loads(data.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        return ReadCase(line=number, problem=f"not UTF-8 at byte {error.start + 1}")
    except ValueError as error:
        return ReadCase(line=number, problem=f"not JSON: {error}")
    except RecursionError:
        return ReadCase(line=number, problem="not readable: nested too deeply")


def _case(number: int, value: Json) -> ReadCase:
    if isinstance(value, Mapping):
        return ReadCase(line=number, case=value)
    return ReadCase(line=number, problem=f"not a case: an object was expected, not {value!r:.60}")
