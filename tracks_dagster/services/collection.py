"""Collect the checkpoints of many runs, bounded: what the schedule does at every tick."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tracks_dagster.core.errors import TracksError
from tracks_dagster.core.ports import CheckpointReader, Ledger, Leftovers
from tracks_dagster.services.retention import Collected, collect
from tracks_dagster.services.tracks import Tracks

RUNS_MAX = 100  # looked at in one tick; with more runs, the ticks take turns
TICK_S = 900.0  # how often the schedule ticks; decides whose turn it is
TICK_S_MAX = 600.0  # after that no further run is begun: the next tick is near
FINISHED_S_MAX = 30 * 24 * 3600.0  # a run that finished longer ago is collected by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedAll:
    """What one tick did. problems: one text for each run that could not be collected, with its id.

    swept_count: pieces of interrupted writes that were removed from the store itself.
    """

    runs: tuple[Collected, ...]
    swept_count: int
    problems: tuple[str, ...]


def collect_all(
    tracks: Tracks, ledger: Ledger, reader: CheckpointReader, leftovers: Leftovers, *, by: str
) -> CollectedAll:
    """Collect the runs whose turn it is. One that fails is told, and the others go on.

    Raises StoreUnavailable or LedgerError when not even a beginning can be made.
    """
    begin = tracks.now()
    swept_count = leftovers.sweep()
    runs: list[Collected] = []
    problems: list[str] = []
    for run_id in due_runs(tracks, ledger):
        if tracks.now() - begin > timedelta(seconds=TICK_S_MAX):
            problems.append(f"{run_id} and those after it: no time was left in this tick")
            break
        try:
            runs.append(collect(tracks, reader, run_id, by=by))
        except TracksError as error:
            problems.append(f"{run_id}: {error}")
    return CollectedAll(runs=tuple(runs), swept_count=swept_count, problems=tuple(problems))


def due_runs(tracks: Tracks, ledger: Ledger) -> list[str]:
    """Return the open and the recently finished runs, at most 100, beginning elsewhere each tick."""
    now = tracks.now()
    rows = ledger.query("select run_id, finished_at from training_runs order by run_id", {})
    since = now - timedelta(seconds=FINISHED_S_MAX)
    run_ids = [
        row["run_id"] for row in rows if row["finished_at"] is None or row["finished_at"] >= since
    ]
    if not run_ids:
        return []
    # Also a few take turns: the time of a tick may not reach the last of them.
    step = RUNS_MAX if len(run_ids) > RUNS_MAX else 1
    first = int(now.timestamp() // TICK_S) * step % len(run_ids)
    return [*run_ids[first:], *run_ids[:first]][:RUNS_MAX]
