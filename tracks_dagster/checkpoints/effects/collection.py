"""Collect the checkpoints of many runs, bounded: what the schedule does at every tick.

Each tick first reads the checkpoints that retries wait for.

Two ticks that overlap, or a tick and a person, do no harm: every decision is one record at exactly
the state it was made on, bytes go after it and idempotently, and a verification said twice is a fact.
They only read some bytes twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tracks_dagster.checkpoints.effects.pins import pin_of_branch
from tracks_dagster.checkpoints.effects.retention import Collected, collect
from tracks_dagster.checkpoints.effects.verification import (
    Verified,
    refusal_of,
    unreadable,
    verify,
    without_proof,
)
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.ledger.effects.ticks import Tick, slice_until, take_turns
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import Refuse
from tracks_dagster.retry.effects.due import runs_between_attempts
from tracks_dagster.retry.policy import NEED_A_RULE, RetryPolicy
from tracks_dagster.track.errors import CheckpointMismatch
from tracks_dagster.track.names import run_track

RUNS_MAX = 100  # looked at in one tick; with more runs, the ticks take turns
TICK_S = 900.0  # how often the schedule ticks; decides whose turn it is
TICK_S_MAX = 600.0  # of a tick: after it no further run, checkpoint or deletion is begun
FINISHED_S_MAX = 30 * 24 * 3600.0  # longer ago, a run is visited while something is known to be due

# What is superseded or quarantined goes after a grace of up to a year, and what a branch pins is let
# go when the branch is finished, whenever that is.
_RUNS = """
select r.run_id, r.finished_at, (
    select count(*) from checkpoints c where c.run_id = r.run_id and (
        c.status in ('superseded', 'quarantined')
        or (c.status = 'committed' and c.pins_json like :branch_pin)
    )
) as unsettled_count
from training_runs r where r.state <> 'imported' order by r.run_id
"""


def read_what_decides(
    tracks: Tracks,
    ledger: Ledger,
    reader: CheckpointReader,
    policy: RetryPolicy,
    *,
    by: str,
    until: datetime,
) -> Tick[Verified]:
    """Read, of any size, the checkpoints that retries wait for, the run that ended first first.

    Which those are, `decide` says. Nothing is retried here: the sensor that owns the reason finds the
    bytes verified or quarantined, and decides again.

    No further one is begun from `until` on; one that is begun is read to its end. One that cannot be
    read keeps no other waiting; one that this version can never read has its retry refused. Raises
    LedgerError.
    """
    holds = Holds(tracks)

    def look(run_id: str) -> Tick[Verified]:
        state = tracks.run(run_id)
        lost = holds.on_source(state)
        wait = decide(state, policy, tracks.now(), () if lost is None else (lost,))
        if not isinstance(wait, Wait) or wait.verify is None:
            return Tick()
        try:
            return Tick(done=(verify(tracks, reader, wait.verify, by=by),))
        except CheckpointMismatch as error:
            refuse = without_proof(state, wait, unreadable(error), tracks.now())
        if isinstance(refuse, Refuse):  # unless somebody decided meanwhile
            tracks.append_to(state, refusal_of(tracks, state, refuse, by=by, policy=policy))
            tracks.project(run_track(run_id))
        return Tick()

    return take_turns(runs_between_attempts(ledger, NEED_A_RULE), look, slice_until(tracks, until))


def collect_due(
    tracks: Tracks, ledger: Ledger, reader: CheckpointReader, *, by: str, until: datetime
) -> Tick[Collected]:
    """Collect the runs whose turn it is; no further one is begun from `until` on.

    One that fails is a problem, and the others go on. Raises LedgerError.
    """

    def look(run_id: str) -> Tick[Collected]:
        return Tick(done=(collect(tracks, reader, run_id, by=by, until=until),))

    return take_turns(due_runs(tracks, ledger), look, slice_until(tracks, until))


def due_runs(tracks: Tracks, ledger: Ledger) -> list[str]:
    """Return the runs with something to do, at most 100, beginning elsewhere at each tick.

    Those are the open ones, the recently finished ones, and older ones with a checkpoint that waits
    for its deletion or for a branch. What a person lets go of later is collected by hand.
    """
    now = tracks.now()
    rows = ledger.query(_RUNS, {"branch_pin": f'%"{pin_of_branch("")}%'})
    since = now - timedelta(seconds=FINISHED_S_MAX)
    run_ids = [
        row["run_id"]
        for row in rows
        if row["finished_at"] is None or row["finished_at"] >= since or row["unsettled_count"]
    ]
    if not run_ids:
        return []
    # Also a few take turns: the time of a tick may not reach the last of them.
    step = RUNS_MAX if len(run_ids) > RUNS_MAX else 1
    first = int(now.timestamp() // TICK_S) * step % len(run_ids)
    return [*run_ids[first:], *run_ids[:first]][:RUNS_MAX]
