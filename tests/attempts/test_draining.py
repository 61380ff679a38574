"""A node is emptied: its runs save, go on elsewhere by themselves, and pay nothing for it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.deciders import closed, settled_run
from tests.fakes import FakeClock, FakeGangs, FakeObjectStore
from tests.histories import History
from tests.pools import CLUSTER, HOUR_S, POOL, clustered
from tracks_dagster.attempts.effects.draining import drain_node
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.checkpoints.effects.cadence import advise_cadence
from tracks_dagster.holds.effects.holds import Pools
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.holds.storm import StormRule
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reasons.evidence import LastWord, RankEnd
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects.due import runs_between_attempts
from tracks_dagster.retry.effects.node_health import NodeHealth
from tracks_dagster.retry.effects.pool_nodes import quarantine_node
from tracks_dagster.retry.next_sensor import reasons_of
from tracks_dagster.retry.node_health import NodeRule
from tracks_dagster.track.bodies import MOVE
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.names import RETRY_PREEMPTED
from tracks_dagster.track.reasons import TerminationReason as R
from tracks_dagster.track.records import format_time
from tracks_dagster.track.track import log_key


@pytest.fixture
def tracks(store: FakeObjectStore, ledger: Ledger, clock: FakeClock, tracks: Tracks) -> Tracks:
    """Two runs on n-2, one elsewhere, one not placed yet."""
    waiting = History("waiting").declare(compute=CLUSTER).open()
    histories = [clustered("r-1"), clustered("r-2", nodes="n-2 n-3"), clustered("r-3", nodes="n-4")]
    for history in (*histories, waiting):
        history.write_to(store)
        clock.at = max(clock.at, history.at)
    Projector(store, ledger).scan()
    return tracks


def end_drained(tracks: Tracks, run_id: str, clock: FakeClock) -> None:
    """Let the gang obey: every rank says that it was drained, and the attempt is closed."""
    gangs = FakeGangs()
    clock.advance(30)
    at = format_time(clock())
    word = LastWord(
        rank=0, reason="drained", exception=None, message="", traceback_tail="", step=25, at=at
    )
    ranks = tuple(
        RankEnd(rank=rank, exit_code=75, ended_at=at, last_word=word) for rank in range(2)
    )
    gangs.reports[run_id, 1] = GangReport(phase=GangPhase.GONE, ranks=ranks)
    closed(tracks, gangs, run_id)
    clock.advance(60)


def test_every_run_on_the_node_is_asked_once_and_no_other(tracks: Tracks, ledger: Ledger) -> None:
    found = drain_node(tracks, ledger, "n-2", by="ann", why="a new kernel")
    assert (found.pools, found.asked, found.before) == ((POOL,), ("r-1", "r-2"), ())
    assert found.unplaced == ("waiting",)
    for run_id in ("r-1", "r-2"):
        [stop] = tracks.run(run_id).stops
        assert (stop.body.mode, stop.body.by) == (MOVE, "ann")
        assert stop.body.why == "node n-2 is emptied: a new kernel"
    assert tracks.run("r-3").stops == ()
    again = drain_node(tracks, ledger, "n-2", by="ann", why="a new kernel")
    assert (again.asked, again.before) == ((), ("r-1", "r-2"))
    assert len(tracks.run("r-1").stops) == 1


def test_the_node_is_in_quarantine_before_a_run_is_asked(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    store.calls.clear()
    drain_node(tracks, ledger, "n-2", by="ann", why="a new kernel", for_s=3600)
    created = [key.split("/log/")[0] for method, key in store.calls if method == "create"]
    assert created == ["pools/kubernetes=2Fh100", "runs/r-1", "runs/r-2"]
    state = tracks.find_pool(POOL)
    assert state is not None
    [quarantine] = state.quarantined_at(tracks.now())
    assert quarantine.until_at == tracks.now() + timedelta(hours=1)


def test_the_run_goes_on_elsewhere_by_itself_and_free(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    drain_node(tracks, ledger, "n-2", by="ann", why="a new kernel")
    end_drained(tracks, "r-1", clock)
    state = tracks.run("r-1")
    assert state.attempts[0].reason is R.NODE_DRAINED
    assert state.attempts[0].ended is not None
    assert "move requested by ann: node n-2 is emptied" in state.attempts[0].ended.lines[0]
    assert runs_between_attempts(ledger, reasons_of(RETRY_PREEMPTED)) == ["r-1"]
    settled = settled_run(
        tracks,
        "r-1",
        reasons=reasons_of(RETRY_PREEMPTED),
        decided_by=RETRY_PREEMPTED,
        policy=DEFAULT_POLICY,
        nodes=NodeHealth(tracks, ledger, DEFAULT_POLICY.nodes),
    )
    assert settled.what == "opened"
    opened = tracks.run("r-1").attempts[1].opened
    assert opened.compute.excluded_nodes == ("n-2",)
    assert opened.debit is not None
    assert opened.debit.amount == 0
    pool = tracks.find_pool(POOL)
    assert pool is not None
    assert pool.nodes[0].strikes == ()


def test_a_drain_does_not_shorten_a_quarantine_that_lasts_longer(
    tracks: Tracks, ledger: Ledger
) -> None:
    quarantine_node(tracks, POOL, "n-2", for_s=72 * HOUR_S, by="ann", why="it smells")
    found = drain_node(tracks, ledger, "n-2", by="bo", why="a new kernel")
    assert found.until_at == format_time(tracks.now() + timedelta(hours=72))
    assert found.asked == ("r-1", "r-2")
    state = tracks.find_pool(POOL)
    assert state is not None
    assert [q.body.by for q in state.quarantined_at(tracks.now())] == ["ann"]
    longer = drain_node(tracks, ledger, "n-2", by="bo", why="a new rack", for_s=96 * HOUR_S)
    assert longer.until_at == format_time(tracks.now() + timedelta(hours=96))


def test_this_machine_is_not_quarantined_from_itself(tracks: Tracks) -> None:
    with pytest.raises(InvalidInput, match="Pool local/cpu is of the local launcher"):
        quarantine_node(tracks, "local/cpu", "here", for_s=HOUR_S, by="ann", why="it smells")
    assert tracks.find_pool("local/cpu") is None


def test_a_run_whose_track_is_damaged_keeps_no_other_on_the_node(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    store.put(log_key("runs/r-1", 0), b"no record")
    fresh = Tracks(store, now=tracks.now, new_uid=lambda: "f" * 32, project=lambda name: None)
    found = drain_node(fresh, ledger, "n-2", by="ann", why="a new kernel")
    assert found.asked == ("r-2",)
    [problem] = found.problems
    assert problem.startswith("r-1: Record 0")


def test_a_planned_drain_is_neither_an_interruption_nor_a_storm(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    drain_node(tracks, ledger, "n-2", by="ann", why="a new kernel")
    end_drained(tracks, "r-1", clock)
    pool = advise_cadence(tracks, ledger, "r-1").pool
    assert pool.interruption_count == 0
    assert pool.other_ends == {"node_drained (planned)": 1}
    assert Pools(ledger, StormRule(window_s=3600), now=clock()).view(POOL).ends == ()


def test_a_person_who_drains_the_run_as_well_keeps_it(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    drain_node(tracks, ledger, "n-2", by="ann", why="a new kernel")
    request_stop(tracks, "r-1", mode="drain", by="bo", why="mine first")
    end_drained(tracks, "r-1", clock)
    assert tracks.run("r-1").attempts[0].reason is R.USER_CANCELLED
    settled = settled_run(tracks, "r-1")
    assert (settled.what, "bo (record" in settled.why) == ("waiting", True)


def test_a_planned_drain_strikes_no_node_whatever_the_policy_counts(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    drain_node(tracks, ledger, "n-2", by="ann", why="a new kernel")
    end_drained(tracks, "r-1", clock)
    rule = NodeRule(reasons=(R.NODE_DRAINED,), at_once=(R.NODE_DRAINED,))
    NodeHealth(tracks, ledger, rule).look(tracks.run("r-1"), by="tests")
    state = tracks.find_pool(POOL)
    assert state is not None
    assert [node.strikes for node in state.nodes] == [()]


def test_a_third_drain_in_an_hour_does_not_exclude_a_node_for_good(
    store: FakeObjectStore, clock: FakeClock, tracks: Tracks
) -> None:
    history = clustered("often")
    for number in range(3):
        if number:
            history.open().place(ranks=history.state.attempts[0].placed.ranks).restore()  # type: ignore[union-attr]
        history.stop(MOVE).end("node_drained", last_step=25, blamed_node="n-2")
    history.write_to(store)
    clock.at = history.at + timedelta(minutes=20)
    settled = settled_run(tracks, "often")
    assert settled.what == "opened"
    assert tracks.run("often").attempts[3].opened.compute.excluded_nodes == ()


def test_what_cannot_be_drained_is_reported_and_nothing_is_written(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    local = History("local").declare().open().place()
    local.write_to(store)
    Projector(store, ledger).scan()
    store.calls.clear()
    with pytest.raises(UnknownRun, match="Nothing has run on a node 'n-99'"):
        drain_node(tracks, ledger, "n-99", by="ann", why="a new kernel")
    with pytest.raises(InvalidInput, match="local launcher, which has no other node"):
        drain_node(tracks, ledger, "node-1", by="ann", why="a new kernel")
    with pytest.raises(InvalidInput, match="There is no pool 'spot'"):
        drain_node(tracks, ledger, "n-2", by="ann", why="a new kernel", pool="spot")
    with pytest.raises(InvalidInput, match="more than 0 s"):
        drain_node(tracks, ledger, "n-2", by="ann", why="a new kernel", for_s=0)
    with pytest.raises(InvalidInput, match="why is empty"):
        drain_node(tracks, ledger, "n-2", by="ann", why=" ")
    assert not any(method == "create" for method, _ in store.calls)
    assert drain_node(tracks, ledger, "n-99", by="ann", why="new", pool=POOL).asked == ()
