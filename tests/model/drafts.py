"""What the actors of the append model say: drafts with real bodies, and whose they are."""

from __future__ import annotations

from functools import cache

from tests.bodies import FREE
from tracks_dagster.track.bodies import (
    AttemptEnded,
    AttemptOpened,
    AttemptPlaced,
    AttemptRestored,
    CheckpointCadence,
    CheckpointCommitted,
    CheckpointDecision,
    CheckpointVerified,
    CodeVersion,
    ComputeRequest,
    Note,
    RunDeclared,
    RunFinished,
    SnapshotRef,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Draft, Kind, Record, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, object_prefix

RUN_ID = "modelled"
LAUNCH = "launch-"  # a launch's uids begin with it and its name
SNAPSHOT = SnapshotRef(dataset="d", snapshot_id="s")

RUN_DECLARED_DRAFT = Draft(
    uid="person",
    kind=Kind.RUN_DECLARED,
    body=to_json(
        RunDeclared(
            run_id=RUN_ID,
            model_family="gpt",
            config={},
            snapshot=SNAPSHOT,
            code=CodeVersion(git_commit=None, branch=None, dirty=None, package_version="1"),
            owner="o",
            team="t",
            stage="smoke",
            intent="to be modelled",
            compute=ComputeRequest(),
            cadence=CheckpointCadence(),
            estimated_device_s=1.0,
        )
    ),
)


def author(record: Record) -> str | None:
    """Return the launch that wrote `record`, or None when it was not a launch."""
    if not record.uid.startswith(LAUNCH):
        return None
    return record.uid.removeprefix(LAUNCH).partition(" ")[0]


@cache
def placed(launch: str, attempt_id: int) -> Draft:
    """A launch takes its attempt."""
    body = AttemptPlaced(
        launch_id=launch,
        world_size=1,
        ranks=(),
        image=None,
        environment={},
        environment_sha256="",
    )
    uid = f"{LAUNCH}{launch} placed"
    return Draft(uid=uid, kind=Kind.ATTEMPT_PLACED, body=to_json(body), attempt_id=attempt_id)


@cache
def restored(launch: str, attempt_id: int, checkpoint: CheckpointRef | None) -> Draft:
    """A launch begins from a checkpoint, or afresh."""
    step = checkpoint.step if checkpoint else 0
    body = AttemptRestored(launch_id=launch, step=step, checkpoint=checkpoint, cursor=0)
    uid = f"{LAUNCH}{launch} restored {checkpoint.manifest_sha256 if checkpoint else None}"
    return Draft(uid=uid, kind=Kind.ATTEMPT_RESTORED, body=to_json(body), attempt_id=attempt_id)


@cache
def committed(
    launch: str,
    attempt_id: int,
    step: int,
    chunks_from: frozenset[str] = frozenset(),
    chunks: frozenset[str] = frozenset(),
) -> Draft:
    """A launch commits a checkpoint: its manifest names a chunk of its own, and `chunks`.

    chunks_from: the manifests of the checkpoints in which it found `chunks`.
    """
    digest = sha256_hex(" ".join(sorted(chunks_from | chunks)).encode())[:4]
    manifest = f"{launch} {step} {digest}"
    body = CheckpointCommitted(
        launch_id=launch,
        ref=CheckpointRef(
            run_id=RUN_ID,
            attempt_id=attempt_id,
            step=step,
            object_prefix=object_prefix(AttemptRef(RUN_ID, attempt_id), launch, step),
            manifest_sha256=manifest,
        ),
        cursor=0,
        epoch=0,
        trigger="interval",
        total_bytes=0,
        written_bytes=0,
        blocking_s=0.0,
    )
    uid = f"{LAUNCH}{launch} commit {step} {digest}"
    data = to_json(body) | {
        "chunks_from": sorted(chunks_from),
        "chunks": sorted(chunks | {manifest}),
    }
    return Draft(uid=uid, kind=Kind.CHECKPOINT_COMMITTED, body=data, attempt_id=attempt_id)


@cache
def decided(
    uid: str,
    kind: Kind,
    manifest_sha256: str,
    attempt_id: int | None = None,
    chunks: tuple[str, ...] = (),
) -> Draft:
    """A checkpoint is put in quarantine (by a sensor, or by the launch that should restore it),
    superseded, or deleted together with `chunks`.
    """
    body = CheckpointDecision(manifest_sha256=manifest_sha256, by=uid, why="", chunks=chunks)
    return Draft(uid=uid, kind=kind, body=to_json(body), attempt_id=attempt_id)


@cache
def verified(uid: str, manifest_sha256: str) -> Draft:
    """A sensor has read a checkpoint in full."""
    body = CheckpointVerified(manifest_sha256=manifest_sha256, by=uid, total_bytes=0)
    return Draft(uid=uid, kind=Kind.CHECKPOINT_VERIFIED, body=to_json(body))


@cache
def opened(uid: str, attempt_id: int, resume: CheckpointRef | None) -> Draft:
    """A sensor opens the next attempt."""
    body = AttemptOpened(
        cause="retry",
        decided_by=uid,
        decision="",
        config={},
        compute=ComputeRequest(),
        snapshot=SNAPSHOT,
        resume=resume,
        debit=FREE,
    )
    return Draft(uid=uid, kind=Kind.ATTEMPT_OPENED, body=to_json(body), attempt_id=attempt_id)


@cache
def ended(uid: str, attempt_id: int) -> Draft:
    """A sensor ends an attempt."""
    body = AttemptEnded(
        reason="preempted",
        confidence=1.0,
        rule="model",
        lines=(),
        classifier_version="1",
        evidence_key="",
        evidence_sha256="",
        device_seconds=0.0,
        accelerator="cpu",
        started_at=None,
        finished_at=None,
        last_step=None,
        first_line_ran=True,
        root_message="",
        fingerprint="",
        closed_by=uid,
    )
    return Draft(uid=uid, kind=Kind.ATTEMPT_ENDED, body=to_json(body), attempt_id=attempt_id)


@cache
def finished(uid: str) -> Draft:
    """A sensor finishes the run."""
    body = RunFinished(stop_cause="step_budget", why="", decided_by=uid, final=None)
    return Draft(uid=uid, kind=Kind.RUN_FINISHED, body=to_json(body))


@cache
def note() -> Draft:
    """A person leaves a note."""
    body = Note(by="person", text="seen")
    return Draft(uid="note", kind=Kind.NOTE, body=to_json(body))
