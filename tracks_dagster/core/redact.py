"""Keeps credentials out of evidence, logs and messages.

Text is cleaned where it is gathered, before it is stored: what once stands in a track stays there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

HIDDEN = "[hidden]"
SECRET_LENGTH_MIN = 6  # shorter values would blank out ordinary words

Redact = Callable[[str], str]

_SECRET_VARIABLES = ("AWS_ACCESS_KEY_ID",)
# PGPASSWORD has no underscore; AWS_SECRET_ACCESS_KEY and a Django-like SECRET_KEY end in their own.
_SECRET_ENDINGS = ("PASSWORD", "PASSWD", "SECRET", "TOKEN", "API_KEY", "ACCESS_KEY", "SECRET_KEY")
_URL_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^\s:/@]*:)(?P<password>[^\s/@]+)(?=@)")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without passwords in URLs and without any of `secrets`.

    Longer secrets go first, so that one which contains another leaves nothing behind.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _URL_PASSWORD.sub(rf"\g<before>{HIDDEN}", text)


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of `environment` that nobody should read: keys, tokens, passwords in URLs."""
    named = [
        value
        for name, value in environment.items()
        if name in _SECRET_VARIABLES or name.upper().endswith(_SECRET_ENDINGS)
    ]
    in_urls = [
        match["password"]
        for value in environment.values()
        for match in _URL_PASSWORD.finditer(value)
    ]
    return tuple(sorted({value for value in named + in_urls if len(value) >= SECRET_LENGTH_MIN}))
