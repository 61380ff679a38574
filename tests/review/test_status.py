"""How runs stand, and what those that wait are waiting for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest

from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tests.reports import render_report
from tests.stories import RUN_ID, Story
from tracks_dagster.attempts.effects.heartbeat import write_launches
from tracks_dagster.attempts.launch import PendingLaunch
from tracks_dagster.attempts.pace import SILENT_S_MIN
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.effects.explain.run import ExplainContext, explain_attempt, explain_run
from tracks_dagster.review.effects.status import RunLine, read_status, reads_what_waits
from tracks_dagster.review.explain.text import attempt_text, run_text
from tracks_dagster.stores.journals import read_tail
from tracks_dagster.track import names
from tracks_dagster.track.bodies import Alert, PromotionRule
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.names import AttemptRef, attempt_key
from tracks_dagster.track.records import Kind, canonical_json, format_time
from tracks_dagster.track.states.accounting import newest_step
from tracks_dagster.track.track import log_key

SENSORS = (
    names.RETRY_INFRASTRUCTURE,
    names.RETRY_NUMERICS,
    names.RETRY_OOM,
    names.RETRY_PREEMPTED,
    names.WATCH_ATTEMPTS,
    names.LAUNCH_ATTEMPTS,
    names.RUN_EVALS,
)


def beat(store: FakeObjectStore, clock: FakeClock, **sensors: bool) -> None:
    """Let the daemon tick now, with these sensors switched as given."""
    heartbeat = {"at": format_time(clock()), "sensors": {**dict.fromkeys(SENSORS, True), **sensors}}
    store.put("daemon/heartbeat.json", canonical_json(heartbeat))


def line(tracks: Tracks, ledger: Ledger) -> RunLine:
    [found] = read_status(tracks, ledger, run_id=RUN_ID)
    return found


def test_runs_are_found_in_the_ledger_and_read_from_their_tracks(
    story: Story, tracks: Tracks, ledger: Ledger
) -> None:
    story.whole()
    assert read_status(tracks, ledger) == []  # nothing was projected yet
    tracks.project(story.history.name)
    [found] = read_status(tracks, ledger)
    assert (found.run_id, found.state, found.attempt_id) == (RUN_ID, "succeeded", 3)
    assert (found.step, found.loss, found.promoted_to) == (40, 5 / 40, "best")
    assert found.waiting_for is None


def test_every_page_has_a_run_at_the_step_that_its_newest_attempt_is_at(
    story: Story, tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    """What an attempt ran beyond its checkpoint is lost, though its journal still has it."""
    story.attempt("preempted", last_step=23, commits=(10, 20))
    longer = {**story.history.state.declared.config, "steps": 60}
    story.history.open(config=longer).write_to(store)
    tracks.project(story.history.name)
    found = [line(tracks, ledger), *read_status(tracks, ledger)]
    assert [(each.step, each.steps, each.loss) for each in found] == [(20, 60, None)] * 2
    [row] = ledger.query("select step, max_steps from training_runs", {})
    assert (row["step"], row["max_steps"]) == (20, 60)
    assert newest_step(story.history.state) == 20


@pytest.mark.parametrize("harm", ["edited", "lost", "gone"])
def test_a_track_that_does_not_hold_hides_no_other_run(
    harm: str, tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    for run_id in ("broken", "sound"):
        history = History(run_id).declare().open().place().restore()
        history.write_to(store)
        tracks.project(history.name)
    keys = [key for key in store.objects if key.startswith("runs/broken/log/")]
    for key in keys if harm == "gone" else keys[2:3]:
        del store.objects[key]
    if harm == "edited":
        store.objects[keys[2]] = b"{"
    found = {line.run_id: line for line in read_status(tracks, ledger)}
    assert found["sound"].why == "Attempt 1 is training from step 0 on."
    assert found["broken"].state == "running"
    assert found["broken"].why == (
        "Its track is broken: `tracks fsck` says what is wrong and what to do. The ledger says: "
        "Attempt 1 is training from step 0 on."
    )
    assert found["broken"].waiting_for is None


def test_a_run_asked_for_alone_does_not_hide_that_it_lost_records(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    history = History(RUN_ID).declare().open().place().restore()
    history.write_to(store)
    tracks.project(history.name)
    assert "is broken" not in line(tracks, ledger).why
    del store.objects[log_key(history.name, 2)]
    fresh = Tracks(store, now=tracks.now, new_uid=tracks.new_uid, project=tracks.project)
    assert line(fresh, ledger).why.startswith("Its track is broken: `tracks fsck` says")


def test_a_run_that_a_storm_holds_up_says_until_when_at_the_latest(
    story: Story, tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    history = story.history.open().place().end("preempted")
    latest = format_time(history.at + timedelta(minutes=15))
    data = {"pool": "local/cpu", "latest_at": latest}
    alert = Alert(rule=names.ALERT_POOL_STORM, text="A storm.", data=data)
    history.add(Kind.ALERT, alert).write_to(store)
    clock.at = history.at
    beat(store, clock)
    waiting = line(tracks, ledger).waiting_for or ""
    assert waiting.startswith("waiting: a storm in pool local/cpu pauses its retries")
    assert latest in waiting
    clock.advance(15 * 60)
    beat(store, clock)
    assert line(tracks, ledger).waiting_for is None


@pytest.mark.parametrize(
    ("reason", "sensor"),
    [
        ("gpu_oom", names.RETRY_OOM),
        ("preempted", names.RETRY_PREEMPTED),
        ("nan_loss", names.RETRY_NUMERICS),
        ("hang", names.RETRY_INFRASTRUCTURE),
        ("unknown", names.WATCH_ATTEMPTS),
        ("completed", names.RUN_EVALS),  # an eval is required and none was done
    ],
)
def test_a_run_whose_sensor_is_off_says_which(
    story: Story,
    tracks: Tracks,
    ledger: Ledger,
    store: FakeObjectStore,
    clock: FakeClock,
    reason: str,
    sensor: str,
) -> None:
    story.attempt(reason, last_step=12, commits=(10,))
    story.write_tracks()
    beat(store, clock)
    assert line(tracks, ledger).waiting_for is None
    beat(store, clock, **{sensor: False})
    assert line(tracks, ledger).waiting_for == f"waiting: sensor {sensor} is off"
    assert line(tracks, ledger).state == "waiting"


def test_a_run_whose_promotion_is_due_waits_for_the_sensor_that_decides_it(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    rule = PromotionRule(
        alias="best", suite="heldout-loss", metric="loss", direction="min", threshold=9.0
    )
    history = History(RUN_ID).declare(evals=(), promotion=rule).open().supervise().place()
    history.restore().commit(40).end("completed", last_step=40).write_to(store)
    beat(store, clock, run_evals=False)
    assert line(tracks, ledger).waiting_for == "waiting: sensor run_evals is off"


def test_a_gang_that_works_waits_for_nobody(story: Story, tracks: Tracks, ledger: Ledger) -> None:
    story.begin()
    story.write_tracks()
    found = line(tracks, ledger)
    assert (found.state, found.waiting_for) == ("running", None)


def test_of_an_attempt_that_fell_silent_it_is_said_since_when_and_what_tells_more(
    story: Story, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    story.begin()
    story.ship(range(1, 4))
    story.write_tracks()
    tracks.project(story.history.name)
    launch_id = story.history.state.attempts[0].placed.launch_id  # type: ignore[union-attr]
    heard = read_tail(tracks.store, AttemptRef(RUN_ID, 1), launch_id, steps_max=1).last_line_at
    assert heard is not None
    clock.at = heard + timedelta(seconds=SILENT_S_MIN - 1)
    assert line(tracks, ledger).silence is None
    clock.advance(1)
    result = str(line(tracks, ledger).silence)
    assert f"for 10 min, since {format_time(heard)[:19]}Z: `tracks triage {RUN_ID}`" in result
    assert [each.silence for each in read_status(tracks, ledger)] == [result]  # by the ledger
    story.history.end("preempted", last_step=3)
    story.write_tracks()
    assert line(tracks, ledger).silence is None


def test_a_drained_run_waits_for_a_person(story: Story, tracks: Tracks, ledger: Ledger) -> None:
    story.attempt("user_cancelled", last_step=12, commits=(12,))
    story.write_tracks()
    found = line(tracks, ledger)
    assert (found.state, found.waiting_for) == ("waiting", None)
    assert "tracks retry" in found.why


def test_an_attempt_that_nobody_launches_waits_for_the_launching_sensor(
    story: Story, tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    story.history.open()
    story.write_tracks()
    beat(store, clock, launch_attempts=False)
    assert line(tracks, ledger).waiting_for == "waiting: sensor launch_attempts is off"


def test_without_a_daemon_the_run_waits_for_one(
    story: Story, tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    story.attempt("preempted", last_step=12, commits=(10,))
    story.write_tracks()
    assert "no daemon has looked" in str(line(tracks, ledger).waiting_for)
    beat(store, clock)
    clock.advance(121)
    assert "no daemon has ticked since 2026-01-31T02:00:00" in str(line(tracks, ledger).waiting_for)


def test_a_finished_run_waits_for_nobody(story: Story, tracks: Tracks, ledger: Ledger) -> None:
    story.whole()
    assert line(tracks, ledger).waiting_for is None


def test_a_run_that_does_not_exist_is_named(tracks: Tracks, ledger: Ledger) -> None:
    with pytest.raises(UnknownRun, match="no-such-run"):
        read_status(tracks, ledger, run_id="no-such-run")


MET = "the code server did not answer in 300 s; see daemon.log in /home/dagster"


@pytest.mark.parametrize(
    ("launch", "age_s", "words"),
    [
        # asked for just now: nothing is late
        ({"failed_count": 0, "asked_s_ago": 20}, 0, None),
        (
            {"failed_count": 0, "asked_s_ago": 45},
            0,
            "waiting: its launch was asked for 45 s ago and has not begun",
        ),
        (
            {"failed_count": 4, "why": MET, "asked_s_ago": 20},
            0,
            f"waiting: 4 launches failed: {MET}; the next one was asked for 20 s ago",
        ),
        (
            {"failed_count": 1, "why": MET, "next_s": 5},
            0,
            f"waiting: 1 launch failed: {MET}; the next one is asked for at 2026-01-05T12:00:05Z",
        ),
        (
            {"failed_count": 20, "why": MET},
            0,
            f"waiting: 20 launches failed: {MET}; another one is asked for once a person has deleted "
            "these in Dagster's UI",
        ),
        # nobody asked again when it was time: no launch is ever asked for in the past
        (
            {"failed_count": 1, "why": "see Dagster run 0badcafe", "next_s": -180},
            0,
            "waiting: 1 launch failed: see Dagster run 0badcafe; the next one has been due for 3 min",
        ),
        # in the queue of this machine's devices: the queue's own sentence
        (
            {"failed_count": 0, "why": "0 of 2 devices free; after gpt-7/a02", "waits": True},
            0,
            "waiting: 0 of 2 devices free; after gpt-7/a02",
        ),
        # the code server that would tell more stands still: within a minute that shows
        (
            {"failed_count": 4, "why": MET},
            960,
            f"waiting: 4 launches failed: {MET}; another one is asked for once a person has deleted "
            "these in Dagster's UI; no daemon has ticked since 2026-01-05T11:44:00Z (16 min ago): "
            "either none runs, and `tracks up` starts one, or its code server does not answer or has "
            "no share of the machine",
        ),
        (None, 51, "waiting: no daemon has ticked since 2026-01-05T11:59:09Z (51 s ago)"),
        (None, 49, None),
    ],
)
def test_a_launch_that_does_not_come_is_reported_everywhere(
    launch: dict[str, Any] | None,
    age_s: float,
    words: str | None,
    store: FakeObjectStore,
    tracks: Tracks,
    ledger: Ledger,
    clock: FakeClock,
) -> None:
    history = History(RUN_ID).declare().open()
    history.write_to(store)
    clock.at = datetime(2026, 1, 5, 12, tzinfo=UTC)
    if launch is not None:
        given = dict(launch)
        asked, following = given.pop("asked_s_ago", None), given.pop("next_s", None)
        pending = PendingLaunch(
            **{"key": attempt_key(RUN_ID, 1), "why": "", **given},
            asked_at=None if asked is None else format_time(clock() - timedelta(seconds=asked)),
            next_at=None
            if following is None
            else format_time(clock() + timedelta(seconds=following)),
        )
        other = PendingLaunch(key="other/a01", failed_count=9, why="not of this run")
        write_launches(store, names.LAUNCH_ATTEMPTS, [other, pending])
    clock.advance(-age_s)
    beat(store, clock)
    clock.advance(age_s)
    found = line(tracks, ledger)
    assert (found.waiting_for or "").startswith(words or "")
    assert (found.waiting_for is None) is (words is None)
    around = ExplainContext(waits=reads_what_waits(tracks))
    for result in (
        run_text(explain_run(tracks, RUN_ID, around)),
        attempt_text(explain_attempt(tracks, RUN_ID, 1, around)),
        unescape(
            render_report(tracks, RUN_ID, around).replace("<code>", "`").replace("</code>", "`")
        ),
    ):
        assert (found.waiting_for or "") in result
        assert ("waiting: " in result) is (words is not None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"failed_count": 1, "why": MET},
            f"waiting: eval heldout-loss@40: 1 launch failed: {MET};",
        ),
        (
            {"waits": True, "why": "0 of 1 device free"},
            "waiting: eval heldout-loss@40: 0 of 1 device",
        ),
    ],
)
def test_a_launch_that_is_awaited_is_of_a_named_eval(
    changes: dict[str, Any],
    words: str,
    store: FakeObjectStore,
    tracks: Tracks,
    ledger: Ledger,
    clock: FakeClock,
) -> None:
    history = History(RUN_ID).declare().open().supervise().place().restore().commit(40)
    history.end("completed", last_step=40)
    history.open_eval(history.state.checkpoints[-1].ref).write_to(store)
    opened = history.state.evals[-1].opened
    key = names.eval_attempt_key(RUN_ID, opened.eval_id, opened.number)
    write_launches(
        store, names.RUN_EVALS, [PendingLaunch(key=key, **{"failed_count": 0, **changes})]
    )
    beat(store, clock)
    assert str(line(tracks, ledger).waiting_for).startswith(words)


def test_what_the_daemon_left_is_not_said_of_a_run_that_trains(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    History(RUN_ID).declare().open().supervise().place().restore().write_to(store)
    assert line(tracks, ledger).waiting_for is None  # no daemon ever ticked, and a gang works


def test_a_tick_that_has_nothing_to_tell_of_launches_writes_nothing(store: FakeObjectStore) -> None:
    failed = PendingLaunch(key="k", failed_count=1, why="")
    for launches in ([], [failed], [failed]):
        write_launches(store, names.LAUNCH_ATTEMPTS, launches)
    assert [method for method, _ in store.calls].count("put") == 1
    write_launches(store, names.LAUNCH_ATTEMPTS, [])  # it came
    assert [method for method, _ in store.calls].count("put") == 2


def test_a_finished_run_without_its_journals_has_the_steps_that_its_records_prove(
    story: Story, tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    story.whole()
    for key in [key for key in store.objects if "/journal/" in key]:
        store.delete(key)
    tracks.project(story.history.name)
    assert [(each.step, each.steps) for each in read_status(tracks, ledger)] == [(40, 40)]
    assert line(tracks, ledger).step == 40


def exhausted(store: FakeObjectStore) -> History:
    """A run with all its steps whose eval failed as often as it is tried, 3 times."""
    history = History(RUN_ID).declare().open().supervise().place().restore().commit(40)
    history.end("completed", last_step=40)
    for _ in range(3):
        opened = history.open_eval(history.state.checkpoints[-1].ref).state.evals[-1].opened
        history.end_eval(opened, "evaluator_error", message="KeyError: 'width'")
    history.write_to(store)
    return history


def test_a_run_whose_eval_failed_as_often_as_it_is_tried_waits_for_a_person_in_words(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    history = exhausted(store)
    beat(store, clock)
    found = line(tracks, ledger)
    assert found.state == "waiting"
    words = str(found.waiting_for)
    assert words.startswith("waiting for a person: heldout-loss@40: failed 3 times, last: KeyError")
    assert f"tracks waive {RUN_ID} heldout-loss" in words
    around = ExplainContext(waits=reads_what_waits(tracks))
    assert explain_attempt(tracks, RUN_ID, 1, around).what_to_do in f"{words}."
    [more] = read_status(tracks, ledger, run_id=RUN_ID, tries=lambda: 4)
    assert (more.state, more.waiting_for) == ("running", None)
    history.stop("stop").write_to(store)
    assert line(tracks, ledger).waiting_for is None  # the stop lets the eval go


def test_the_policy_is_not_read_for_a_run_no_eval_of_which_was_tried(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    def tries() -> int:
        raise AssertionError("the policy is not needed")

    history = History(RUN_ID).declare().open().supervise().place().restore().commit(40)
    history.end("completed", last_step=40).write_to(store)
    beat(store, clock)
    [found] = read_status(tracks, ledger, run_id=RUN_ID, tries=tries)
    assert found.waiting_for is None
