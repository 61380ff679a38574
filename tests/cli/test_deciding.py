"""The commands by which a person decides something: each appends a record and says what follows."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.cli import stop
from tracks_dagster.settings import Settings
from tracks_dagster.track.records import Json, Kind, Record
from tracks_dagster.wiring import build


@pytest.fixture
def open_story(home: object) -> Story:
    """A run whose second attempt is open."""
    app = build(Settings.from_environment())
    story = Story(app.store)
    story.attempt("preempted", last_step=23, commits=(10, 20))
    story.begin()
    story.write_tracks()
    app.projector.scan()
    return story


@pytest.fixture
def refused_story(home: object) -> Story:
    """A run that was refused a retry."""
    app = build(Settings.from_environment())
    story = Story(app.store).refused()
    app.projector.scan()
    return story


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("stop", RUN_ID), {"run_id": RUN_ID, "mode": "stop"}),
        (("drain", RUN_ID), {"run_id": RUN_ID, "mode": "drain"}),
        (("waive", RUN_ID, "heldout-loss"), {"run_id": RUN_ID, "suite": "heldout-loss"}),
        (("quarantine", f"attempt:{RUN_ID}/a01"), {"source": f"attempt:{RUN_ID}/a01"}),
        (("checkpoints", "pin", f"{RUN_ID}@20"), {"status": "pinned"}),
        (("reclassify", f"{RUN_ID}/a01", "--as", "node_failure"), {"now": "node_failure"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_decision_is_answered_as_json(
    arguments: tuple[str, ...], facts: dict[str, Json], open_story: Story, call: Call
) -> None:
    answer = json.loads(call(*arguments, "--why", "make room", "--json").stdout)
    assert {name: answer[name] for name in facts} == facts


@pytest.mark.parametrize("command", ["drain", "stop"])
def test_a_decision_that_does_not_get_through_ends_in_time_and_says_what_it_waited_for(
    command: str, open_story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "request_stop", lambda *_, **__: time.sleep(600))
    monkeypatch.setattr(stop, "NOTICE_S", 0.02)
    monkeypatch.setattr(stop, "ANSWER_S_MAX", 0.05)
    result = call(command, RUN_ID, "--why", "make room")
    assert result.exit_code == 1
    assert f"Cannot {command} {RUN_ID} within 0.05 s: waited for " in result.stderr
    assert f"`tracks explain {RUN_ID}` shows it" in result.stderr
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_a_command_waits_for_is_the_room_that_its_process_is_in() -> None:
    inside = {"__name__": "tracks_dagster.ledger.effects.database.sql_ledger", "sys": sys}
    exec("def where(): return sys._getframe()", inside)
    assert stop._waits_for(inside["where"]()) == "the ledger's database"  # type: ignore[operator]
    assert stop._waits_for(sys._getframe()).startswith("this machine")


def test_a_retry_and_a_note_answer_where_they_stand(refused_story: Story, call: Call) -> None:
    noted = json.loads(call("note", f"{RUN_ID}/a01", "looks bad", "--json").stdout)
    assert noted == {"run_id": RUN_ID, "attempt_id": 1, "seq": newest_record().seq}
    change = ("--why", "mended", "--set", "seed=8")
    retried = json.loads(call("retry", RUN_ID, *change, "--json").stdout)
    assert retried == {"run_id": RUN_ID, "attempt_id": 2, "seq": newest_record().seq}


def test_a_promotion_and_a_report_answer_as_json(story: Story, call: Call, home: Path) -> None:
    target = ("promote", f"{RUN_ID}@40", "--alias", "best", "--why", "it is", "--json")
    assert json.loads(call(*target).stdout)["alias"] == "best"
    path = str(home / "reports" / f"{RUN_ID}.html")
    written = json.loads(call("report", RUN_ID, "--json").stdout)
    assert written == {"run_id": RUN_ID, "path": path}


def newest_record() -> Record:
    return build(Settings.from_environment()).tracks.records(f"runs/{RUN_ID}")[-1]


@pytest.mark.parametrize("mode", ["stop", "drain"])
def test_a_stop_is_requested_once_however_often_it_is_asked(
    mode: str, open_story: Story, call: Call
) -> None:
    for _ in range(2):
        assert call(mode, RUN_ID, "--why", "make room", "--by", "ann").exit_code == 0
    record = newest_record()
    assert record.seq == len(open_story.history.records)
    assert record.kind is Kind.STOP_REQUESTED
    assert record.body == {"by": "ann", "why": "make room", "mode": mode}


def test_a_drained_attempt_can_still_be_stopped(open_story: Story, call: Call) -> None:
    call("drain", RUN_ID, "--why", "make room")
    assert call("stop", RUN_ID, "--why", "no longer needed").exit_code == 0
    assert newest_record().body["mode"] == "stop"


def test_a_run_without_an_open_attempt_can_be_stopped_but_not_drained(
    refused_story: Story, call: Call
) -> None:
    drained = call("drain", RUN_ID, "--why", "make room")
    assert drained.exit_code == 2
    assert f"`tracks stop {RUN_ID}`" in drained.stderr
    assert call("stop", RUN_ID, "--why", "give up").exit_code == 0


def test_a_finished_run_cannot_be_stopped(story: Story, call: Call) -> None:
    stopped = call("stop", RUN_ID, "--why", "too late")
    assert stopped.exit_code == 2
    assert "finished already (step_budget)" in stopped.stderr


def test_a_refused_run_is_retried_by_a_person_with_a_change(
    refused_story: Story, call: Call
) -> None:
    assert call("retry", RUN_ID, "--why", "the bug is fixed", "--set", "seed=8").exit_code == 0
    record = newest_record()
    assert (record.kind, record.attempt_id) == (Kind.ATTEMPT_OPENED, 2)
    assert record.body["config"]["seed"] == 8


def test_a_note_stands_in_the_track(story: Story, call: Call) -> None:
    assert call("note", RUN_ID, "looks good", "--by", "ann").exit_code == 0
    assert newest_record().body["text"] == "looks good"


def test_a_person_promotes_the_final_checkpoint(story: Story, call: Call) -> None:
    done = call("promote", f"{RUN_ID}@40", "--alias", "best", "--why", "it is", "--by", "ann")
    assert done.exit_code == 0, done.stderr
    record = newest_record()
    assert record.kind is Kind.PROMOTION_DECIDED
    assert record.body["decided_by"] == "ann"


def test_a_checkpoint_without_an_eval_is_not_promoted(story: Story, call: Call) -> None:
    before = newest_record()
    assert call("promote", f"{RUN_ID}@20", "--why", "it is old").exit_code == 2
    assert newest_record() == before


def test_a_required_eval_is_let_go_in_words(open_story: Story, call: Call) -> None:
    assert call("waive", RUN_ID, "heldout-loss", "--why", "the suite is broken").exit_code == 0
    assert newest_record().kind is Kind.EVAL_WAIVED
    assert call("waive", RUN_ID, "no-such-suite", "--why", "x").exit_code == 2
