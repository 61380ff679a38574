"""A notify file is taken as it stands, or refused with every error, its line, and no secret."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tracks_dagster.track.effects.settings_file import parse_settings
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.wings.watch.notifying.delivery import Channel, Mail
from tracks_dagster.wings.watch.notifying.effects.notify_file import LIST_KEY, read_notify
from tracks_dagster.wings.watch.notifying.messages import RED, YELLOW, Event

GOOD = """
notify:
- {name: oncall, to: "https://hooks.example.com/services/T0/abcdef0123", severity: red}
- {name: nlp, to: "mailto:a@example.com,b@example.com", team: nlp, also: [refused, finished]}
- {name: pager, to: "command:/usr/bin/page --now", rule: [save_failed, "no_*"]}
- {name: chat, to: $CHAT_URL}
mail: {server: localhost, sender: tracks@example.com, tls: none, user: tracks, password: $MAIL_PASSWORD}
"""
ENVIRONMENT = {
    "CHAT_URL": "https://chat.example.com/hook/s3cr3t-t0ken",
    "MAIL_PASSWORD": "hunter22",
}


@pytest.fixture
def apprise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apprise as far as it is asked here: it knows slack:// with three tokens."""
    known = SimpleNamespace(
        instantiate=lambda url, suppress_exceptions: (url.count("/") == 4 and object()) or None
    )
    monkeypatch.setitem(sys.modules, "apprise", SimpleNamespace(Apprise=known))


def refused(text: str) -> str:
    with pytest.raises(SettingsError) as refusal:
        read_notify(parse_settings(text, "The file", list_key=LIST_KEY), ENVIRONMENT)
    return str(refusal.value)


def test_a_file_says_who_gets_what_and_how() -> None:
    delivery = read_notify(parse_settings(GOOD, "The file", list_key=LIST_KEY), ENVIRONMENT)
    oncall, nlp, pager, chat = delivery.channels
    assert oncall == Channel(
        name="oncall", to="https://hooks.example.com/services/T0/abcdef0123", severity=RED
    )
    assert (nlp.teams, nlp.also) == (("nlp",), {Event.REFUSED, Event.FINISHED})
    assert (pager.rules, pager.severity) == (("save_failed", "no_*"), YELLOW)
    assert chat.to == ENVIRONMENT["CHAT_URL"]
    assert delivery.mail == Mail(
        server="localhost",
        port=25,
        sender="tracks@example.com",
        tls="none",
        user="tracks",
        password="hunter22",
    )
    assert {"hunter22", "abcdef0123", "s3cr3t-t0ken"} <= set(delivery.secrets)
    assert "abcdef0123" not in repr(delivery)
    assert "hunter22" not in repr(delivery)


def test_a_list_alone_is_a_file_too_and_an_empty_one_tells_nobody() -> None:
    text = "- {name: a, to: 'http://127.0.0.1:80/x'}"
    read = [
        read_notify(parse_settings(each, "The file", list_key=LIST_KEY), {}) for each in (text, "")
    ]
    assert [len(each.channels) for each in read] == [1, 0]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("- {to: 'https://x.example.com/a'}", 1, "name is missing"),
        ("- {name: a}", 1, "to is missing: write https://"),
        ("- {name: A b, to: 'https://x.example.com/a'}", 1, "a name is 1 to 40 of a-z"),
        ("- {name: a, to: 'https://'}", 1, "it is not a URL"),
        ("- {name: a, to: 'https://h:99999/x'}", 1, "it is not a URL"),
        ("- {name: a, to: 'https://h/x y'}", 1, "it is not a URL"),
        ('- {name: a, to: "https://h/x\\r\\nA: b"}', 1, "it holds a line end"),
        ("- {name: a, to: somebody}", 1, "it is not a way to send a message; write https://"),
        ("- {name: a, to: 7}", 1, "a number is not text"),
        ("- {name: a, to: ' '}", 1, "it is empty"),
        ("- {name: a, to: $NOBODY}", 1, "$NOBODY is not set where this runs"),
        ("- {name: a, to: 'mailto:x@example.com'}", 1, "there is no mail server"),
        ("notify: [{name: a, to: 'mailto:x'}]\nmail: {server: h, sender: a@h}", 1, "NAME@HOST"),
        (
            "notify: [{name: a, to: 'mailto:a@h?cc=b@h'}]\nmail: {server: h, sender: a@h}",
            1,
            "NAME@",
        ),
        ("- {name: a, to: 'command:'}", 1, "it has no command"),
        ("- {name: a, to: 'command:page \"x'}", 1, "it is not a command: No closing quotation"),
        ("- {name: a, to: 'https://h/x', severity: orange}", 1, "'orange'"),
        ("- {name: a, to: 'https://h/x', also: [finishd]}", 1, "did you mean finished?"),
        ("- {name: a, to: 'https://h/x', rule: []}", 1, "0 are given"),
        ("- {name: a, to: 'https://h/x', rules: x}", 1, "did you mean rule?"),
        ("- {name: a, to: 'https://h/x'}\n- {name: a, to: 'https://h/y'}", 2, "taken by line 1"),
        ("mail: {server: h, sender: a}", 1, "'a' is not an address"),
        ("mail: {server: h, sender: a@h, password: x}", 1, "user is missing"),
        (
            "mail:\n  server: h\n  sender: a@h\n  tls: none\n  user: u\n  password: x",
            4,
            "the password would go over the network as it is",
        ),
        ("mail: {server: h, sender: a@h, port: 0}", 1, "0 is not a port"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(text: str, line: int, words: str) -> None:
    found = [each for each in refused(text).splitlines() if words in each]
    assert found, refused(text)
    assert found[0].startswith(f"  line {line}: ")


def test_no_problem_shows_where_messages_go() -> None:
    token = "xoxb-1234567890-abcdefABCDEF"
    texts = (
        f"- {{name: a, to: 'htps:{token}'}}",
        f"- {{name: a, to: 'https://h h/{token}'}}",
        f"- {{name: a, to: ['https://h/{token}']}}",
        f"- {{name: 'https://hooks.slack.com/services/{token}', to: x}}",
        f"- {{name: a, 'https://hooks.slack.com/services/{token}': x}}",
        f"notify: []\nmail: {{server: h, sender: a@h, user: u, tls: no, password: [{token}]}}",
    )
    for text in texts:
        assert token not in refused(text), refused(text)


def test_a_url_of_apprise_that_it_cannot_use_is_refused(apprise: None) -> None:
    good = parse_settings("- {name: a, to: 'slack://A1/B2/C3'}", "The file", list_key=LIST_KEY)
    assert read_notify(good, {}).channels[0].name == "a"
    assert "line 1: notify[0].to: Apprise cannot use it" in refused("- {name: a, to: 'slack://A1'}")


def test_without_apprise_its_urls_are_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert "pip install 'tracks-dagster[notify]'" in refused("- {name: a, to: 'slack://A1/B2/C3'}")
