"""Collect the checkpoints of many runs, bounded: what the schedule does at every tick.

Two ticks that overlap, or a tick and a person, do no harm: every decision is one record at exactly
the state it was made on, bytes go after it and idempotently, and a verification said twice is a fact.
They only read some bytes twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tracks_dagster.checkpoints.effects.decisive import read_what_decides
from tracks_dagster.checkpoints.effects.pins import branch_of
from tracks_dagster.checkpoints.effects.retention import Collected, collect
from tracks_dagster.checkpoints.effects.verification import Verified
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.ports import Leftovers

RUNS_MAX = 100  # looked at in one tick; with more runs, the ticks take turns
TICK_S = 900.0  # how often the schedule ticks; decides whose turn it is
TICK_S_MAX = 600.0  # after that no further run, checkpoint or deletion is begun
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
from training_runs r order by r.run_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedAll:
    """What one tick did. decisive: the checkpoints that were read because a retry waited for it.

    problems: one text for each run that could not be collected, with its id.

    swept_count: pieces of interrupted writes that were removed from the store itself.
    """

    decisive: tuple[Verified, ...]
    runs: tuple[Collected, ...]
    swept_count: int
    problems: tuple[str, ...]


def collect_all(
    tracks: Tracks,
    ledger: Ledger,
    reader: CheckpointReader,
    leftovers: Leftovers,
    *,
    by: str,
    policy: RetryPolicy,
) -> CollectedAll:
    """Read what retries wait for, then collect the runs whose turn it is. One that fails is told, and
    the others go on.

    Raises StoreUnavailable or LedgerError when not even a beginning can be made.
    """
    until = tracks.now() + timedelta(seconds=TICK_S_MAX)
    decisive = read_what_decides(tracks, ledger, reader, policy, by=by, until=until)
    swept_count = leftovers.sweep()
    runs: list[Collected] = []
    problems = list(decisive.problems)
    for run_id in due_runs(tracks, ledger):
        if tracks.now() >= until:
            problems.append(f"{run_id} and those after it: no time was left in this tick")
            break
        try:
            runs.append(collect(tracks, reader, run_id, by=by, until=until))
        except TracksError as error:
            problems.append(f"{run_id}: {error}")
    return CollectedAll(
        decisive=decisive.read, runs=tuple(runs), swept_count=swept_count, problems=tuple(problems)
    )


def due_runs(tracks: Tracks, ledger: Ledger) -> list[str]:
    """Return the runs with something to do, at most 100, beginning elsewhere at each tick.

    Those are the open ones, the recently finished ones, and older ones with a checkpoint that waits
    for its deletion or for a branch. What a person lets go of later is collected by hand.
    """
    now = tracks.now()
    rows = ledger.query(_RUNS, {"branch_pin": f'%"{branch_of("")}%'})
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
