"""Plays `evaluator_crash`: the evaluator of a checkpoint dies, once a run; training is untouched."""

from __future__ import annotations

import uuid

from tracks_dagster.attempts.drills import claim_note, was_claimed
from tracks_dagster.data.ports import EvalSpec
from tracks_dagster.track.bodies import RunDeclared
from tracks_dagster.track.body_json import body_of, to_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.track import Track, run_track
from tracks_dagster.training.drills.faults import crash
from tracks_dagster.training.launch import utc_now


def play_evaluator_crash(store: ObjectStore, spec: EvalSpec) -> None:
    """Die here if a drill of the run says so for this checkpoint, and none died of it before."""
    track = Track(store, run_track(spec.run_id), now=utc_now)
    records = track.refresh()
    if not records or records[0].kind is not Kind.RUN_DECLARED:
        return
    for index, drill in enumerate(body_of(RunDeclared, records[0]).drills):
        is_due = drill.kind == "evaluator_crash" and spec.checkpoint.step >= drill.step
        if not is_due or was_claimed(records, index):
            continue
        note = to_json(claim_note(index, drill))
        track.note(Draft(uid=uuid.uuid4().hex, kind=Kind.NOTE, body=note, attempt_id=None))
        crash()
