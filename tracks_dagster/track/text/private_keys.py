"""Private keys in texts and files, by the forms in which programs write them."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator

_NEW_LINE = r"(?:\s|\\[rn])"  # in JSON it is escaped
_HEAD = rf"{_NEW_LINE}{{0,4}}(?:[A-Z][A-Za-z-]{{1,30}}: [^\n\\]{{0,200}}{_NEW_LINE}{{1,4}}){{0,4}}"
_LINE = rf"[A-Za-z0-9+/=]{{4,100}}{_NEW_LINE}{{1,4}}"
_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_END = r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"

# What is hidden in a text, whole or cut at either end.
PRIVATE_KEY = re.compile(
    rf"{_BEGIN}(?:(?!-----)[\s\S]){{0,20000}}{_END}"
    rf"|{_BEGIN}{_HEAD}(?:[A-Za-z0-9+/=]{{8,}}{_NEW_LINE}{{0,4}}){{0,200}}"  # no end
    rf"|(?<![A-Za-z0-9+/=])(?:{_LINE}){{1,100}}{_END}"  # no beginning
)
AGE_KEY = re.compile(r"AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{20,}", re.IGNORECASE)

# A program that reads keys names these lines too, so a file has to have a key behind them.
_WRITTEN = re.compile(
    rf"{_BEGIN}{_HEAD}[^A-Za-z0-9+/=]{{0,40}}[A-Za-z0-9+/]{{24}}"
    r"|PuTTY-User-Key-File-\d[\s\S]{1,20000}?Private-Lines: ?\d"
    r"|SSH PRIVATE KEY FILE FORMAT 1\.1"
    r'|"kty"\s{0,4}:(?=[^{}]{0,4000}"(?:d|k)"\s{0,4}:\s{0,4}"[A-Za-z0-9_-]{20})'
    r'|"(?:d|k)"\s{0,4}:\s{0,4}"[A-Za-z0-9_-]{20}(?=[^{}]{0,4000}"kty"\s{0,4}:)'
    rf"|{AGE_KEY.pattern}"
)
_IN_BASE64 = re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/]{16,60}")  # "-----BEGIN" there


def holds_private_key(data: bytes) -> bool:
    """Whether a file has a private key in it: PEM, OpenSSH, PGP, PuTTY, age, JWK; as text in any usual
    encoding, in JSON or in base64."""
    return any(_WRITTEN.search(text) or _has_base64(text) for text in _texts(data))


def _texts(data: bytes) -> Iterator[str]:
    yield data.decode("latin-1")
    if b"\0" in data[:4]:  # UTF-16, with or without its mark
        yield data.replace(b"\0", b"").decode("latin-1")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        yield data[2:].replace(b"\0", b"").decode("latin-1")


def _has_base64(text: str) -> bool:
    for match in _IN_BASE64.finditer(text):
        written = match[0][: len(match[0]) // 4 * 4]
        if b"PRIVATE KEY" in b64decode(written):
            return True
    return False
