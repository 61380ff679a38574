"""Which committed checkpoints Dagster's UI has not been told of yet, and what it shows of each.

A checkpoint is real because its record stands in the track; telling Dagster comes after, so that a
report which is lost or repeated changes nothing but a page.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tracks_dagster.core.names import checkpoint_key
from tracks_dagster.core.records import Json
from tracks_dagster.core.run_state import CheckpointState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """One checkpoint to report: its partition key, its version and its metadata."""

    key: str
    manifest_sha256: str
    metadata: dict[str, Json]


def due_reports(
    state: RunState, attempt_id: int, reported: Collection[str]
) -> list[CheckpointReport]:
    """Return a report for each commit of the attempt whose partition key is not in `reported`."""
    reports = [
        _report(checkpoint) for checkpoint in state.checkpoints if _of(checkpoint, attempt_id)
    ]
    return [report for report in reports if report.key not in reported]


def _of(checkpoint: CheckpointState, attempt_id: int) -> bool:
    return checkpoint.ref.attempt_id == attempt_id


def _report(checkpoint: CheckpointState) -> CheckpointReport:
    ref, body = checkpoint.ref, checkpoint.body
    return CheckpointReport(
        key=checkpoint_key(ref.run_id, ref.attempt_id, ref.step),
        manifest_sha256=ref.manifest_sha256,
        metadata={
            "training_run_id": ref.run_id,
            "attempt_id": ref.attempt_id,
            "step": ref.step,
            "samples_consumed": body.cursor,
            "trigger": body.trigger,
            "object_prefix": ref.object_prefix,
            "manifest_sha256": ref.manifest_sha256,
            "total_bytes": body.total_bytes,
            "written_bytes": body.written_bytes,
            "blocking_s": body.blocking_s,
            **{f"metric_{name}": value for name, value in body.metrics.items()},
        },
    )
