"""Keeps credentials out of every text that leaves a process: records, evidence, last words, logs.

Text is cleaned where it is gathered, before it is stored: what is once in a track stays there.
Hidden are the values of secret variables, what text names a password or a token, and
tokens that are known by their shape. Not everything can be known: 40 characters without a name look
like a commit. What is short or common is left, or ordinary words would be hidden.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from tracks_dagster.track.text.private_keys import AGE_KEY, PRIVATE_KEY
from tracks_dagster.track.text.safe_text import valid_text

HIDDEN = "[hidden]"
SECRET_LENGTH_MIN = 6  # shorter values would blank out ordinary words
LONG_ENOUGH = 10  # for a value of letters alone, or of digits alone
WHOLE_WORD_LENGTH_MAX = 11  # up to here a value is hidden only as a whole word
SECRET_LINE_LENGTH_MIN = 16  # of a secret of several lines: a log may show each by itself

Redact = Callable[[str], str]

# PGPASSWORD has no underscore, OLDPWD is a folder.
_SECRET_NAME = re.compile(
    r"(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|(?:API|ACCESS|SECRET|PRIVATE|ACCOUNT)_?KEY"
    r"|_PAT|_PWD|_PASS)(?:_?\d+)?\Z",
    re.IGNORECASE,
)
# These may as well be a column (SORT_KEY) or a file, so the value has to look like a secret too.
_PERHAPS_SECRET_NAME = re.compile(
    r"(?:KEY|KEY_ID|_DSN|WEBHOOK|WEBHOOK_URL|_CREDENTIALS?|_CONNECTION_STRING)(?:_?\d+)?\Z",
    re.IGNORECASE,
)
_OUR_VARIABLES = "TRACKS_"  # their keys name objects of the store
_COMMON = frozenset(
    {"changeme", "changeit", "password", "passw0rd", "postgres", "postgresql", "localhost"}
    | {"production", "development", "undefined", "kubernetes", "tracks_dagster", "tracks-dagster"}
    | {"us-east-1", "us-west-2", "eu-west-1", "eu-central-1"}
)
# user_id, models/gpt.pt, us-east-1, /etc/ssl/key.pem: words and numbers, one after the other
_ORDINARY = re.compile(
    r"[./~_-]*[A-Za-z][a-z]*(?:[\s._/-]+(?:[A-Za-z][a-z]*|\d{1,4}))*[._/-]*|[\d.,:x-]*|[A-Z_]+"
)


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of `environment` that nobody should read, in every form that text shows them.

    Values of secret variables, and passwords in the URLs and connection strings of any variable.
    """
    found: set[str] = set()
    for name, value in environment.items():
        if _is_hidden(name, value):
            found |= {value, *_long_lines(value)}
        found |= {password for password in _passwords_in(value) if not _is_common(password)}
    forms = {form for secret in found for form in _forms(secret)}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def is_secret_name(name: str) -> bool:
    """Whether a variable of that name holds a secret, whatever its value is."""
    return _SECRET_NAME.search(name) is not None


def _is_hidden(name: str, value: str) -> bool:
    if is_secret_name(name):
        return not _is_common(value)
    if name.startswith(_OUR_VARIABLES) or not _PERHAPS_SECRET_NAME.search(name):
        return False
    return not _is_common(value) and looks_made_up(value)


def _is_common(value: str) -> bool:
    """Whether hiding the value everywhere would hide ordinary words."""
    if len(value) < SECRET_LENGTH_MIN or value.lower() in _COMMON:
        return True
    return len(value) < LONG_ENOUGH and (value.isalpha() or value.isdigit())


def looks_made_up(value: str) -> bool:
    """Whether a value looks random: letters and digits among each other, no words and no path."""
    if len(value) < SECRET_LENGTH_MIN + 2 or _ORDINARY.fullmatch(value):
        return False
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


def _passwords_in(value: str) -> Iterable[str]:
    for pattern in (_URL_PASSWORD, _DSN_PASSWORD):
        for match in pattern.finditer(value):
            yield match["secret"]
            yield unquote(match["secret"])


def _long_lines(value: str) -> Iterable[str]:
    lines = [line.strip() for line in value.splitlines()]
    return (line for line in lines if len(line) >= SECRET_LINE_LENGTH_MIN)


def _forms(secret: str) -> Iterable[str]:
    """Yield the secret as it is, as a URL has it, and with the backslashes of repr and JSON."""
    secret = valid_text(secret)
    for form in (secret, repr(secret)[1:-1], quote(secret, safe="")):
        yield form
        yield json.dumps(form)[1:-1]
        yield json.dumps(form, ensure_ascii=False)[1:-1]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A secret known by its form, or by the name before it.

    words: in lower case, one of them is in every text that has it. pattern: its group "secret" is
    hidden, else all of it. is_secret: asked about what was found. begins: with one of `words`, so that
    only those places are looked at: a pattern of any case is slow to search for (360 ms in 1 MiB).
    """

    words: tuple[str, ...]
    pattern: re.Pattern[str]
    is_secret: Callable[[re.Match[str]], bool] = lambda match: True
    begins: bool = False


_URL_PASSWORD = re.compile(
    r"\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s:/@\"'<>]{0,200}:"
    r"(?!\d{1,5}(?:[/?#,\s]|$))"  # a port
    r"(?P<secret>[^\s\"'<>]{1,400})(?=@)"
)
_DSN_PASSWORD = re.compile(
    r"(?:^|[\s;?&])(?:password|pwd)\s?=\s?(?P<secret>[^\s;&\"']{1,400})", re.IGNORECASE
)

_PLACEHOLDER = re.compile(
    r"none|null|nil|true|false|undefined|required|missing|empty|redacted|[*x.…-]+|[<${%*…\[].*",
    re.IGNORECASE | re.DOTALL,
)
_KEY_OF = re.compile(
    r"(?:api|access|secret|private|account|encryption|signing|master)[_-]?\Z|[?&]\Z", re.IGNORECASE
)
_CODE = re.compile(  # os.environ["PGPASSWORD"], getpass(), self.password, str
    r"str|string|bytes|[a-z_][\w.]*[\[(].*"
    r"|(?:[a-z_]\w*[._])*(?:password|passwd|passphrase|pwd|secret|token|key)",
    re.IGNORECASE | re.DOTALL,
)


def _is_given(match: re.Match[str]) -> bool:
    """Whether a password is given: any one in quotes or after "=", in a sentence what looks made up."""
    value = match["secret"]
    if _PLACEHOLDER.fullmatch(value) or (not match["quote"] and _CODE.fullmatch(value)):
        return False
    in_sentence = match["mark"].endswith((": ", ":  ")) and not match["quote"]
    return not in_sentence or looks_made_up(value)


def _is_odbc(match: re.Match[str]) -> bool:
    """Whether "pwd" is a password's name there, and no folder as in PWD and OLDPWD."""
    return match.string[: match.start()][-1:] in {";", "?", "&", "_"} and _is_given(match)


def _is_made_up(match: re.Match[str]) -> bool:
    return looks_made_up(match["secret"]) and not _PLACEHOLDER.fullmatch(match["secret"])


def _is_made_up_key(match: re.Match[str]) -> bool:
    before = match.string[max(0, match.start() - 12) : match.start()]
    return _KEY_OF.search(before) is not None and _is_made_up(match)


# After a name: "=", ":" or "=>" and a value, perhaps in quotes; JSON in JSON escapes its quotes.
_VALUE = (
    r"\\{0,3}[\"']?(?P<mark>\s{0,2}(?:=>|[=:])\s{0,2})(?P<quote>\\{0,3}[\"'])?"
    r"(?P<secret>(?(quote)(?:(?!(?P=quote))(?:\\.|[^\\\n])){1,400}"
    r"|(?:[^\s\"'<>,;&)\]}\\]|,(?=[^\s\"'])|\\(?![nrt\"'\\])){1,400}))"
)


def _named(*words: str, is_secret: Callable[[re.Match[str]], bool]) -> _Shape:
    pattern = re.compile(rf"(?:{'|'.join(words)}){_VALUE}", re.IGNORECASE)
    return _Shape(words, pattern, is_secret, begins=True)


def _token(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})")


_SHAPES = (
    _Shape(("private key",), PRIVATE_KEY),
    _Shape(("age-secret-key-",), AGE_KEY),
    _Shape(("://",), _URL_PASSWORD),
    _Shape(  # a token, or the key of a DSN, in the place of a user
        ("://",), re.compile(r"://(?P<secret>[A-Za-z0-9_-]{16,200})(?=@)"), _is_made_up
    ),
    _Shape(
        ("hooks.slack.com/", "/webhooks/", "webhook.office.com/"),
        re.compile(
            r"https://(?:hooks\.slack\.com/[a-z]+/|(?:[a-z]+\.)?discord(?:app)?\.com/api/webhooks/"
            r"|[a-z0-9-]+\.webhook\.office\.com/)(?P<secret>[^\s\"'<>\\]+)"
        ),
    ),
    _named("password", "passwd", "passphrase", is_secret=_is_given),
    _named("pwd", is_secret=_is_odbc),
    _named("secret", "token", "signature", "sig", "credential", is_secret=_is_made_up),
    _named("key", is_secret=_is_made_up_key),
    _Shape(
        ("bearer ", "basic "),
        re.compile(
            r"\b(?:bearer|basic)\s{1,2}(?P<secret>[A-Za-z0-9._~+/=-]{16,400})", re.IGNORECASE
        ),
        _is_made_up,
    ),
    _Shape(
        ("akia", "asia", "abia", "acca"),
        _token(r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ),
    _Shape(
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        _token(r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}"),
    ),
    _Shape(("hf_",), _token(r"hf_(?=[a-z]{0,60}[A-Z0-9])[A-Za-z0-9]{16,400}")),
    # The id of a run has no capitals, so that none is taken for one of these.
    _Shape(("sk-",), _token(r"sk-(?=[\w-]{0,60}[A-Z])(?=[\w-]{0,60}\d)[\w-]{16,400}")),
    _Shape(("sk_", "rk_"), _token(r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}")),
    _Shape(("xox", "xapp-"), _token(r"(?:xox[abeoprs]|xapp)-\d[A-Za-z0-9-]{9,}")),
    _Shape(("glpat-",), _token(r"glpat-[\w-]{16,}")),
    _Shape(("aiza",), _token(r"AIza[\w-]{30,}")),
    _Shape(("ya29.",), _token(r"ya29\.[\w-]{20,}")),
    _Shape(("npm_",), _token(r"npm_[A-Za-z0-9]{30,}")),
    _Shape(("pypi-",), _token(r"pypi-(?=[\w-]{0,60}[A-Z])[\w-]{40,400}")),
    _Shape(("sg.",), _token(r"SG\.[\w-]{16,}\.[\w-]{16,}")),
    _Shape(("dapi",), _token(r"dapi[0-9a-f]{32}")),
    _Shape(("eyj",), _token(r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?")),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text`, made valid, without `secrets` (as of `secrets_of`) and what looks like one.

    Longer secrets go first, so that one which contains another leaves nothing behind. What was
    redacted once is not changed again.
    """
    text = valid_text(text)
    for secret in sorted(secrets, key=len, reverse=True):
        if secret in text:
            text = _without(text, secret)
    lower = text.lower()
    for shape in _SHAPES:
        if any(word in lower for word in shape.words):
            text = _hidden(shape, text)
    return text


def _hidden(shape: _Shape, text: str) -> str:
    """Return `text` without what the shape knows for a secret."""
    lower = text.lower() if shape.begins else ""
    if len(lower) != len(text):  # lower case may be longer, and places differ
        return shape.pattern.sub(partial(_hide, shape), text)
    starts = sorted({at for word in shape.words for at in _places(word, lower)})
    parts, end = [], 0
    for start in starts:
        match = shape.pattern.match(text, start) if start >= end else None
        if match is not None:
            parts += [text[end:start], _hide(shape, match)]
            end = match.end()
    return "".join([*parts, text[end:]])


def _places(word: str, text: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


def redact_json(value: Any, clean: Redact) -> Any:
    """Return a JSON value with every text in it cleaned, as far as it is named: `token`, `password`."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {key: _field(str(key), item, clean) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_json(item, clean) for item in value]
    return value


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


def _field(name: str, value: Any, clean: Redact) -> Any:
    cleaned = redact_json(value, clean)
    if isinstance(value, str) and cleaned == value:
        named = f'{name}="{value}"'
        return value if clean(named) == named else HIDDEN
    return cleaned


def _without(text: str, secret: str) -> str:
    if len(secret) > WHOLE_WORD_LENGTH_MAX:
        return text.replace(secret, HIDDEN)
    word = rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"
    return re.sub(word, lambda _: HIDDEN, text)


def _hide(shape: _Shape, match: re.Match[str]) -> str:
    if not shape.is_secret(match):
        return match[0]
    if "secret" not in match.re.groupindex:
        return HIDDEN
    first, end = match.start("secret") - match.start(), match.end("secret") - match.start()
    return f"{match[0][:first]}{HIDDEN}{match[0][end:]}"
