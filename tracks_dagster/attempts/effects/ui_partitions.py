"""Which partitions leave Dagster's UI: it keeps one for each attempt, checkpoint and eval, for ever.

Only those of finished runs, the one that finished first first: when they are old, or when there are so
many that Dagster's pages become slow. Records, ledger and store keep everything; what left the UI is
shown by `tracks explain`, `report` and `sql` as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from tracks_dagster.ledger.ports import Ledger

# Of one asset. Dagster's own advice is to stay below 100 000; its lists are read whole.
PARTITIONS_MAX = 20_000
FRESH = timedelta(days=1)  # a run that finished so recently stays, however many there are
PRUNE_EVERY = timedelta(hours=1)
LEAVE_MAX = 200  # in one tick, of all assets: Dagster deletes them one by one, 10 to 40 a second
RUNS_A_QUERY = 500


def leaving(
    keys: Sequence[str],
    finished_at: Mapping[str, datetime],
    now: datetime,
    *,
    keep_days: float,
    keys_max: int = PARTITIONS_MAX,
) -> list[str]:
    """Return which keys of one asset leave, the run that finished first first.

    keys: `RUN/…`; finished_at: of the runs that are; one that is not there has not finished.
    """
    finished = sorted(
        (finished_at[run], key) for key in keys if (run := run_of(key)) in finished_at
    )
    surplus = len(keys) - keys_max
    return [
        key
        for index, (at, key) in enumerate(finished)
        if now - at > timedelta(days=keep_days) or (index < surplus and now - at > FRESH)
    ]


def run_of(key: str) -> str:
    """Return the run that a partition of ours belongs to."""
    return key.partition("/")[0]


def finished_runs(ledger: Ledger, run_ids: Sequence[str]) -> dict[str, datetime]:
    """Return when each of these runs finished; those that have not are left out."""
    found: dict[str, datetime] = {}
    for begin in range(0, len(run_ids), RUNS_A_QUERY):
        given = {f"run_{i}": each for i, each in enumerate(run_ids[begin : begin + RUNS_A_QUERY])}
        rows = ledger.query(
            "select run_id, finished_at from training_runs where finished_at is not null "
            f"and run_id in ({', '.join(f':{name}' for name in given)})",
            given,
        )
        found |= {row["run_id"]: row["finished_at"] for row in rows}
    return found
