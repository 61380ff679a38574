"""`tracks alerts test` and `retry`: whether alerts reach people, and what reached nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.bodies import BEGIN
from tests.cli.conftest import Call
from tests.receivers import Hook, hook_server
from tracks_dagster.settings import Settings
from tracks_dagster.track.records import canonical_json
from tracks_dagster.wings.watch.notifying.delivery import TRIES_MAX, Letter
from tracks_dagster.wings.watch.notifying.effects.notify import DEAD
from tracks_dagster.wings.watch.notifying.messages import RED, Event, Message
from tracks_dagster.wiring import build

TOKEN = "T0k3n-a1b2c3"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """A webhook on this machine, whatever proxy that is behind."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with hook_server() as served:
        yield served


@pytest.fixture
def notify_file(home: Path, hook: Hook) -> Path:
    """Two entries, both to the webhook."""
    home.mkdir(mode=0o700)
    file = home / "notify.yaml"
    file.write_text(
        f"- {{name: oncall, to: '{hook.url}/{TOKEN}'}}\n"
        f"- {{name: nlp, to: '{hook.url}/{TOKEN}', team: nlp, severity: red}}\n"
    )
    return file


def test_without_a_notify_file_it_says_where_to_write_one(home: Path, call: Call) -> None:
    for command in ("test", "retry"):
        result = call("alerts", command)
        assert result.exit_code == 2
        assert f"to {home / 'notify.yaml'}; docs/health.md has the rest" in result.stderr


def test_a_test_message_goes_to_each_entry_or_to_one_and_nothing_is_recorded(
    notify_file: Path, hook: Hook, call: Call
) -> None:
    assert call("alerts", "test").stdout == "oncall: sent\nnlp: sent\n"
    assert call("alerts", "test", "--to", "nlp").stdout == "nlp: sent\n"
    assert [each["event"] for each in hook.got] == ["test"] * 3
    assert len(set(hook.keys)) == 2
    assert [path.name for path in notify_file.parent.iterdir()] == ["notify.yaml"]
    unknown = call("alerts", "test", "--to", "oncal")
    assert unknown.exit_code == 2
    assert "did you mean oncall? There are: oncall, nlp." in unknown.stderr


def test_one_that_is_not_taken_is_bad_news_and_shows_no_token(
    notify_file: Path, hook: Hook, call: Call
) -> None:
    hook.status, hook.words = 403, f"no such hook: {TOKEN}"
    result = call("alerts", "test")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == (
        "oncall: not sent. It answers HTTP 403 Forbidden: no such hook: [hidden]."
    )
    answer = json.loads(call("alerts", "test", "--to", "nlp", "--json").stdout)
    assert [each["to"] for each in answer] == ["nlp"]
    assert answer[0]["problem"].startswith("It answers HTTP 403")


def test_a_wrong_file_is_refused_with_its_lines(notify_file: Path, call: Call) -> None:
    notify_file.write_text("- {name: oncall, to: 'htps:x'}\n")
    result = call("alerts", "test")
    assert result.exit_code == 2
    assert "line 1: notify[0].to: it is not a way to send a message" in result.stderr


def test_what_reached_nobody_is_listed_and_sent_again(
    notify_file: Path, hook: Hook, call: Call
) -> None:
    store = build(Settings.from_environment()).store
    message = Message(
        key="runs/r-1/5",
        event=Event.ALERT,
        at=BEGIN,
        sentence="The save of step 40 failed.",
        command="tracks explain r-1",
        rule="save_failed",
        severity=RED,
        run_id="r-1",
    )
    letter = Letter(
        channel="oncall",
        message=message,
        next_at=BEGIN + timedelta(hours=5),
        tries=TRIES_MAX,
        problem="There was no answer within 15 s.",
    )
    store.put(f"{DEAD}oncall/{letter.name}.json", canonical_json(letter.to_json()))
    listed = call("alerts").stdout
    assert "1 message reached nobody; `tracks alerts retry` sends again:" in listed
    assert (
        "red: save_failed in r-1 → oncall, tried 12 times: There was no answer within 15 s."
        in listed
    )
    hook.status = 500
    again = call("alerts", "retry", "--to", "oncall")
    assert again.exit_code == 1
    assert "oncall: It answers HTTP 500" in again.stdout
    assert "1 message failed and will be tried again:" in call("alerts").stdout
    hook.status = 200
    assert call("alerts", "retry").stdout == (
        "1 message had reached nobody.\noncall: runs/r-1/5 is sent\n"
    )
    assert hook.keys == ["runs/r-1/5"]
    assert "reached nobody" not in call("alerts").stdout
