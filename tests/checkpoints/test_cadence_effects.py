"""What the advice rests on, measured from tracks, journals and ledger."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.checkpoints.effects.cadence import advise_cadence
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import CheckpointCadence, ComputeRequest, ConfigChange
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.names import run_track
from tracks_dagster.track.states.run_state import RunState

BIGGER = ConfigChange(key="compute.device_class", before="a", after="b", why="more memory")


def lived(history: History, seconds: float, reason: str, **opened: object) -> History:
    """Add an attempt that is placed, and ends for `reason` after this many seconds."""
    history.open(**opened).supervise().place().restore()
    placed_at = history.state.attempts[-1].placed_at
    assert placed_at is not None
    history.at = placed_at + timedelta(seconds=seconds)
    return history.end(reason, last_step=1)


def stored(history: History, tracks: Tracks) -> RunState:
    """Write a history into the store and the ledger."""
    history.write_to(tracks.store)
    tracks.project(run_track(history.run_id))
    return history.state


def test_the_pool_is_measured_over_the_attempts_of_all_runs(tracks: Tracks, ledger: Ledger) -> None:
    one, two = History("one").declare(), History("two").declare()
    lived(one, 600, "preempted")
    lived(one, 1200, "gpu_oom")
    lived(two, 1800, "node_failure")
    for history in (one, two):
        stored(history, tracks)
    pool = advise_cadence(tracks, ledger, "one").pool
    assert (pool.launcher, pool.device_class) == ("local", "cpu")
    assert pool.exposure_s == 3600.0
    assert pool.interruptions == {"node_failure": 1, "preempted": 1}
    assert pool.other_ends == {"gpu_oom": 1}
    assert (pool.attempt_count, pool.run_count, set(pool.run_ids)) == (3, 2, {"one", "two"})


def test_both_databases_give_the_same_pool(
    tracks: Tracks, ledger: Ledger, postgres_url: str
) -> None:
    history = lived(History("one").declare(), 600, "preempted").open().supervise().place().restore()
    stored(history.commit(10), tracks)
    on_postgres = open_ledger(postgres_url)
    Projector(tracks.store, on_postgres).project(run_track("one"))
    pool = advise_cadence(tracks, ledger, "one").pool
    assert (pool.exposure_s, pool.attempt_count) == (614.0, 2)
    assert advise_cadence(tracks, on_postgres, "one").pool == pool


def test_a_reclassified_end_counts_as_what_it_is_known_to_be_now(
    tracks: Tracks, ledger: Ledger
) -> None:
    history = lived(History("one").declare(), 600, "unknown").reclassify(1, "node_failure")
    stored(history, tracks)
    assert advise_cadence(tracks, ledger, "one").pool.interruptions == {"node_failure": 1}


def test_other_pools_and_attempts_that_were_never_placed_do_not_count(
    tracks: Tracks, ledger: Ledger
) -> None:
    own = lived(History("own").declare(), 600, "preempted")
    own.open().end("scheduling_timeout")
    other_launcher = ComputeRequest(launcher="k8s", device_class="cpu")
    other_device = ComputeRequest(launcher="local", device_class="v100")
    stored(own, tracks)
    for number, compute in enumerate((other_launcher, other_device)):
        other = History(f"other-{number}").declare(compute=compute)
        stored(lived(other, 9000, "preempted"), tracks)
    pool = advise_cadence(tracks, ledger, "own").pool
    assert (pool.exposure_s, pool.attempt_count, pool.interruption_count) == (600.0, 1, 1)


def test_an_attempt_counts_in_the_pool_that_it_was_moved_to(tracks: Tracks, ledger: Ledger) -> None:
    small = ComputeRequest(launcher="k8s", device_class="a")
    large = ComputeRequest(launcher="k8s", device_class="b")
    moved = lived(History("moved").declare(compute=small), 600, "gpu_oom")
    lived(moved, 1200, "preempted", compute=large, remediation=(BIGGER,))
    lived(moved, 1800, "preempted", compute=large)  # it stays there
    stayed = lived(History("stayed").declare(compute=small), 100, "preempted")
    for history in (moved, stayed):
        stored(history, tracks)
    large_pool = advise_cadence(tracks, ledger, "moved").pool
    assert (large_pool.device_class, large_pool.exposure_s) == ("b", 3000.0)
    assert advise_cadence(tracks, ledger, "stayed").pool.exposure_s == 700.0


def test_an_open_attempt_was_exposed_up_to_its_newest_commit(
    tracks: Tracks, ledger: Ledger
) -> None:
    history = History("one").declare().open().supervise().place().restore()
    history.commit(10)  # records are 7 s apart: two after the placement
    stored(history, tracks)
    pool = advise_cadence(tracks, ledger, "one").pool
    assert (pool.exposure_s, pool.attempt_count) == (14.0, 1)
    assert (pool.interruptions, pool.other_ends) == ({}, {})


def test_a_save_costs_the_median_of_the_periodic_ones(tracks: Tracks, ledger: Ledger) -> None:
    history = History("one").declare().open().supervise().place().restore()
    for step, blocking_s in ((10, 0.25), (20, 9.0), (30, 0.5)):
        history.commit(step, blocking_s=blocking_s)
    history.commit(31, trigger="sigterm", blocking_s=100.0)
    saves = advise_cadence(tracks, ledger, stored(history, tracks).run_id).saves
    assert saves is not None
    assert (saves.blocking_s, saves.save_count) == (0.5, 3)


def test_a_last_save_alone_does_not_tell_what_a_periodic_one_costs(
    tracks: Tracks, ledger: Ledger
) -> None:
    history = History("one").declare().open().supervise().place().restore()
    stored(history.commit(40, trigger="final"), tracks)
    advice = advise_cadence(tracks, ledger, "one")
    assert (advice.saves, advice.interval_s) == (None, None)


def test_the_newest_attempt_that_ran_a_step_tells_how_long_one_takes(
    story: Story, tracks: Tracks, ledger: Ledger
) -> None:
    story.attempt("preempted", last_step=23, commits=(10, 20))
    story.begin()
    story.write_tracks()
    tracks.project(run_track(RUN_ID))
    advice = advise_cadence(tracks, ledger, RUN_ID)
    assert advice.steps is not None
    assert (advice.steps.step_s, advice.steps.step_count) == (0.5, 23)  # the wait for data too
    assert advice.steps.attempt_id == 1
    assert advice.now == CheckpointCadence(every_steps=10)
    assert advice.now_s == 5.0
    assert advice.interval_steps is not None


def test_of_a_run_that_has_only_been_declared_it_names_what_is_missing(
    tracks: Tracks, ledger: Ledger
) -> None:
    stored(History("one").declare(), tracks)
    advice = advise_cadence(tracks, ledger, "one")
    assert (advice.interval_s, len(advice.missing)) == (None, 3)


def test_a_run_that_does_not_exist_is_reported(tracks: Tracks, ledger: Ledger) -> None:
    with pytest.raises(UnknownRun):
        advise_cadence(tracks, ledger, "nobody")
