"""Who is alerted of what, read from a person's notify.yaml: a list of entries.

    - {name: oncall, to: "https://hooks.example.com/…", severity: red}
    - {name: nlp, to: "mailto:nlp@example.com", team: nlp, also: [refused, finished]}
    - {name: pager, to: "command:/usr/local/bin/page --urgent", rule: [save_failed, "no_*"]}
    - {name: chat, to: $CHAT_URL}          # any URL of Apprise, here from the environment

Mail needs a second key, so that the list lies below `notify`:

    notify: […]
    mail: {server: smtp.example.com, sender: tracks@example.com, user: tracks, password: $MAIL_PASSWORD}

What a `to` or a password holds is a secret: no problem shows it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, PlainValidator

from tracks_dagster.reasons.kube_json import mapping
from tracks_dagster.track.effects.settings_file import FileModel, Loc, SettingsFile
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.track.text import units
from tracks_dagster.track.text.redact import redact
from tracks_dagster.track.text.units import in_quotes, shown
from tracks_dagster.wings.watch.notifying.delivery import Channel, Delivery, Mail
from tracks_dagster.wings.watch.notifying.effects.senders import (
    Way,
    apprise_problem,
    secrets_in,
    way_of,
)
from tracks_dagster.wings.watch.notifying.messages import ON_REQUEST, SEVERITIES, YELLOW, Event

LIST_KEY = "notify"  # a list at the root stands for it
ENTRIES_MAX = 50
CHARACTERS_MAX = 2000  # of one text
PORTS = {"starttls": 587, "ssl": 465, "none": 25}
HERE = ("localhost", "127.0.0.1", "::1")

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_ADDRESS = re.compile(r"[^\s@<>,;:\"()\\\x00-\x1f\x7f]{1,64}@[A-Za-z0-9.-]{1,255}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EVENTS = {each.value: each for each in ON_REQUEST}
_EXAMPLE = "{name: oncall, to: 'https://hooks.example.com/…', severity: red}"
_WAYS = (
    "write https://…, mailto:NAME@HOST, command:PROGRAM, a URL of Apprise such as slack://…, or "
    "$NAME of an environment variable that holds one"
)


def read_notify(file: SettingsFile, environment: Mapping[str, str]) -> Delivery:
    """Return what the file says; raises SettingsError with all that is wrong.

    environment: where a value `$NAME` is looked up.
    """
    found = file.read(_NotifyFile)
    entries = mapping(file.value).get(LIST_KEY)
    if isinstance(entries, list):
        _check_list(file, [mapping(each).get("name") for each in entries])
    if found is None or file.problems:
        raise _error(file)
    looked_up = _Values(file, environment)
    channels = [
        _channel(each, looked_up.text((LIST_KEY, place, "to"), each.to))
        for place, each in enumerate(found.notify)
    ]
    mail = _mail(found.mail, looked_up)
    _check(file, channels, mail)
    if file.problems:
        raise _error(file)
    secrets = [secret for each in channels for secret in secrets_in(each.to)]
    if mail is not None and mail.password:
        secrets.append(mail.password)
    return Delivery(channels=tuple(channels), mail=mail, secrets=tuple(dict.fromkeys(secrets)))


def _error(file: SettingsFile) -> SettingsError:
    """Return the refusal; a URL may have slipped to where a name belongs."""
    return SettingsError(redact(str(file.error())))


def _check_list(file: SettingsFile, names: Sequence[object]) -> None:
    """Collect names that are taken, and more entries than there may be."""
    lines: dict[str, int] = {}
    for place, name in enumerate(names):
        if not isinstance(name, str):
            continue
        loc = (LIST_KEY, place, "name")
        if name in lines:
            file.refuse(loc, f"{name!r} is taken by line {lines[name]}.")
        lines.setdefault(name, file.line(loc))
    if len(names) > ENTRIES_MAX:
        file.refuse((LIST_KEY, ENTRIES_MAX), f"more than {ENTRIES_MAX} entries; leave some out.")


class _Values:
    """Looks up what the file leaves to the environment, and collects what is not there."""

    def __init__(self, file: SettingsFile, environment: Mapping[str, str]) -> None:
        self._file = file
        self._environment = environment

    def text(self, loc: Loc, given: str) -> str:
        match = _VARIABLE.fullmatch(given)
        if match is None:
            return given
        value = self._environment.get(match[1], "")
        if not value:
            self._file.refuse(
                loc, f"{given} is not set where this runs; set it, or write the value."
            )
        return value


def _channel(entry: _Entry, to: str) -> Channel:
    return Channel(
        name=entry.name,
        to=to,
        rules=entry.rule,
        teams=entry.team,
        severity=entry.severity,
        also=frozenset(entry.also),
    )


def _mail(given: _Mail | None, looked_up: _Values) -> Mail | None:
    if given is None:
        return None
    return Mail(
        server=given.server,
        port=given.port or PORTS[given.tls],
        sender=given.sender,
        tls=given.tls,
        user=looked_up.text(("mail", "user"), given.user),
        password=looked_up.text(("mail", "password"), given.password),
    )


def _check(file: SettingsFile, channels: Sequence[Channel], mail: Mail | None) -> None:
    """Collect what is wrong with where messages go, as far as it can be known without sending."""
    for place, channel in enumerate(channels):
        problem = _problem(channel.to, mail) if channel.to else None
        if problem is not None:
            file.refuse((LIST_KEY, place, "to"), problem)
    if mail is None:
        return
    if mail.password and not mail.user:
        file.refuse(("mail",), "user is missing: write whose password it is.")
    if mail.password and mail.tls == "none" and mail.server not in HERE:
        words = "the password would go over the network as it is; write tls: starttls or ssl."
        file.refuse(("mail", "tls"), words)


def _problem(to: str, mail: Mail | None) -> str | None:
    """Return why nothing can be sent there, without the value itself; None where it can be tried."""
    if _CONTROL.search(to):
        return "it holds a line end or another control character."
    match way_of(to):
        case Way.WEBHOOK:
            return _webhook_problem(to)
        case Way.MAIL:
            return _mail_problem(to, mail)
        case Way.COMMAND:
            return _command_problem(to)
        case Way.APPRISE:
            return apprise_problem(to)
    return f"it is not a way to send a message; {_WAYS}."


def _webhook_problem(to: str) -> str | None:
    try:
        parts = urlsplit(to)
        is_usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or re.search(r"\s", to):
        return "it is not a URL; write it whole, for example https://hooks.example.com/alerts."
    return None


def _mail_problem(to: str, mail: Mail | None) -> str | None:
    addresses = to.partition(":")[2].split(",")
    if not all(_ADDRESS.fullmatch(address) for address in addresses):
        return (
            "it has no address as NAME@HOST; of several write mailto:a@example.com,b@example.com."
        )
    if mail is None:
        return (
            "there is no mail server; write below the list, for example: "
            "mail: {server: smtp.example.com, sender: tracks@example.com}."
        )
    return None


def _command_problem(to: str) -> str | None:
    try:
        words = shlex.split(to.partition(":")[2])
    except ValueError as error:
        return f"it is not a command: {error}."
    return None if words else "it has no command; write for example command:/usr/local/bin/page."


# --- what the file may hold -----------------------------------------------------------------------


def _name(value: object) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError("a name is 1 to 40 of a-z, 0-9 and '-', for example oncall.")


def _secret(value: object) -> str:
    """Return a text that no message may show."""
    if not isinstance(value, str):
        raise ValueError(f"{_kind(value)} is not text; write it in quotes.")
    if not value.strip() or len(value) > CHARACTERS_MAX:
        raise ValueError(f"it is empty, or has more than {CHARACTERS_MAX} characters.")
    return value.strip()


def _kind(value: object) -> str:
    return "a number" if type(value) in (int, float) else shown(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(in_quotes(value))
    if not value.strip() or len(value) > CHARACTERS_MAX or _CONTROL.search(value):
        raise ValueError(f"{shown(value[:40])} is not a name; write one line of text.")
    return value


def _texts(value: object) -> tuple[str, ...]:
    """Return one text or a list of them."""
    given = value if isinstance(value, list) else [value]
    if not 1 <= len(given) <= ENTRIES_MAX:
        raise ValueError(f"{len(given)} are given; write 1 to {ENTRIES_MAX}.")
    return tuple(_text(each) for each in given)


def _events(value: object) -> tuple[Event, ...]:
    read = units.one_of("event", _EVENTS)
    return tuple(read(each) for each in (value if isinstance(value, list) else [value]))


def _port(value: object) -> int:
    if type(value) is int and 1 <= value <= 65_535:
        return value
    raise ValueError(f"{shown(value)} is not a port; write 1 to 65535.")


def _sender(value: object) -> str:
    if isinstance(value, str) and _ADDRESS.fullmatch(value):
        return value
    raise ValueError(f"{shown(value)} is not an address; write it as NAME@HOST.")


_Texts = Annotated[tuple[str, ...], PlainValidator(_texts)]
_Secret = Annotated[str, PlainValidator(_secret)]


class _Entry(FileModel):
    example = _EXAMPLE

    name: Annotated[str, PlainValidator(_name)] = Field(
        description="write a word of its own, for example oncall"
    )
    to: _Secret = Field(description=_WAYS)
    rule: _Texts = ("*",)
    team: _Texts = ()
    severity: Annotated[
        str, PlainValidator(units.one_of("severity", {each: each for each in SEVERITIES}))
    ] = YELLOW
    also: Annotated[tuple[Event, ...], PlainValidator(_events)] = ()


class _Mail(FileModel):
    example = "{server: smtp.example.com, sender: tracks@example.com}"

    server: Annotated[str, PlainValidator(_text)] = Field(
        description="write where mail is handed over, for example smtp.example.com"
    )
    sender: Annotated[str, PlainValidator(_sender)] = Field(
        description="write whom mail is from, for example tracks@example.com"
    )
    port: Annotated[int, PlainValidator(_port)] = 0
    tls: Annotated[str, PlainValidator(units.one_of("tls", {each: each for each in PORTS}))] = (
        "starttls"
    )
    user: _Secret = ""
    password: _Secret = ""


class _NotifyFile(FileModel):
    example = f"- {_EXAMPLE}"

    notify: tuple[_Entry, ...] = ()
    mail: _Mail | None = None
