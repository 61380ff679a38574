"""Reads what `tracks classify` is given: cases (JSON, an object a line, or one document), a plain log,
a folder with a log for each rank, or standard input.

One bad line does not hide the others: what cannot be read is yielded in its place, with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json

LINE_BYTES_MAX = 128 * 1024 * 1024  # a log is in there whole; more than this is not a log tail
DOCUMENT_BYTES_MAX = LINE_BYTES_MAX
LOG_BYTES_MAX = LINE_BYTES_MAX  # of a plain log, its end
FOLDER_FILES_MAX = 8192
HEAD_BYTES = 256 * 1024  # in which a file is looked at for cases
HEAD_LINES = 20
CHUNK_BYTES = 8 * 1024 * 1024
STANDARD_INPUT = "-"
CASE_SUFFIXES = (".json", ".jsonl")  # such a file has cases, whatever is in it
CASE_KEYS = ("evidence", "pod_history")

_RANK_NAME = re.compile(
    r"(?:rank|worker|task|proc|process|replica|default|gpu)[-_.=]?(\d{1,5})\b", re.I
)
_ONLY_NUMBER = re.compile(r"(\d{1,5})(?:\.(?:log|out|err|txt))?$")
_LAST_NUMBER = re.compile(r"(\d{1,5})\D*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCase:
    """One case, or the problem with it. line: 1-based, where it begins."""

    line: int
    case: Mapping[str, Json] | None = None
    problem: str | None = None


def read_given(path: Path, standard_input: BinaryIO) -> Iterator[ReadCase]:
    """Yield every case of a file, of a folder or of standard input (`-`).

    Raises InvalidInput when it cannot be read, or has no log.
    """
    try:
        if path.is_dir():
            yield _case(1, {"id": path.name or str(path.resolve()), "evidence": _folder(path)})
        elif str(path) == STANDARD_INPUT:
            yield from _read_stream(standard_input)
        elif path.suffix in CASE_SUFFIXES or _has_cases(_head(path)):
            yield from read_cases(path)
        else:
            yield _case(1, {"id": path.name, "evidence": {"log_tail": _log(path)}})
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error


def _read_stream(stream: BinaryIO) -> Iterator[ReadCase]:
    """Yield the cases of a stream, or one whose log it is; of a longer one its end is read."""
    data = stream.read(HEAD_BYTES)
    if not _has_cases(data):
        while more := stream.read(CHUNK_BYTES):
            data = (data + more)[-LOG_BYTES_MAX:]
        if data.strip():
            log = data.decode("utf-8", "replace")
            yield _case(1, {"id": STANDARD_INPUT, "evidence": {"log_tail": log}})
        return
    for number, line in enumerate((data + stream.read(DOCUMENT_BYTES_MAX)).split(b"\n"), 1):
        if line.strip():
            yield _parsed(number, line)


def _has_cases(head: bytes) -> bool:
    """Whether one of the first lines is a case, or the first is a whole document of some."""
    lines = head.split(b"\n")[:HEAD_LINES]
    if head.lstrip()[:1] not in (b"{", b"["):
        return False
    if any(_is_case(_parsed(1, line).case) for line in lines):
        return True
    return any(key.encode() in head for key in (f'"{each}"' for each in CASE_KEYS))


def _is_case(value: Mapping[str, Json] | None) -> bool:
    return value is not None and any(key in value for key in CASE_KEYS)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _log(path: Path) -> str:
    """Return the end of a log; what is not UTF-8 in it is replaced."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
        return file.read(LOG_BYTES_MAX).decode("utf-8", "replace")


def _folder(path: Path) -> Mapping[str, Json]:
    """Return the ranks of a folder's logs, those of one rank joined in the order of their names."""
    files = [each for each in sorted(path.rglob("*")) if each.is_file() and _is_shown(each, path)]
    files = [each for each in files if each.stat().st_size]
    if not files:
        raise InvalidInput(f"The folder {path} has no log in it: it needs a file for each rank.")
    if len(files) > FOLDER_FILES_MAX:
        raise InvalidInput(
            f"The folder {path} has {len(files)} files, more than {FOLDER_FILES_MAX}: name one gang's."
        )
    texts: dict[int, list[str]] = {}
    for place, file in enumerate(files):
        number = _rank_in(file.relative_to(path))
        texts.setdefault(place if number is None else number, []).append(_log(file))
    ranks: list[Json] = [{"rank": n, "log_tail": "\n".join(texts[n])} for n in sorted(texts)]
    return {"ranks": ranks}


def _is_shown(file: Path, folder: Path) -> bool:
    return not any(part.startswith(".") for part in file.relative_to(folder).parts)


def _rank_in(path: Path) -> int | None:
    """Return the rank that a path names: "rank-3.log" and "attempt_0/3/stderr.log" → 3."""
    for part in reversed(path.parts):
        named = _RANK_NAME.search(part) or _ONLY_NUMBER.match(part)
        if named is not None:
            return int(named[1])
    number = _LAST_NUMBER.search(path.stem)
    return None if number is None else int(number[1])


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
        value = parse_json(
            (head + rest).decode("utf-8-sig"), bytes_max=DOCUMENT_BYTES_MAX, foreign=True
        )
    except ValueError:
        return None
    return value if isinstance(value, list) else [value]


def _parsed(number: int, data: bytes) -> ReadCase:
    try:
        text = data.decode("utf-8-sig")
        return _case(number, parse_json(text, bytes_max=LINE_BYTES_MAX, foreign=True))
    except UnicodeDecodeError as error:
        return ReadCase(line=number, problem=f"not UTF-8 at byte {error.start + 1}")
    except ValueError as error:
        return ReadCase(line=number, problem=f"not JSON: {error}")


def _case(number: int, value: Json) -> ReadCase:
    if isinstance(value, Mapping):
        return ReadCase(line=number, case=value)
    return ReadCase(line=number, problem=f"not a case: an object was expected, not {value!r:.60}")
