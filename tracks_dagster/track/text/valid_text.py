"""Text that every store, ledger and terminal can hold.

A command's argument that is no UTF-8 arrives with lone surrogates in it, an exception's text or a
file's name may hold them too. No UTF-8 file and no database takes them, and Postgres takes no NUL.
Each becomes U+FFFD, the replacement character.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tracks_dagster.track.errors import InvalidInput

WORDS_CHARACTERS_MAX = 500  # of a text in a record, which is at most 16 KiB

REPLACEMENT = "\ufffd"

_INVALID = re.compile("[\ud800-\udfff\0]")


def valid_text(text: str) -> str:
    """Return `text` with every lone surrogate and NUL replaced."""
    return _INVALID.sub(REPLACEMENT, text)


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
    for name, value in words.items():
        if not value.strip():
            raise InvalidInput(f"{name} is empty: say it in a sentence, it stands in the record.")
        if len(value) > WORDS_CHARACTERS_MAX:
            raise InvalidInput(
                f"{name} has {len(value)} characters; at most {WORDS_CHARACTERS_MAX} fit a record."
            )
