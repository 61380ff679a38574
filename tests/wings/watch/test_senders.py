"""Messages reach real servers; what the other side does takes a bounded time and shows no secret."""

from __future__ import annotations

import base64
import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bodies import BEGIN
from tests.receivers import hook_server, mail_server
from tracks_dagster.wings.watch.notifying.delivery import Channel, Delivery, Mail
from tracks_dagster.wings.watch.notifying.effects import senders
from tracks_dagster.wings.watch.notifying.effects.senders import Senders, secrets_in
from tracks_dagster.wings.watch.notifying.messages import RED, Event, Message

MESSAGE = Message(
    key="runs/r-1/5",
    event=Event.ALERT,
    at=BEGIN,
    sentence="The save of step 40 failed.",
    command="tracks explain r-1",
    rule="save_failed",
    severity=RED,
    run_id="r-1",
)
SOON_S = 0.3
TOKEN = "B0123456/abcdefGHIJ0123"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers are on this machine, whatever proxy it is behind."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def send(to: str, *, mail: Mail | None = None, seconds_max: float = 15.0) -> str | None:
    channel = Channel(name="one", to=to)
    delivery = Delivery(channels=(channel,), mail=mail, secrets=secrets_in(to))
    return Senders(delivery, (), seconds_max=seconds_max).send(channel, MESSAGE)


def test_a_webhook_gets_the_whole_message_as_json_and_a_key_that_stays_the_same() -> None:
    with hook_server() as hook:
        assert send(f"{hook.url}/{TOKEN}?a=b") is None
    assert hook.got == [MESSAGE.to_json()]
    assert hook.headers[0]["Idempotency-Key"] == "runs/r-1/5"
    assert hook.headers[0]["Content-Type"] == "application/json"
    assert hook.got[0]["text"].startswith("red: save_failed in r-1\nThe save of step 40 failed.")


def test_a_user_and_a_password_in_the_url_become_a_header() -> None:
    with hook_server() as hook:
        assert send(hook.url.replace("://", "://ann:p%40ss@")) is None
    assert hook.headers[0]["Authorization"] == "Basic YW5uOnBAc3M="
    assert "ann" not in hook.headers[0]["Host"]


def test_an_answer_that_is_not_a_success_is_reported_with_its_first_line_and_without_the_token() -> (
    None
):
    with hook_server() as hook:
        hook.status, hook.words = 500, f"invalid_token {TOKEN.split('/')[1]}\nmore"
        problem = send(f"{hook.url}/{TOKEN}")
    assert problem == "It answers HTTP 500 Internal Server Error: invalid_token [hidden]."


SECRET = "T0kEn-of-The-Hook"
ECHOES = {
    "capitals": SECRET.upper(),
    "small letters": SECRET.lower(),
    "from its end": SECRET[::-1],
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64 of a longer text": base64.b64encode(f"/x/{SECRET}/y".encode()).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(f"ab{SECRET}".encode()).decode(),
    "hex": SECRET.encode().hex(),
    "a short part": "no such channel: q7x",
    "a short part in capitals": "Q7X",
}


@pytest.mark.parametrize("form", ECHOES)
def test_an_answer_that_repeats_a_part_of_the_address_in_any_form_is_left_out(form: str) -> None:
    with hook_server() as hook:
        hook.status, hook.words = 403, f"not allowed {ECHOES[form]}"
        problem = send(f"{hook.url}/q7x/{SECRET}")
    assert problem == (
        "It answers HTTP 403 Forbidden. What it says is left out: it repeats a part of the address."
    )


def test_a_redirect_is_not_followed() -> None:
    with hook_server() as hook:
        for hook.status in (301, 302, 303, 307, 308):
            problem = send(hook.url)
            assert problem == (
                f"It redirects (HTTP {hook.status}), which is not followed; write the final URL."
            )
    assert hook.elsewhere == 0
    assert hook.got == []


def test_where_nobody_listens_the_problem_says_so_without_the_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert send(f"http://127.0.0.1:{port}/{TOKEN}") == "It cannot be reached: Connection refused."
    unknown = send(f"http://nobody.invalid/{TOKEN}")
    assert unknown is not None
    assert unknown.startswith("It cannot be reached: ")
    assert "nobody" not in unknown


@contextmanager
def listener(drips: bytes) -> Iterator[str]:
    """Take connections, and answer each with a byte now and then, or with nothing."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            taken = []
            while not over.is_set():
                try:
                    taken.append(server.accept()[0])
                except TimeoutError:
                    for each in taken:
                        each.sendall(drips)
            for each in taken:
                each.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("drips", [b"", b"H"])
def test_one_that_hangs_or_answers_a_byte_now_and_then_is_left_behind_in_one_thread(
    drips: bytes,
) -> None:
    with listener(drips) as url:
        channel = Channel(name="slow", to=f"{url}/{TOKEN}")
        sending = Senders(Delivery(channels=(channel,)), (), seconds_max=SOON_S)
        problems = [sending.send(channel, MESSAGE) for _ in range(3)]
        left = [each for each in threading.enumerate() if each.name == "notify-slow"]
    assert problems == [
        f"There was no answer within {SOON_S:g} s.",
        *["The message before this one still waits for an answer."] * 2,
    ]
    assert len(left) == 1
    left[0].join(30)


def test_a_mail_has_one_subject_line_a_lasting_id_and_every_recipient() -> None:
    with mail_server() as box:
        mail = Mail(server="127.0.0.1", port=box.port, sender="tracks@example.com", tls="none")
        assert send("mailto:a@example.com,b@example.com", mail=mail) is None
        assert send("mailto:a@example.com,b@example.com", mail=mail) is None
        box.refused = {"c@example.com"}
        refused = send("mailto:a@example.com,c@example.com", mail=mail)
    recipients, text = box.mails[0]
    assert recipients == ["a@example.com", "b@example.com"]
    assert "Subject: red: save_failed in r-1\r\n" in text
    assert "To: a@example.com, b@example.com\r\n" in text
    assert "The save of step 40 failed." in text
    ids = [line for _, mail in box.mails[:2] for line in mail.splitlines() if "Message-ID" in line]
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert refused == "The mail server refuses c@example.com."


def test_a_mail_server_without_encryption_is_reported_where_it_is_asked_for() -> None:
    with mail_server() as box:
        mail = Mail(server="127.0.0.1", port=box.port, sender="tracks@example.com", tls="starttls")
        problem = send("mailto:a@example.com", mail=mail)
    assert problem is not None
    assert problem.startswith("The mail server does not take it: SMTPNotSupportedError")
    assert box.mails == []


def test_a_command_gets_the_message_on_its_standard_input_and_no_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = f"import sys; open({str(out)!r}, 'w').write(sys.argv[1] + sys.stdin.read())"
    assert send(f'command:{sys.executable} -c "{script}" "$HOME;"') is None
    text = out.read_text()
    assert text.startswith("$HOME;{")
    assert json.loads(text.removeprefix("$HOME;")) == MESSAGE.to_json()


def test_a_command_that_fails_hangs_or_is_not_there_is_reported(tmp_path: Path) -> None:
    fails = "import sys; print('first'); sys.exit('no such pager')"
    assert send(f'command:{sys.executable} -c "{fails}"') == (
        "The command exited with 1: no such pager."
    )
    assert send("command:/no/such/pager") == (
        "The command cannot be started: No such file or directory."
    )
    left = tmp_path / "left"
    hangs = f"command:sh -c 'sleep 60; echo > {left}'"
    problem = senders._run(hangs, MESSAGE, seconds_max=SOON_S)
    assert problem == "The command had not ended after 0.3 s and was killed."


class FakeApprise:
    """Apprise as it is used here: it logs whole URLs, as the real one does, and sends nowhere."""

    NotifyType = SimpleNamespace(INFO="info", WARNING="warning", FAILURE="failure")

    def __init__(self, *, is_sent: bool) -> None:
        self.is_sent = is_sent
        self.sent: list[dict[str, Any]] = []
        self.Apprise = SimpleNamespace(instantiate=self.instantiate)

    def instantiate(self, url: str, *, suppress_exceptions: bool) -> Any:
        logging.getLogger("apprise").error("Unparseable URL %s", url)
        return SimpleNamespace(notify=partial_notify(self, url)) if url.count("/") > 2 else None


def partial_notify(fake: FakeApprise, url: str) -> Any:
    def notify(**given: Any) -> bool:
        fake.sent.append(given)
        if not fake.is_sent:
            logging.getLogger("apprise").warning("Failed to send to %s: 403", url)
        return fake.is_sent

    return notify


class ListHandler(logging.Handler):
    """Keeps what reaches it."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self.emit = records.append  # type: ignore[method-assign]


def test_apprise_is_given_title_text_and_gravity_and_what_it_logs_stays_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"slack://{TOKEN}/C3"
    logged: list[logging.LogRecord] = []
    # Not caplog: it also listens at loggers that hand nothing on.
    monkeypatch.setattr(logging.getLogger(), "handlers", [ListHandler(logged)])
    for fake, problem in (
        (FakeApprise(is_sent=True), None),
        (
            FakeApprise(is_sent=False),
            "Apprise could not send it: Failed to send to [hidden]: 403.",
        ),
    ):
        monkeypatch.setitem(sys.modules, "apprise", fake)
        assert send(url) == problem
        assert fake.sent[0] == {
            "body": MESSAGE.text,
            "title": MESSAGE.title,
            "notify_type": "failure",
        }
    wrong = send("slack://A1")
    assert wrong is not None
    assert wrong.startswith("Apprise cannot use it")
    assert logged == []


def test_a_library_that_raises_is_a_problem_of_its_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", SimpleNamespace())
    problem = send(f"slack://{TOKEN}/C3")
    assert problem is not None
    assert problem.startswith("AttributeError: ")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own imports
def test_the_real_apprise_sends_and_says_which_url_is_wrong() -> None:
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    with hook_server() as hook:
        assert send(hook.url.replace("http://", "json://") + f"/{TOKEN}") is None
        hook.status = 500
        problem = send(hook.url.replace("http://", "json://") + f"/{TOKEN}")
    assert hook.got[0]["title"] == MESSAGE.title
    assert problem is not None
    assert problem.startswith("Apprise could not send it")
    assert "abcdefGHIJ0123" not in problem
    for wrong in ("slack://A1", "nothing://x/y", "json://"):
        assert str(send(wrong)).startswith("Apprise cannot use it")
