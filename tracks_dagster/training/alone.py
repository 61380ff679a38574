"""Training outside an attempt: a run of one's own in a local folder, for notebooks and first tries.

It is the same record as anywhere: a store, a track, attempts. Each `join` opens a new attempt that
resumes from the newest checkpoint, after closing the one before, whose end nobody watched. The run
is never finished, so a later `until` simply trains on.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from tracks_dagster.adapters.stores import open_store
from tracks_dagster.core import run_fold
from tracks_dagster.core.bodies import (
    AttemptEnded,
    AttemptOpened,
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    RunDeclared,
    SnapshotRef,
)
from tracks_dagster.core.body_json import to_json
from tracks_dagster.core.checkpoints import resume_target
from tracks_dagster.core.errors import TrackBroken
from tracks_dagster.core.evidence import Evidence
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.core.reasons import TerminationReason
from tracks_dagster.core.records import Draft, Json, Kind, Record, canonical_json, sha256_hex
from tracks_dagster.core.redact import redact
from tracks_dagster.core.run_state import AttemptState, RunState
from tracks_dagster.core.track import Track, run_track
from tracks_dagster.training.environment import AttemptPlace
from tracks_dagster.training.launch import draft, utc_now

RUN_ID = "notebook"
CADENCE = CheckpointCadence(every_steps=100, every_s=60.0)
BY = "join, outside an attempt"
NO_SNAPSHOT = SnapshotRef(dataset="none", snapshot_id="none")  # the script reads data by itself


def open_attempt(folder: Path, config: Mapping[str, Json], world_size: int) -> AttemptPlace:
    """Open the folder's next attempt, with `config`, and return its place.

    Another process that still trains in the folder is fenced thereby.
    """
    store_url = str(folder.absolute() / "store")
    store = open_store(store_url)
    track = Track(store, run_track(RUN_ID), now=utc_now)
    compute = ComputeRequest(ranks=world_size)

    def declare(records: list[Record]) -> Draft | None:
        return (
            None
            if records
            else draft(Kind.RUN_DECLARED, _declared(config, compute), None, clean=redact)
        )

    def close(records: list[Record]) -> Draft | None:
        left_open = _state(records).open_attempt
        if left_open is None:
            return None
        return draft(
            Kind.ATTEMPT_ENDED, _ended(store, left_open), left_open.attempt_id, clean=redact
        )

    def open_next(records: list[Record]) -> Draft | None:
        state = _state(records)
        opened = AttemptOpened(
            cause="manual_retry" if state.attempts else "first",
            decided_by=BY,
            decision="The script was started.",
            config=config,
            compute=compute,
            snapshot=NO_SNAPSHOT,
            resume=resume_target(state.resumable) if state.resumable else None,
        )
        next_id = len(state.attempts) + 1
        return run_fold.check(state, draft(Kind.ATTEMPT_OPENED, opened, next_id, clean=redact))

    track.decide(declare)
    track.decide(close)
    record = track.decide(open_next)
    if record is None or record.attempt_id is None:
        raise TrackBroken(f"{run_track(RUN_ID)} in {folder} did not take a new attempt.")
    return AttemptPlace(
        store_url=store_url,
        run_id=RUN_ID,
        attempt_id=record.attempt_id,
        opened_seq=record.seq,
        work=folder.absolute() / "work" / f"a{record.attempt_id:02d}",
    )


def _declared(config: Mapping[str, Json], compute: ComputeRequest) -> RunDeclared:
    code = CodeVersion(
        git_commit=None, branch=None, dirty=None, package_version=version("tracks-dagster")
    )
    return RunDeclared(
        run_id=RUN_ID,
        model_family="script",
        config=config,
        snapshot=NO_SNAPSHOT,
        code=code,
        owner="",
        team="",
        stage="smoke",
        intent="A script that joined outside an attempt.",
        compute=compute,
        cadence=CADENCE,
        estimated_device_s=0.0,
        trainer="script",
    )


def _ended(store: ObjectStore, attempt: AttemptState) -> AttemptEnded:
    """Return the end of an attempt that no supervisor watched: nobody knows why it ended."""
    launch_id = attempt.placed.launch_id if attempt.placed else None
    evidence = Evidence(
        run_id=RUN_ID, attempt_id=attempt.attempt_id, launch_id=launch_id, ranks=(), vanished=True
    )
    data = canonical_json(to_json(evidence))
    key = f"{run_track(RUN_ID)}/attempts/{attempt.attempt_id}/evidence/{sha256_hex(data)}.json"
    store.put(key, data)
    return AttemptEnded(
        reason=TerminationReason.UNKNOWN,
        confidence=0.0,
        rule="alone",
        lines=(),
        classifier_version="",
        evidence_key=key,
        evidence_sha256=sha256_hex(data),
        device_seconds=0.0,
        accelerator=attempt.placed.ranks[0].accelerator if attempt.placed else "cpu",
        started_at=None,
        finished_at=None,
        last_step=None,
        first_line_ran=attempt.placed is not None,
        root_message="",
        fingerprint="",
        closed_by=BY,
    )


def _state(records: list[Record]) -> RunState:
    state = run_fold.fold(records)
    if state is None:
        raise TrackBroken(f"{run_track(RUN_ID)} has no records.")
    return state
