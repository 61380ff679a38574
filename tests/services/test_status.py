"""How runs stand, and what those that wait are waiting for."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.core import names
from tracks_dagster.core.bodies import Alert, PromotionRule
from tracks_dagster.core.errors import UnknownRun
from tracks_dagster.core.ports import Ledger
from tracks_dagster.core.records import Kind, canonical_json, format_time
from tracks_dagster.core.track import log_key
from tracks_dagster.services.journals import read_tail
from tracks_dagster.services.silence import SILENT_S_MIN
from tracks_dagster.services.status import RunLine, read_status
from tracks_dagster.services.tracks import Tracks

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
        "Its track does not hold: `tracks fsck` tells what is wrong and what to do. The ledger says: "
        "Attempt 1 is training from step 0 on."
    )
    assert found["broken"].waiting_for is None


def test_a_run_asked_for_alone_does_not_hide_that_it_lost_records(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    history = History(RUN_ID).declare().open().place().restore()
    history.write_to(store)
    tracks.project(history.name)
    assert "does not hold" not in line(tracks, ledger).why
    del store.objects[log_key(history.name, 2)]
    fresh = Tracks(store, now=tracks.now, new_uid=tracks.new_uid, project=tracks.project)
    assert line(fresh, ledger).why.startswith("Its track does not hold: `tracks fsck` tells")


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
    heard = read_tail(tracks.store, RUN_ID, 1, launch_id, steps_max=1).last_line_at
    assert heard is not None
    clock.at = heard + timedelta(seconds=SILENT_S_MIN - 1)
    assert line(tracks, ledger).silence is None
    clock.advance(1)
    told = str(line(tracks, ledger).silence)
    assert f"for 10 min, since {format_time(heard)[:19]}Z: `tracks triage {RUN_ID}`" in told
    assert [each.silence for each in read_status(tracks, ledger)] == [told]  # by the ledger
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
