"""Which records say what to whom: pure tables, and no secret in any of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.bodies import BEGIN
from tests.histories import History
from tests.pools import PoolHistory
from tracks_dagster.track.bodies import Alert, AlertCleared
from tracks_dagster.track.records import Kind
from tracks_dagster.track.text.redact import redact
from tracks_dagster.wings.watch.health import rules
from tracks_dagster.wings.watch.notifying.delivery import (
    PAUSE_S,
    PAUSE_S_MAX,
    TRIES_MAX,
    Channel,
    Letter,
    wants,
)
from tracks_dagster.wings.watch.notifying.messages import (
    RED,
    TEXT_CHARACTERS_MAX,
    YELLOW,
    Event,
    Message,
    message_of,
)


def messages(history: History) -> list[Message]:
    """The messages of a whole run, in order."""
    found = (
        message_of(
            history.state,
            each,
            links_of=lambda run, number: (f"board/{run.run_id}", f"ui/{run.run_id}/{number}"),
            clean=redact,
        )
        for each in history.records
    )
    return [each for each in found if each is not None]


def alert(rule: str = "save_failed", text: str = "It is slow.", **more: object) -> Alert:
    return Alert(rule=rule, text=text, **more)  # type: ignore[arg-type]


def raised(body: Alert, *, attempt_id: int | None = 1) -> History:
    history = History("r-1").declare().open().supervise().place().restore()
    return history.add(Kind.ALERT, body, attempt_id=attempt_id)


def test_an_alert_is_a_sentence_with_its_numbers_runbook_command_and_links() -> None:
    body = alert(
        "slow_rank",
        "Rank 5 is slow: compute.",
        severity="red",
        data={
            "about": ["rank 5"],
            "share": 0.50012345,
            "steps": 20,
            "command": "tracks logs r-1",
            "advice": "retune; …",
        },
    )
    [message] = messages(raised(body))
    assert message.text == (
        "red: slow_rank in r-1/a01 (ann, research)\n"
        "Rank 5 is slow: compute.\n"
        "share 0.500123, steps 20\n"
        "Advice: retune; …\n"
        "Runbook: docs/runbooks/slow_rank.md\n"
        "Begin with: tracks logs r-1\n"
        "board/r-1\n"
        "ui/r-1/1"
    )
    assert (message.key, message.team, message.severity) == ("runs/r-1/5", "research", RED)
    assert Message.from_json(message.to_json()) == message


def test_a_message_of_an_older_version_keeps_its_link() -> None:
    older = {name: value for name, value in ALERT.to_json().items() if name != "links"}
    assert Message.from_json({**older, "link": "ui/r-1/1"}).links == ("ui/r-1/1",)
    assert Message.from_json({**older, "link": ""}).links == ()


def test_an_alert_of_an_older_version_has_the_severity_and_command_of_its_rule() -> None:
    [known], [unknown] = messages(raised(alert("no_gang"))), messages(raised(alert("slow-saves")))
    assert (known.severity, unknown.severity) == (RED, YELLOW)
    assert known.command == rules.command_of("no_gang", "r-1")
    assert unknown.command == "tracks explain r-1"
    assert unknown.runbook == ""


def test_an_alert_of_a_machine_is_of_no_run_and_of_no_team() -> None:
    pool = PoolHistory("local").strike("node-1").add(Kind.ALERT, alert("device_unheld")).state
    message = message_of(pool, pool.head, links_of=lambda run, number: ("ui",), clean=redact)
    assert message is not None
    assert (message.key, message.about) == ("pools/local/1", "pools/local")
    assert (message.run_id, message.team, message.links) == (None, None, ())
    assert message.command == rules.command_of("device_unheld", None)


def test_the_end_of_an_episode_says_how_it_began() -> None:
    history = raised(alert())
    cleared = AlertCleared(rule="save_failed", alert_seq=5, why="Step 40 was committed.")
    history.add(Kind.ALERT_CLEARED, cleared, attempt_id=1)
    _, message = messages(history)
    assert message.event is Event.CLEARED
    assert message.sentence == "Step 40 was committed. It began with: It is slow."


def promoted(*, is_made: bool) -> History:
    history = History("r-1").declare().open().supervise().place().restore().commit(40).end()
    history.open_eval(history.state.checkpoints[-1].ref)
    opened = history.state.evals[-1].opened
    return history.end_eval(opened).finish().promote(opened, promoted=is_made)


@pytest.mark.parametrize(
    ("history", "event", "words", "command"),
    [
        (
            History("r-1").declare().open().end("code_error").refuse(),
            Event.REFUSED,
            "The budget is used up. Look at the traceback",
            "tracks explain r-1",
        ),
        (
            History("r-1").declare().open().supervise().place().end("user_cancelled"),
            Event.WAITING,
            "as a person asked",
            "tracks explain r-1",
        ),
        (
            promoted(is_made=True),
            Event.PROMOTED,
            "r-1@40 is best now",
            "tracks checkpoints list r-1",
        ),
        (
            promoted(is_made=False),
            Event.WAITING,
            "r-1@40 was not made best, and only a person can",
            'tracks promote r-1@40 --alias best --why "…"',
        ),
    ],
)
def test_what_needs_a_person_or_is_good_news_says_so(
    history: History, event: Event, words: str, command: str
) -> None:
    message = messages(history)[-1]
    assert message.event is event
    assert words in message.sentence
    assert message.command == command


def test_a_run_says_once_that_it_is_finished_and_nothing_of_its_other_records() -> None:
    found = messages(promoted(is_made=True))
    assert [each.event for each in found] == [Event.FINISHED, Event.PROMOTED]


def test_of_an_end_that_another_attempt_follows_nobody_is_alerted() -> None:
    history = History("r-1").declare().open().supervise().place().end("user_cancelled")
    assert messages(history.open(cause="manual")) == []


ALERT = Message(
    key="runs/r-1/5",
    event=Event.ALERT,
    at=BEGIN,
    sentence="It is slow.",
    command="tracks explain r-1",
    rule="loss_spike",
    severity=YELLOW,
    run_id="r-1",
    team="nlp",
)
REFUSED = replace(ALERT, event=Event.REFUSED, rule=None, severity=None)
ALL = Channel(name="all", to="https://example.com/x")


@pytest.mark.parametrize(
    ("channel", "message", "is_wanted"),
    [
        (ALL, ALERT, True),
        (replace(ALL, rules=("loss_*",)), ALERT, True),
        (replace(ALL, rules=("save_*", "Loss_*")), ALERT, False),
        (replace(ALL, teams=("nlp",)), ALERT, True),
        (replace(ALL, teams=("vision", "n*")), ALERT, True),
        (replace(ALL, teams=("vision",)), ALERT, False),
        (replace(ALL, teams=("vision",)), replace(ALERT, team=None), False),
        (replace(ALL, severity=RED), ALERT, False),
        (replace(ALL, severity=RED), replace(ALERT, severity=RED), True),
        (ALL, REFUSED, False),
        (replace(ALL, also=frozenset({Event.REFUSED})), REFUSED, True),
        (replace(ALL, also=frozenset({Event.REFUSED}), severity=RED), REFUSED, True),
        (replace(ALL, also=frozenset({Event.REFUSED}), teams=("vision",)), REFUSED, False),
        (replace(ALL, rules=("x",), teams=("x",)), replace(REFUSED, event=Event.TEST), True),
    ],
)
def test_a_channel_gets_what_its_rule_team_severity_and_events_ask_for(
    channel: Channel, message: Message, is_wanted: bool
) -> None:
    assert wants(channel, message) is is_wanted


def test_no_secret_and_no_control_character_leaves_in_a_message_and_a_long_one_is_cut() -> None:
    body = alert(
        text=f"s3://ann:hunter22secret@bucket failed\x1b[2J {'x' * 3000}",
        data={"url": "postgresql://u:hunter22secret@db/x", "reason": "a\u202eb"},
    )
    [message] = messages(raised(body))
    whole = str(message.to_json())
    assert "hunter22secret" not in whole
    assert "\x1b" not in whole
    assert "\u202e" not in whole
    assert len(message.sentence) == TEXT_CHARACTERS_MAX + 1


def test_a_title_is_one_line_whatever_a_rule_is_called() -> None:
    [message] = messages(raised(alert("a\r\nBcc: x@example.com")))
    assert "\n" not in message.title
    assert "\r" not in message.title


def test_a_letter_that_fails_waits_twice_as_long_each_time_and_is_dead_after_twelve() -> None:
    letter = Letter(channel="all", message=ALERT, next_at=BEGIN)
    pauses, now = [], BEGIN
    while not letter.is_dead:
        letter = letter.failed("HTTP 500", now)
        pauses.append((letter.next_at - now).total_seconds())
        assert not letter.is_due(letter.next_at - timedelta(seconds=1))
        now = letter.next_at
        assert letter.is_due(now)
    assert pauses[:4] == [PAUSE_S, 60.0, 120.0, 240.0]
    assert (len(pauses), pauses[-1]) == (TRIES_MAX, PAUSE_S_MAX)
    assert Letter.from_json(letter.to_json()) == letter


def test_after_a_clock_was_set_back_a_letter_does_not_wait_for_the_old_time() -> None:
    letter = Letter(channel="all", message=ALERT, next_at=BEGIN).failed("HTTP 500", BEGIN)
    assert letter.is_due(BEGIN - timedelta(hours=5))
