"""Rounds of drills that a schedule plays beside the work of a home: begun, and scored a round later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from tracks_dagster.attempts.ports import FindShipped
from tracks_dagster.data.effects.snapshots import find_snapshot
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.projects.effects.registered import DEFAULT_PROJECT
from tracks_dagster.review.effects.receipts import read_receipts
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import DRILL_JOB
from tracks_dagster.track.ports import NewUid
from tracks_dagster.track.records import format_time
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.wings.lab.effects.drill_score import DrillRow, score
from tracks_dagster.wings.lab.effects.rehearsals import (
    BESIDE_WORK,
    REHEARSALS,
    declare_rehearsal,
    rehearsal_id,
)

DATASET = "aws-docs"  # of the example that is trained
SCORED_SINCE = timedelta(days=8)  # a week and a day
RUNS_MAX = 100


def begin_round(
    tracks: Tracks, shipped: FindShipped, new_uid: NewUid, kinds: Sequence[str]
) -> list[str]:
    """Declare a small run for each kind of drill; return their ids.

    Raises InvalidInput for a kind that cannot be played beside other work, and where there is neither
    the example nor its data.
    """
    for kind in kinds:
        if kind not in BESIDE_WORK:
            raise InvalidInput(unknown("drill to play beside other work", kind, BESIDE_WORK))
    found = shipped(DEFAULT_PROJECT)
    if found is None:
        raise InvalidInput(
            f"Drills are played with the example {DEFAULT_PROJECT}, which is missing."
        )
    snapshot_id = find_snapshot(tracks, DATASET, None).snapshot_id
    run_ids = []
    for kind in dict.fromkeys(kinds):
        run_id = rehearsal_id(kind, new_uid())
        declare_rehearsal(
            tracks,
            found,
            REHEARSALS[kind],
            run_id=run_id,
            snapshot_id=snapshot_id,
            owner=DRILL_JOB,
        )
        run_ids.append(run_id)
    return run_ids


def score_rounds(tracks: Tracks, ledger: Ledger) -> list[DrillRow]:
    """Return the rows of the drills that were declared by rounds of late and are over, oldest first."""
    rows = ledger.query(
        "select run_id from training_runs where owner = :owner and state <> 'running' "
        "and declared_at >= :since order by declared_at, run_id limit :runs_max",
        {
            "owner": DRILL_JOB,
            "since": format_time(tracks.now() - SCORED_SINCE),
            "runs_max": RUNS_MAX,
        },
    )
    found = [read_receipts(tracks, row["run_id"]) for row in rows]
    return [score(each, each.state.declared.drills[0]) for each in found]
