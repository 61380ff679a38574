"""A node's fault is a strike once, a repeat offender is quarantined, and the next attempt avoids it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.bodies import BEGIN
from tests.deciders import retried, ticked
from tests.fakes import FakeClock, FakeObjectStore, Fault
from tests.histories import History
from tests.pools import CLUSTER, HOUR_S, POOL, PoolHistory, clustered, on_nodes, settled
from tracks_dagster.attempts.effects.runs import open_first_attempt
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.recovery.effects.fsck import fsck
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects.node_health import NodeHealth, read_work
from tracks_dagster.retry.effects.pool_nodes import quarantine_node, release_node, view_pool
from tracks_dagster.track.errors import StoreUnavailable
from tracks_dagster.track.names import ALERT_NO_NODE_LEFT, RETRY_INFRASTRUCTURE, pool_track
from tracks_dagster.track.records import Kind
from tracks_dagster.track.track import log_key
from tracks_dagster.training.saves.manifest import verify_checkpoint


def stored(store: FakeObjectStore, ledger: Ledger, clock: FakeClock, *histories: History) -> None:
    """Store them, let the ledger take them in, and let a minute pass."""
    for history in histories:
        history.write_to(store)
        clock.at = max(clock.at, history.at)
    Projector(store, ledger).scan()
    clock.advance(60)


def lost_node(run_id: str = "r-1", node: str = "n-2", reason: str = "node_failure") -> History:
    return clustered(run_id).end(reason, last_step=23, blamed_node=node)


def kinds(tracks: Tracks, pool: str = POOL) -> list[Kind]:
    return [record.kind for record in tracks.records(pool_track(pool))]


def healthy(count: int = 10) -> list[History]:
    """Runs that completed on nodes of their own, after an hour each."""
    histories = []
    for number in range(count):
        history = clustered(f"ok-{number}", nodes=f"m-{number}")
        history.at += timedelta(hours=1)
        histories.append(history.end("completed", last_step=40))
    return histories


def test_a_lost_node_is_struck_once_however_often_it_is_decided(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    stored(store, ledger, clock, lost_node())
    health = NodeHealth(tracks, ledger, DEFAULT_POLICY.nodes)
    for _ in range(3):
        health.look(tracks.run("r-1"), by="tests")
    assert settled(tracks, ledger).what == "opened"
    assert kinds(tracks) == [Kind.NODE_STRUCK]
    state = tracks.find_pool(POOL)
    assert state is not None
    [strike] = state.nodes[0].strikes
    attempt = tracks.run("r-1").attempts[0]
    assert (strike.body.node, strike.body.run_id, strike.body.attempt_id) == ("n-2", "r-1", 1)
    assert strike.struck_at == attempt.ended_at
    placed_at, ended_at = attempt.placed_at, attempt.ended_at
    assert placed_at is not None
    assert ended_at is not None
    worked_s = (ended_at - placed_at).total_seconds()
    assert strike.body.exposure_s == pytest.approx(worked_s)
    assert strike.body.pool_exposure_s == pytest.approx(2 * worked_s)
    assert strike.body.pool_node_count == 2


@pytest.mark.parametrize("reason", ["preempted", "node_drained", "gpu_oom", "hang", "code_error"])
def test_what_is_not_a_fault_of_a_node_strikes_none(
    reason: str, tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    stored(store, ledger, clock, lost_node(reason=reason))
    settled(tracks, ledger)
    assert tracks.find_pool(POOL) is None


def test_of_a_gang_on_several_nodes_none_is_struck_where_nobody_knows_which_failed(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    alone = clustered("r-2", nodes="n-5").end("node_failure", last_step=23)
    stored(store, ledger, clock, clustered().end("node_failure", last_step=23), alone)
    settled(tracks, ledger)
    assert tracks.find_pool(POOL) is None
    settled(tracks, ledger, "r-2")
    state = tracks.find_pool(POOL)
    assert state is not None
    assert [node.node for node in state.nodes] == ["n-5"]


def test_the_second_strike_quarantines_and_other_runs_avoid_the_node_until_it_ends(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    stored(store, ledger, clock, *healthy(), lost_node("r-1"), lost_node("r-2"))
    bystander = clustered("r-3").end("preempted", last_step=23)
    stored(store, ledger, clock, bystander)
    settled(tracks, ledger, "r-1")
    assert kinds(tracks) == [Kind.NODE_STRUCK]
    settled(tracks, ledger, "r-2")
    assert kinds(tracks) == [Kind.NODE_STRUCK, Kind.NODE_STRUCK, Kind.NODE_QUARANTINED]
    settled(tracks, ledger, "r-3")
    opened = tracks.run("r-3").attempts[1].opened
    assert opened.compute.excluded_nodes == ("n-2",)
    assert "2 strikes in" in opened.avoided_nodes["n-2"]
    assert "In quarantine in pool kubernetes/h100, and avoided: n-2 (until" in opened.decision
    assert opened.remediation == ()
    # r-2 left the node by its own remedy, which stays; it is not named twice
    own = tracks.run("r-2").attempts[1].opened
    assert (own.compute.excluded_nodes, own.avoided_nodes) == (("n-2",), {})


def test_an_expired_or_released_node_is_gone_from_the_next_attempt(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    pool = PoolHistory().quarantine("n-7", for_s=HOUR_S)
    pool.write_to(store)
    history = History("r-1").declare(compute=replace(CLUSTER, excluded_nodes=("n-9",)))
    stored(store, ledger, clock, history)
    open_first_attempt(tracks, "r-1", decided_by="ann")
    first = tracks.run("r-1").attempts[0].opened
    assert first.compute.excluded_nodes == ("n-9", "n-7")
    assert "avoided: n-7" in first.decision
    history.open(compute=first.compute, avoided_nodes=first.avoided_nodes)
    history.place(ranks=on_nodes("n-1")).restore().commit(20).end("preempted", last_step=20)
    again = tracks_of(store, ledger, clock, history)
    clock.at = pool.state.nodes[0].quarantines[0].until_at
    settled(again, ledger)
    second = again.run("r-1").attempts[1].opened
    assert (second.compute.excluded_nodes, second.avoided_nodes) == (("n-9",), {})


def tracks_of(store: FakeObjectStore, ledger: Ledger, clock: FakeClock, history: History) -> Tracks:
    """Return tracks that read the run as `history` has it."""
    for key in [key for key in store.objects if key.startswith(f"{history.name}/log/")]:
        store.delete(key)
    history.write_to(store)
    projector = Projector(store, ledger)
    projector.reindex(forgets_lost=True)
    uids = iter(f"{number:032x}" for number in range(10_000, 20_000))
    return Tracks(store, now=clock, new_uid=lambda: next(uids), project=projector.project)


def test_a_persons_retry_avoids_and_strikes_as_well(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    PoolHistory().quarantine("n-7").write_to(store)
    stored(store, ledger, clock, lost_node())
    retried(
        tracks,
        "r-1",
        by="ann",
        why="the fan was changed",
        nodes=NodeHealth(tracks, ledger, DEFAULT_POLICY.nodes),
    )
    assert kinds(tracks) == [Kind.NODE_QUARANTINED, Kind.NODE_STRUCK]
    opened = tracks.run("r-1").attempts[1].opened
    assert opened.compute.excluded_nodes == ("n-7",)
    assert opened.decision.startswith("the fan was changed In quarantine in pool")


def test_where_no_known_node_is_left_there_is_one_alert_and_one_attempt(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    PoolHistory().quarantine("n-1").quarantine("n-2").write_to(store)
    stored(store, ledger, clock, clustered().end("preempted", last_step=23))
    assert settled(tracks, ledger).what == "opened"
    state = tracks.run("r-1")
    assert [alert.body.rule for alert in state.alerts] == [ALERT_NO_NODE_LEFT]
    assert len(state.attempts) == 2
    assert settled(tracks, ledger).what == "waiting"
    assert len(tracks.run("r-1").alerts) == 1


def test_a_pools_damaged_track_keeps_no_run_waiting(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    stored(store, ledger, clock, lost_node())
    store.put(log_key(pool_track(POOL), 0), b"no record")
    assert settled(tracks, ledger).what == "opened"
    assert "No quarantine was looked at: Record 0" in tracks.run("r-1").attempts[1].opened.decision


def test_the_sensor_strikes_before_it_opens_the_next_attempt(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    stored(store, ledger, clock, lost_node())
    store.calls.clear()
    tick = ticked(tracks, ledger, sensor=RETRY_INFRASTRUCTURE)
    assert len(tick.decided) == 1
    created = [key.split("/log/")[0] for method, key in store.calls if method == "create"]
    assert created == [pool_track(POOL), "runs/r-1"]
    [row] = ledger.query("select pool, node, reason, decided_by, struck_at from node_strikes")
    assert (row["pool"], row["node"], row["reason"]) == (POOL, "n-2", "node_failure")
    assert row["decided_by"] == RETRY_INFRASTRUCTURE


def test_a_tick_reads_no_attempt_that_ended_before_the_window(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    old = clustered("old", begin=BEGIN - timedelta(days=30), nodes="n-8").end("completed")
    stored(store, ledger, clock, old, lost_node())
    work = read_work(ledger, POOL, now=clock(), window_s=DEFAULT_POLICY.nodes.window_s)
    assert set(work.seconds) == {"n-1", "n-2"}


def test_the_ledger_and_fsck_know_the_pools_track(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    stored(store, ledger, clock, lost_node())
    settled(tracks, ledger)
    quarantine_node(tracks, POOL, "n-2", for_s=HOUR_S, by="ann", why="it smells")
    release_node(tracks, POOL, "n-2", by="bo", why="aired")
    before = ledger.dump()
    [row] = before["node_quarantines"]
    assert (row["decided_by"], row["released_by"], row["strike_count"]) == ("ann", "bo", 0)
    Projector(store, ledger).reindex()
    assert ledger.dump() == before
    named = [
        f.meaning for f in fsck(store, ledger, verify_checkpoint).findings if "pool" in f.where
    ]
    assert named == []
    store.put(log_key(pool_track(POOL), 1), b"{}")
    found = [f for f in fsck(store, ledger, verify_checkpoint).findings if "pools/" in f.where]
    assert "cannot be read" in found[0].meaning


def test_a_release_without_anything_to_release_writes_nothing(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    quarantine_node(tracks, POOL, "n-2", for_s=HOUR_S, by="ann", why="it smells")
    assert release_node(tracks, POOL, "n-2", by="ann", why="aired") is not None
    assert release_node(tracks, POOL, "n-2", by="ann", why="aired") is None
    assert len(kinds(tracks)) == 2


def test_a_pool_is_shown_with_its_worst_nodes_first(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    stored(store, ledger, clock, *healthy(3), lost_node("r-1"), lost_node("r-2"))
    settled(tracks, ledger, "r-1")
    settled(tracks, ledger, "r-2")
    quarantine_node(tracks, POOL, "m-1", for_s=HOUR_S, by="ann", why="it smells")
    view = view_pool(tracks, ledger, DEFAULT_POLICY.nodes, POOL)
    assert [node.node for node in view.nodes] == ["n-2", "m-1", "m-0", "m-2", "n-1"]
    struck = next(node for node in view.nodes if node.node == "n-2")
    assert struck.strikes == 2
    assert struck.rate == pytest.approx(2 * 3600 / struck.exposure_s)
    assert struck.reasons == ("node_failure", "node_failure")


def test_a_tick_that_died_between_strike_and_quarantine_is_taken_up_by_the_next(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    stored(store, ledger, clock, *healthy(), lost_node("r-1"), lost_node("r-2"))
    settled(tracks, ledger, "r-1")
    store.fail("create", 2, Fault.FAILS)  # the strike is the first
    with pytest.raises(StoreUnavailable):
        settled(tracks, ledger, "r-2")
    assert kinds(tracks) == [Kind.NODE_STRUCK, Kind.NODE_STRUCK]
    assert len(tracks.run("r-2").attempts) == 1
    settled(tracks, ledger, "r-2")
    assert kinds(tracks) == [Kind.NODE_STRUCK, Kind.NODE_STRUCK, Kind.NODE_QUARANTINED]
