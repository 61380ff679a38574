"""From the state of a track to the ledger's rows, by table. Pure: writing them is the ledger's work.

A row is whole: an upsert by primary key replaces what was there. No row is ever removed, because no
record is. Given the state that the ledger has taken in already, only rows that can differ from those
it holds are returned; applied in order, they leave what a projection from scratch would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tracks_dagster.ledger.facts.attempt import ATTEMPT, attempt_views
from tracks_dagster.ledger.facts.fact import row
from tracks_dagster.ledger.ports import Row
from tracks_dagster.ledger.projection_accounting import accounting_rows, spent_columns
from tracks_dagster.ledger.projection_lineage import node_rows, resume_rows
from tracks_dagster.ledger.projection_values import json_text, row_of, time_of
from tracks_dagster.ledger.time_facts import micros
from tracks_dagster.track.bodies import Alert, Note, PromotionDecided
from tracks_dagster.track.states.dataset_state import DatasetState, SnapshotState
from tracks_dagster.track.states.lifecycle import run_status
from tracks_dagster.track.states.run_state import CheckpointState, Dated, EvalState, RunState

T = TypeVar("T")

Rows = Mapping[str, Sequence[Row]]


def run_rows(state: RunState, before: RunState | None = None) -> Rows:
    """Return the rows of a run's track; `before` is an earlier state of it, already taken in."""
    views = attempt_views(state)
    moved = _changed(state.attempts, before.attempts if before else ())
    return {
        "training_runs": [_run_row(state)],
        "training_attempts": [
            row(ATTEMPT, view) for view in _changed(views, attempt_views(before) if before else ())
        ],
        **accounting_rows(state, before),
        "attempt_nodes": [row for a in moved for row in node_rows(state.run_id, a)],
        "attempt_resumes": [row for a in moved for row in resume_rows(state.run_id, a)],
        "checkpoints": [
            _checkpoint_row(checkpoint)
            for checkpoint in _changed(state.checkpoints, before.checkpoints if before else ())
        ],
        "evals": [
            _eval_row(state, evaluation)
            for evaluation in _changed(state.evals, before.evals if before else ())
        ],
        "promotions": [
            _promotion_row(state.run_id, promotion)
            for promotion in _changed(state.promotions, before.promotions if before else ())
        ],
        "notes": [
            *(
                _note_row(state.run_id, note)
                for note in _changed(state.notes, before.notes if before else ())
            ),
            *(
                _alert_row(state.run_id, alert)
                for alert in _changed(state.alerts, before.alerts if before else ())
            ),
        ],
    }


def dataset_rows(state: DatasetState, before: DatasetState | None = None) -> Rows:
    """Return the rows of a dataset's track; `before` is an earlier state of it, taken in already."""
    return {
        "datasets": [_dataset_row(state)],
        "snapshots": [
            _snapshot_row(snapshot)
            for snapshot in _changed(state.snapshots, before.snapshots if before else ())
        ],
    }


def _changed(now: Sequence[T], before: Sequence[T]) -> list[T]:
    """Return the items that are new or differ; both grow at the end only."""
    grown = list(now[len(before) :])
    return [new for new, old in zip(now, before, strict=False) if new != old] + grown


def _run_row(state: RunState) -> Row:
    declared, source = state.declared, state.declared.branched_from
    status = run_status(state)
    final = state.finished.final if state.finished else None
    ends = [attempt.ended for attempt in state.attempts if attempt.ended is not None]
    return row_of(
        run_id=declared.run_id,
        model_family=declared.model_family,
        stage=declared.stage,
        owner=declared.owner,
        team=declared.team,
        intent=declared.intent,
        dataset=declared.snapshot.dataset,
        snapshot_id=declared.snapshot.snapshot_id,
        git_commit=declared.code.git_commit,
        git_branch=declared.code.branch,
        git_dirty=declared.code.dirty,
        package_version=declared.code.package_version,
        trainer=declared.trainer,
        launcher=declared.compute.launcher,
        ranks=declared.compute.ranks,
        device_class=declared.compute.device_class,
        branched_from_run_id=source.run_id if source else None,
        branched_from_step=source.step if source else None,
        branched_from_manifest_sha256=source.manifest_sha256 if source else None,
        max_steps=declared.config.get("steps"),
        config_json=json_text(declared.config),
        estimated_device_s=declared.estimated_device_s,
        state=status.state,
        state_why=status.why,
        declared_at=state.declared_at,
        finished_at=state.finished_at,
        stop_cause=state.finished.stop_cause if state.finished else None,
        attempt_count=len(state.attempts),
        device_seconds=sum((ended.device_seconds for ended in ends), start=0.0),
        final_step=final.step if final else None,
        final_manifest_sha256=final.manifest_sha256 if final else None,
    )


def _checkpoint_row(checkpoint: CheckpointState) -> Row:
    body, ref = checkpoint.body, checkpoint.ref
    return row_of(
        run_id=ref.run_id,
        manifest_sha256=ref.manifest_sha256,
        attempt_id=ref.attempt_id,
        step=ref.step,
        status=checkpoint.status,
        pins_json=json_text(sorted(checkpoint.pins)),
        object_prefix=ref.object_prefix,
        launch_id=body.launch_id,
        cursor=body.cursor,
        epoch=body.epoch,
        trigger=body.trigger,
        total_bytes=body.total_bytes,
        written_bytes=body.written_bytes,
        blocking_s=body.blocking_s,
        metrics_json=json_text(body.metrics),
        committed_at=checkpoint.at,
        committed_us=micros(checkpoint.at),
        **spent_columns(body.spent),
        superseded_at=checkpoint.superseded_at,
        quarantined_at=checkpoint.quarantined_at,
        deleted_at=checkpoint.deleted_at,
        withdrawn_us=None if checkpoint.withdrawn_at is None else micros(checkpoint.withdrawn_at),
    )


def _eval_row(state: RunState, evaluation: EvalState) -> Row:
    opened, ended = evaluation.opened, evaluation.ended
    return row_of(
        run_id=state.run_id,
        eval_id=opened.eval_id,
        number=opened.number,
        attempt_id=opened.checkpoint.attempt_id,
        step=opened.checkpoint.step,
        manifest_sha256=opened.checkpoint.manifest_sha256,
        suite=opened.suite,
        suite_version=opened.suite_version,
        dataset=opened.snapshot.dataset,
        snapshot_id=opened.snapshot.snapshot_id,
        seed=opened.seed,
        decision=opened.decision,
        decided_by=opened.decided_by,
        dagster_run_id=ended.dagster_run_id if ended else None,
        opened_at=evaluation.opened_at,
        started_at=time_of(ended.started_at) if ended else None,
        ended_at=time_of(ended.finished_at) if ended else None,
        reason=ended.reason if ended else None,
        message=ended.message if ended else None,
        metrics_json=json_text(ended.metrics) if ended else None,
        sample_count=ended.sample_count if ended else None,
        device_seconds=ended.device_seconds if ended else None,
        environment_sha256=ended.environment_sha256 if ended else None,
        ended_us=micros(evaluation.ended_at) if evaluation.ended_at else None,
        lag_s=_lag_s(state, evaluation),
    )


def _lag_s(state: RunState, evaluation: EvalState) -> float | None:
    """Return the seconds from the checkpoint's commit to the record of the eval's end."""
    checkpoint = state.checkpoint(evaluation.opened.checkpoint.manifest_sha256)
    if checkpoint is None or evaluation.ended_at is None:
        return None
    return max(0.0, (evaluation.ended_at - checkpoint.at).total_seconds())


def _promotion_row(run_id: str, promotion: Dated[PromotionDecided]) -> Row:
    body = promotion.body
    return row_of(
        run_id=run_id,
        seq=promotion.seq,
        alias=body.alias,
        promoted=body.promoted,
        attempt_id=body.checkpoint.attempt_id,
        step=body.checkpoint.step,
        manifest_sha256=body.checkpoint.manifest_sha256,
        eval_id=body.eval_id,
        eval_number=body.eval_number,
        suite=body.suite,
        suite_version=body.suite_version,
        dataset=body.snapshot.dataset,
        snapshot_id=body.snapshot.snapshot_id,
        seed=body.seed,
        environment_sha256=body.environment_sha256,
        metric=body.metric,
        value=body.metrics.get(body.metric),
        direction=body.direction,
        threshold=body.threshold,
        metrics_json=json_text(body.metrics),
        decided_by=body.decided_by,
        why=body.why,
        decided_at=promotion.at,
        is_withheld=body.is_withheld,
    )


def _note_row(run_id: str, note: Dated[Note]) -> Row:
    return row_of(
        run_id=run_id,
        seq=note.seq,
        kind="note",
        attempt_id=note.attempt_id,
        author=note.body.by,
        text=note.body.text,
        data_json=json_text(note.body.data),
        noted_at=note.at,
    )


def _alert_row(run_id: str, alert: Dated[Alert]) -> Row:
    return row_of(
        run_id=run_id,
        seq=alert.seq,
        kind="alert",
        attempt_id=alert.attempt_id,
        author=alert.body.rule,
        text=alert.body.text,
        data_json=json_text(alert.body.data),
        noted_at=alert.at,
    )


def _dataset_row(state: DatasetState) -> Row:
    newest = state.newest_usable
    return row_of(
        dataset=state.declared.dataset,
        kind=state.declared.kind,
        description=state.declared.description,
        declared_at=state.declared_at,
        snapshot_count=len(state.snapshots),
        newest_usable_snapshot_id=newest.body.snapshot_id if newest else None,
    )


def _snapshot_row(snapshot: SnapshotState) -> Row:
    body = snapshot.body
    return row_of(
        dataset=body.dataset,
        snapshot_id=body.snapshot_id,
        status="usable" if snapshot.quarantined_why is None else "quarantined",
        quarantined_why=snapshot.quarantined_why,
        manifest_key=body.manifest_key,
        logical_sha256=body.logical_sha256,
        row_count=body.row_count,
        shard_count=body.shard_count,
        total_bytes=body.total_bytes,
        source=body.source,
        checks_json=json_text(body.checks),
        dagster_run_id=body.dagster_run_id,
        committed_at=snapshot.at,
        quarantined_at=snapshot.quarantine.at if snapshot.quarantine else None,
    )
