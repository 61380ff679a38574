"""Keeps credentials out of every text that leaves a process: records, evidence, last words, logs.

Text is cleaned where it is gathered, before it is stored: what is once in a track stays there.
Hidden are the values of secret variables, in every encoding in which text shows them; what text names
a password or a token; and what is known by its shape. Not everything can be known: 40 characters
without a name look like a commit. What is short or common is left, or ordinary words would be hidden.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from tracks_dagster.track.text.safe_text import valid_text
from tracks_dagster.track.text.secret_names import (
    LENGTH_MIN,
    Names,
    is_ordinary_path,
    looks_made_up,
    what_names,
)
from tracks_dagster.track.text.secret_shapes import (
    DENSE_IN_CONFIG_MIN,
    DENSE_LENGTH_MIN,
    SHAPES,
    Shape,
    is_placeholder,
    is_telling,
)

HIDDEN = "[hidden]"
LONG_ENOUGH = 10  # for a value of letters alone, or of digits alone
WHOLE_WORD_LENGTH_MAX = 11  # up to here a value is hidden only as a whole word
SECRET_LINE_LENGTH_MIN = 16  # of a secret of several lines: a log may show each by itself
NUMBER_LENGTH_MIN = 4  # of a password of digits, in a config
ENVIRONMENTS_MAX = 8  # whose secrets are remembered, in a process that has seen them anyway

Redact = Callable[[str], str]

# What a terminal shows nothing of, and what may part a name from its value: colours, titles, links;
# characters without width.
_UNSEEN = re.compile(
    r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)"
    "|[\u00ad\u200b-\u200d\u2060\ufeff]"
)
_OUR_VARIABLES = "TRACKS_"  # their keys name objects of the store
_COMMON = frozenset(
    {"changeme", "changeit", "password", "passw0rd", "postgres", "postgresql", "localhost"}
    | {"production", "development", "undefined", "kubernetes", "tracks_dagster", "tracks-dagster"}
    | {"us-east-1", "us-west-2", "eu-west-1", "eu-central-1", "disabled", "enabled", "required"}
)


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of `environment` that nobody should read, in every form that text shows them.

    Values of secret variables, and what looks like a secret in any variable: the password of a URL, a
    key in JSON. An environment is judged once: a process asks for its own's with each text.
    """
    return _secrets_in_pairs(tuple(environment.items()))


@lru_cache(maxsize=ENVIRONMENTS_MAX)
def _secrets_in_pairs(environment: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    found: set[str] = set()
    for name, value in environment:
        inside = {value} if _is_hidden(name, value) else set()
        inside |= set(_secrets_in(value))
        found |= {each for secret in inside for each in (secret, *_long_lines(secret))}
    forms = {form for secret in found if not _is_common(secret) for form in _forms(secret)}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def is_secret_name(name: str) -> bool:
    """Whether a variable of that name holds a secret, whatever its value is."""
    return what_names(name) in (Names.PASSWORD, Names.SECRET)


def _is_hidden(name: str, value: str) -> bool:
    if is_secret_name(name):
        return not is_ordinary_path(value)
    if name.startswith(_OUR_VARIABLES) or what_names(name) is not Names.PERHAPS:
        return False
    return looks_made_up(value) and not value.startswith("/")


def _is_common(value: str) -> bool:
    """Whether hiding the value everywhere would hide ordinary words."""
    if len(value) < LENGTH_MIN or value.lower() in _COMMON:
        return True
    return len(value) < LONG_ENOUGH and (value.isalpha() or value.isdigit())


def _secrets_in(value: str) -> Iterator[str]:
    """Yield what a text holds of secrets, by their shapes."""
    lower = value.lower()
    for shape in SHAPES:
        if any(word in lower for word in shape.words):
            for match in shape.secrets_in(value):
                yield from (match[shape.group], unquote(match[shape.group]))


def _long_lines(value: str) -> Iterator[str]:
    lines = [line.strip() for line in value.replace("\\n", "\n").splitlines()]
    return (line for line in lines if len(line) >= SECRET_LINE_LENGTH_MIN and len(lines) > 1)


def _forms(secret: str) -> Iterator[str]:
    """Yield the secret as it is, and as programs write it: in a URL, JSON, HTML, a shell, base64."""
    secret = valid_text(secret)
    data = secret.encode()
    percent = (quote(secret, safe=""), quote(secret), quote_plus(secret))
    lower = (re.sub(r"%..", lambda match: match[0].lower(), form) for form in percent)
    page = html.escape(secret)
    pages = (page, page.replace("&#x27;", "&#39;").replace("&quot;", "&#34;"))
    written = (repr(secret)[1:-1], repr(data)[2:-1], *pages, shlex.quote(secret)[1:-1])
    for form in {secret, *percent, *lower, *written, secret.replace("/", "\\/"), quote(percent[0])}:
        yield form
        for is_ascii in (True, False):
            once = json.dumps(form, ensure_ascii=is_ascii)[1:-1]
            yield from (once, json.dumps(once, ensure_ascii=is_ascii)[1:-1])
    yield data.hex()
    yield data.hex().upper()
    yield from _in_base64(data)


def _in_base64(data: bytes) -> Iterator[str]:
    """Yield what base64 makes of the bytes, alone and wherever they lie in a longer text.

    Three bytes are four characters, so there are three ways; the characters at either end, which the
    neighbours have a share in, are left out.
    """
    for encode in (b64encode, urlsafe_b64encode):
        alone = encode(data).decode()
        yield from (alone, alone.rstrip("="))
        for before in range(3):
            whole = encode(b"\0" * before + data).decode().rstrip("=")
            core = whole[(0, 2, 3)[before] : (before + len(data)) * 8 // 6]
            if len(core) > WHOLE_WORD_LENGTH_MAX:
                yield core


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text`, made valid, without `secrets` (as of `secrets_of`) and what looks like one.

    Longer secrets go first, so that one which contains another leaves nothing behind. What was
    redacted once is not changed again. A text that has a secret loses its colours.
    """
    text = valid_text(text)
    plain = _UNSEEN.sub("", text)
    if plain != text and _redacted(plain, secrets) != plain:
        text = plain
    return _redacted(text, secrets)


def _redacted(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if secret in text:
            text = _without(text, secret)
    lower = text.lower()
    for shape in SHAPES:
        if any(word in lower for word in shape.words):
            text = _hidden(shape, text)
    return text


def _hidden(shape: Shape, text: str) -> str:
    """Return `text` without what the shape knows for a secret."""
    parts, end = [], 0
    for match in shape.secrets_in(text):
        parts += [text[end : match.start(shape.group)], HIDDEN]
        end = match.end(shape.group)
    return "".join([*parts, text[end:]])


def redact_json(value: Any, clean: Redact) -> Any:
    """Return a JSON value with every text in it cleaned, and what a name says is a secret: `token`."""
    return _cleaned("", value, clean)


def _cleaned(name: str, value: Any, clean: Redact) -> Any:
    if isinstance(value, Mapping):
        # What lies below a secret's name is one: {"credentials": {"of": "…"}}
        above = name if what_names(name) in (Names.PASSWORD, Names.SECRET) else ""
        return {key: _cleaned(f"{above} {key}".strip(), item, clean) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(name, item, clean) for item in value]
    if isinstance(value, str):
        cleaned = clean(value)
        return HIDDEN if cleaned == value and _is_named_secret(name, value) else cleaned
    is_number = type(value) is int and len(str(value)) >= NUMBER_LENGTH_MIN
    return HIDDEN if is_number and what_names(name) is Names.PASSWORD else value


def _is_named_secret(name: str, value: str) -> bool:
    """Whether a value of that name in a config is a secret."""
    says = what_names(name)
    if says is Names.NOTHING or is_placeholder(value) or is_ordinary_path(value):
        return False
    length_min = DENSE_LENGTH_MIN if name.lower() == "key" else DENSE_IN_CONFIG_MIN
    return says is not Names.PERHAPS or is_telling(value, length_min)


def redact_words(body: Any, names: Collection[str], clean: Redact) -> Any:
    """Return a record's body with the fields of these names cleaned, however deep they are.

    The others name things (a run, a node, an object) and would name nothing any more.
    """
    if isinstance(body, Mapping):
        return {
            key: redact_json(item, clean) if key in names else redact_words(item, names, clean)
            for key, item in body.items()
        }
    if isinstance(body, list):
        return [redact_words(item, names, clean) for item in body]
    return body


def _without(text: str, secret: str) -> str:
    if len(secret) > WHOLE_WORD_LENGTH_MAX:
        return text.replace(secret, HIDDEN)
    word = rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"
    return re.sub(word, lambda _: HIDDEN, text)
