"""Text from outside, safe in every store, on a terminal, in a page and in markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tracks_dagster.track.errors import InvalidInput, check_all

WORDS_CHARACTERS_MAX = 500  # of a text in a record, which is at most 16 KiB

# A command's argument that is not UTF-8 has lone surrogates, so may an exception's text or a file's
# name. No UTF-8 file and no database takes them, and Postgres takes no NUL.
REPLACEMENT = "\ufffd"

_INVALID = re.compile("[\ud800-\udfff\0]")
_FORMULAS = ("=", "+", "-", "@", "\t", "\n")  # how one begins in a spreadsheet
_SIGNS = "\\|`*_[]~"  # what markdown would take for something else, the backslash first


def valid_text(text: str) -> str:
    """Return `text` with every lone surrogate and NUL replaced."""
    # Most texts are printable, and known to be in half the time.
    return text if text.isprintable() else _INVALID.sub(REPLACEMENT, text)


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV. A text that a spreadsheet would take for a formula has a `'` before it
    (OWASP, CSV injection); one that is a number stays."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_not_formula(each) for each in row] for row in rows)
    return text.getvalue()


def _not_formula(value: object) -> object:
    if not isinstance(value, str):
        return value
    value = value.replace("\r", "\n")  # by itself it would end a row, for it gets no quotes
    if not value.startswith(_FORMULAS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def valid_json(value: Any) -> Any:
    """Return a JSON value in which the same is done to every text, keys included."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, Mapping):
        return {valid_json(key): valid_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [valid_json(item) for item in value]
    return value


def check_words(words: Mapping[str, str]) -> None:
    """Raise InvalidInput unless each of `words` (name → text) says something and fits a record."""
    check_all(*(partial(_check_word, name, value) for name, value in words.items()))


def _check_word(name: str, value: str) -> None:
    if not value.strip():
        raise InvalidInput(f"{name} is empty: say it in a sentence, it goes into the record.")
    if len(value) > WORDS_CHARACTERS_MAX:
        raise InvalidInput(
            f"{name} has {len(value)} characters; at most {WORDS_CHARACTERS_MAX} fit a record."
        )


LINE_END = " ⏎ "

# Control characters move the cursor, set titles, forge lines; marks of direction show text in another
# order than it has. They are shown as escapes: `\x1b`, `\u202e`.
# C0 but line feed and tab, DEL, C1; marks of direction; separators of lines; halves of surrogates.
_CONTROL = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return `text` with every control character shown as an escape; lines and tabs stay."""
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    """Return text without line ends, so that none of it looks like a line of ours."""
    return LINE_END.join(text.splitlines())


def visible_json(text: str) -> str:
    """Return JSON of the same value that holds none of these characters."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table; a cell is one line of plain text."""
    lines = [_row(columns), "|" + " --- |" * len(columns), *(_row(row) for row in rows)]
    return "\n".join(lines)


def bullets(lines: Iterable[str]) -> str:
    """Return a markdown list, a line each; unlike a block of code it wraps where the page ends."""
    return "\n".join(f"- {plain(line)}" for line in lines)


def plain(text: str) -> str:
    """Return text that markdown shows as it is: no cell ends early, nothing becomes a tag."""
    for sign in _SIGNS:
        text = text.replace(sign, f"\\{sign}")
    return visible(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(plain(cell) for cell in cells) + " |"
