"""Sends one message to where an entry of notify.yaml says: a webhook, mail, a command, Apprise.

Each way returns what went wrong in words, or None when the message was taken. It takes a bounded time,
whatever the other side does: one that hangs, sends a byte now and then or looks its name up for ever is
left behind in a thread of its own. A webhook's redirect is not followed: it would hand the message to
the one that the other side names. No problem holds the address: it may hold a token.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import shlex
import signal
import smtplib
import ssl
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from email.utils import format_datetime
from enum import Enum
from functools import partial
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.parse import unquote, urlsplit, urlunsplit

from tracks_dagster.track.records import canonical_json, sha256_hex
from tracks_dagster.track.text.redact import redact
from tracks_dagster.track.text.safe_text import one_line, visible
from tracks_dagster.wings.watch.notifying.delivery import Channel, Delivery, Mail
from tracks_dagster.wings.watch.notifying.messages import RED, Event, Message

SEND_S_MAX = 15.0  # of one try, all of it
COMMAND_SHARE = 0.9  # of that time, so that a command which is killed can still be waited for
ANSWER_S_MAX = 10.0  # from one byte of the other side to the next
ANSWER_BYTES_MAX = 1024  # of an answer that are read
PROBLEM_CHARACTERS_MAX = 300
ECHOED_LENGTH_MIN = 3  # of a part of an address that an answer may not repeat
SECRET_PART_LENGTH_MIN = 6  # shorter parts of an address are ports and words

INSTALL_APPRISE = (
    "URLs of Apprise need its package: pip install 'tracks-dagster[notify]', or pip install apprise"
)
_WRONG_APPRISE = (
    "Apprise cannot use it: the service is not known, or a part of the URL is missing; the form of "
    "each service's URL is in Apprise's documentation"
)


class Way(Enum):
    """How a message is sent, by the beginning of its `to`."""

    WEBHOOK = "webhook"
    MAIL = "mail"
    COMMAND = "command"
    APPRISE = "apprise"


def way_of(to: str) -> Way | None:
    """Return how to send there, or None. `mailto://` is Apprise's own, with a server in it."""
    scheme, separator, rest = to.partition(":")
    match scheme.lower() if separator else "":
        case "http" | "https":
            return Way.WEBHOOK
        case "command":
            return Way.COMMAND
        case "mailto" if not rest.startswith("//"):
            return Way.MAIL
    return Way.APPRISE if rest.startswith("//") else None


def secrets_in(to: str) -> tuple[str, ...]:
    """Return what of an address no text may show: all of it, and its parts but the host.

    A mail address and a command are not secrets.
    """
    if way_of(to) in (Way.MAIL, Way.COMMAND, None):
        return ()
    rest = to.partition("://")[2]
    parts = [part for part in re.split(r"[/:@?&=#]+", rest) if len(part) >= SECRET_PART_LENGTH_MIN]
    if way_of(to) is Way.WEBHOOK:
        host = urlsplit(to).hostname
        parts = [part for part in parts if part.lower() != host]
    return tuple(dict.fromkeys([to, rest, *parts, *map(unquote, parts)]))


class Senders:
    """Sends by one delivery's settings. secrets: of the process, hidden in problems as the delivery's.

    A channel that has not come back from the last message is not sent the next one, so that one which
    hangs has one thread at most. Safe from several threads.
    """

    def __init__(
        self, delivery: Delivery, secrets: tuple[str, ...], *, seconds_max: float = SEND_S_MAX
    ) -> None:
        self._delivery = delivery
        self._secrets = (*secrets, *delivery.secrets)
        self._seconds_max = seconds_max
        self._left: dict[str, threading.Thread] = {}

    def send(self, channel: Channel, message: Message) -> str | None:
        """Send; return what went wrong, without secrets, or None."""
        left = self._left.pop(channel.name, None)
        if left is not None and left.is_alive():
            self._left[channel.name] = left
            return "The message before this one still waits for an answer."
        found: list[str | None] = []
        work = partial(self._work, channel, message, found.append)
        thread = threading.Thread(target=work, name=f"notify-{channel.name}", daemon=True)
        thread.start()
        thread.join(self._seconds_max)
        if found:
            return None if found[0] is None else self._problem(found[0], channel.to)
        self._left[channel.name] = thread
        return f"There was no answer within {self._seconds_max:g} s."

    def _work(
        self, channel: Channel, message: Message, answer: Callable[[str | None], None]
    ) -> None:
        try:
            answer(self._send(channel, message))
        except Exception as error:  # noqa: BLE001  # a library of one channel ends no other's messages
            answer(f"{type(error).__name__}: {error}")

    def _send(self, channel: Channel, message: Message) -> str | None:
        match way_of(channel.to):
            case Way.WEBHOOK:
                return _post(channel.to, message)
            case Way.MAIL if self._delivery.mail is not None:
                return _mail(channel.to, self._delivery.mail, message)
            case Way.COMMAND:
                return _run(channel.to, message, seconds_max=COMMAND_SHARE * self._seconds_max)
            case Way.APPRISE:
                return _apprise(channel.to, message)
        return "There is not a way to send it."

    def _problem(self, text: str, to: str) -> str:
        text = redact(text.strip(), self._secrets)
        ours, colon, theirs = text.partition(": ")
        if colon and _repeats(theirs, to):
            text = f"{ours}. What it says is left out: it repeats a part of the address."
        return visible(one_line(text))[:PROBLEM_CHARACTERS_MAX]


def _repeats(text: str, to: str) -> bool:
    """Whether a text of the other side, in which the address is hidden, shows a part of it: one that is
    too short to be hidden by itself, in other letters, from its end, as base64 or hex."""
    if way_of(to) not in (Way.WEBHOOK, Way.APPRISE):
        return False
    lower = text.lower()
    parts = {part for part in map(unquote, _parts(to)) if len(part) >= ECHOED_LENGTH_MIN}
    return any(form in lower for part in {to, *parts} for form in _forms(part))


def _parts(to: str) -> Iterator[str]:
    """Yield the parts of an address but its host: of a webhook; of Apprise's all may be secret."""
    rest = to.partition("://")[2]
    if way_of(to) is Way.WEBHOOK:
        user, _, _ = urlsplit(to).netloc.rpartition("@")
        rest = f"{user}/{rest.partition('/')[2]}"
    return filter(None, re.split(r"[/:@?&=#]+", rest))


def _forms(part: str) -> Iterator[str]:
    """Yield a part, and its other forms, in small letters."""
    data = part.encode()
    yield part.lower()
    yield part[::-1].lower()
    yield data.hex()
    for before in range(3):  # bytes of a longer text that is encoded as a whole
        encoded = base64.b64encode(b"\0" * before + data).decode()
        core = encoded[4 if before else 0 : len(encoded) - 4 if len(data) > 3 else None].rstrip("=")
        if len(core) >= 4:
            yield core.lower()
            yield core.lower().replace("+", "-").replace("/", "_")


# --- a webhook ------------------------------------------------------------------------------------


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as the answer that it is."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        """Follow none."""


def _post(to: str, message: Message) -> str | None:
    """POST the message as JSON; any answer of 200 to 299 takes it."""
    parts = urlsplit(to)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "tracks-dagster",
        "Idempotency-Key": message.key,
    }
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
    data = canonical_json(message.to_json())
    request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=ANSWER_S_MAX) as answer:
            answer.read(ANSWER_BYTES_MAX)
            return None
    except urllib.error.HTTPError as error:
        return _refusal(error)
    except urllib.error.URLError as error:
        return f"It cannot be reached: {_words(error.reason)}."
    except (OSError, HTTPException, ValueError) as error:
        return f"It cannot be reached: {_words(error)}."


def _refusal(error: urllib.error.HTTPError) -> str:
    """Return an answer that is not a success in words: with what it says, or where it points."""
    with error:
        if 300 <= error.code < 400:
            return f"It redirects (HTTP {error.code}), which is not followed; write the final URL."
        text = ""
        with suppress(OSError, HTTPException):
            text = error.read(ANSWER_BYTES_MAX).decode("utf-8", "replace").strip()
    line = text.splitlines()[0] if text and not text.startswith("<") else ""
    return f"It answers HTTP {error.code} {error.reason}{f': {line}' if line else ''}."


def _words(error: object) -> str:
    """Return an error of the network in words: never its address."""
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_S_MAX:g} s"
    if isinstance(error, ssl.SSLError):
        return f"its certificate or encryption is refused ({error.reason or type(error).__name__})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__ if isinstance(error, Exception) else str(error)


# --- mail -----------------------------------------------------------------------------------------


def _mail(to: str, mail: Mail, message: Message) -> str | None:
    """Hand a mail over; the same message has the same Message-ID."""
    letter = EmailMessage()
    letter["Subject"] = message.title
    letter["From"] = mail.sender
    letter["To"] = ", ".join(to.partition(":")[2].split(","))
    letter["Date"] = format_datetime(message.at)
    letter["Message-ID"] = f"<{sha256_hex(message.key.encode())[:32]}@tracks>"
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(f"{message.text}\n")
    context = ssl.create_default_context()
    make = partial(smtplib.SMTP_SSL, context=context) if mail.tls == "ssl" else smtplib.SMTP
    try:
        with make(mail.server, mail.port, timeout=ANSWER_S_MAX) as server:
            if mail.tls == "starttls":
                server.starttls(context=context)
            if mail.user:
                server.login(mail.user, mail.password)
            refused = server.send_message(letter)
    except smtplib.SMTPResponseException as error:
        answer = error.smtp_error
        text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
        return f"The mail server answers {error.smtp_code} {text}."
    except smtplib.SMTPException as error:
        return f"The mail server does not take it: {type(error).__name__}: {error}."
    except OSError as error:
        return f"The mail server cannot be reached: {_words(error)}."
    return f"The mail server refuses {', '.join(sorted(refused))}." if refused else None


# --- a command ------------------------------------------------------------------------------------


def _run(to: str, message: Message, *, seconds_max: float) -> str | None:
    """Start the command, without a shell, with the message as JSON on its standard input.

    Exit code 0 takes it. It is killed, with what it started, when its time is over.
    """
    words = shlex.split(to.partition(":")[2])
    with tempfile.TemporaryFile() as printed:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=printed,
                start_new_session=True,
            )
        except OSError as error:
            return f"The command cannot be started: {error.strerror}."
        with process:
            try:
                process.communicate(canonical_json(message.to_json()), timeout=seconds_max)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"The command had not ended after {seconds_max:g} s and was killed."
        if process.returncode == 0:
            return None
        printed.seek(max(0, printed.tell() - ANSWER_BYTES_MAX))
        lines = printed.read().decode("utf-8", "replace").strip().splitlines()
    return f"The command exited with {process.returncode}{f': {lines[-1]}' if lines else ''}."


# --- Apprise --------------------------------------------------------------------------------------


def apprise_problem(to: str) -> str | None:
    """Return why Apprise cannot send to a URL, or None; nothing is sent."""
    try:
        import apprise
    except ImportError:
        return f"{INSTALL_APPRISE}."
    with _logged():
        service = apprise.Apprise.instantiate(to, suppress_exceptions=True)
    return f"{_WRONG_APPRISE}." if service is None else None


def _apprise(to: str, message: Message) -> str | None:
    problem = apprise_problem(to)
    if problem is not None:
        return problem
    import apprise

    kind = apprise.NotifyType.INFO
    if message.event in (Event.ALERT, Event.REFUSED):
        is_grave = message.severity == RED or message.event is Event.REFUSED
        kind = apprise.NotifyType.FAILURE if is_grave else apprise.NotifyType.WARNING
    with _logged() as lines:
        service = apprise.Apprise.instantiate(to, suppress_exceptions=True)
        if service.notify(body=message.text, title=message.title, notify_type=kind):
            return None
    return f"Apprise could not send it{f': {lines[-1]}' if lines else ''}."


class _Kept(logging.Handler):
    """Keeps the warnings of the thread that made it."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        if record.thread == self._thread:
            self._lines.append(record.getMessage())


@contextmanager
def _logged() -> Iterator[list[str]]:
    """Keep what Apprise logs from every other log: its lines may hold the whole URL."""
    lines: list[str] = []
    logger, kept = logging.getLogger("apprise"), _Kept(lines)
    logger.propagate = False  # for good: nobody else here uses it
    logger.addHandler(kept)
    try:
        yield lines
    finally:
        logger.removeHandler(kept)
