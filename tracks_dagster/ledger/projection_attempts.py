"""From the state of a run to the rows of `training_attempts`: one attempt, everything about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tracks_dagster.ledger.ports import Row
from tracks_dagster.ledger.projection_values import json_text, row_of, time_of
from tracks_dagster.track.bodies import RunDeclared
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.placement import nodes_of, pool_of
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.track.states.accounting import StepAccount, cursor_from, kept_and_lost
from tracks_dagster.track.states.run_state import AttemptState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """All that an attempt's row depends on, besides the run's declaration.

    account: changes when a later attempt resumes before this one's last step.
    """

    attempt: AttemptState
    account: StepAccount
    checkpoint_count: int


def attempt_views(state: RunState) -> Sequence[AttemptView]:
    """Return the view of every attempt, oldest first."""
    counts = Counter(checkpoint.ref.attempt_id for checkpoint in state.checkpoints)
    return [
        AttemptView(attempt=attempt, account=account, checkpoint_count=counts[attempt.attempt_id])
        for attempt, account in zip(state.attempts, kept_and_lost(state), strict=True)
    ]


def attempt_row(declared: RunDeclared, view: AttemptView) -> Row:
    """Return the row of one attempt."""
    return row_of(
        run_id=declared.run_id,
        attempt_id=view.attempt.attempt_id,
        partition_key=attempt_key(declared.run_id, view.attempt.attempt_id),
        model_family=declared.model_family,
        stage=declared.stage,
        owner=declared.owner,
        intent=declared.intent,
        git_commit=declared.code.git_commit,
        **_opening(view.attempt),
        **_placement(view.attempt),
        **_times(view.attempt),
        **_ending(view.attempt),
        **_work(view),
    )


def _opening(attempt: AttemptState) -> dict[str, Json]:
    opened, debit = attempt.opened, attempt.opened.debit
    return {
        "cause": opened.cause,
        "decision": opened.decision,
        "decided_by": opened.decided_by,
        "policy_version": opened.policy_version,
        "debit_reason": debit.reason if debit else None,
        "debit_amount": debit.amount if debit else None,
        "debit_why": debit.why if debit else None,
        "remediation_json": json_text([to_json(change) for change in opened.remediation]),
        "config_json": json_text(opened.config),
        "config_sha256": sha256_hex(canonical_json(opened.config)),
        "dataset": opened.snapshot.dataset,
        "snapshot_id": opened.snapshot.snapshot_id,
        "pool": pool_of(opened.compute),
    }


def _placement(attempt: AttemptState) -> dict[str, Json]:
    """Return where it ran; before a launch was placed, what was asked for."""
    placed, compute = attempt.placed, attempt.opened.compute
    ranks = placed.ranks if placed else ()
    seen = attempt.ended.accelerator if attempt.ended else None
    return {
        "dagster_run_id": attempt.claims[-1].body.dagster_run_id if attempt.claims else None,
        "launch_id": placed.launch_id if placed else None,
        "ranks": placed.world_size if placed else compute.ranks,
        "nodes_json": json_text(list(nodes_of(placed)) if placed else []),
        "devices_json": json_text([rank.device for rank in ranks]),
        "accelerator": seen or (ranks[0].accelerator if ranks else compute.device_class),
        "image": placed.image if placed else None,
        "environment_sha256": placed.environment_sha256 if placed else None,
    }


def _times(attempt: AttemptState) -> dict[str, Json]:
    """Return its own start and end where they were seen, else the times of the records."""
    ended = attempt.ended
    started_at = time_of(ended.started_at) if ended else None
    finished_at = time_of(ended.finished_at) if ended else None
    return {
        "opened_at": attempt.opened_at,
        "placed_at": attempt.placed_at,
        "restored_at": attempt.restored_at,
        "started_at": started_at or attempt.placed_at or attempt.opened_at,
        "ended_at": finished_at or attempt.ended_at,
        "closed_at": attempt.ended_at,
    }


def _ending(attempt: AttemptState) -> dict[str, Json]:
    """Return why it ended, by the newest reading; every value is None while it is open."""
    ended, reason = attempt.ended, attempt.reason
    reading = attempt.reclassified or ended
    return {
        "termination_reason": reason.value if reason else None,
        "reason_family": reason.family.value if reason else None,
        "confidence": reading.confidence if reading else None,
        "rule": reading.rule if reading else None,
        "classifier_version": reading.classifier_version if reading else None,
        "root_message": ended.root_message if ended else None,
        "fingerprint": attempt.fingerprint,
        "evidence_key": ended.evidence_key if ended else None,
        "evidence_sha256": reading.evidence_sha256 if reading else None,
        "closed_by": ended.closed_by if ended else None,
        "first_line_ran": ended.first_line_ran if ended else None,
    }


def _work(view: AttemptView) -> dict[str, Json]:
    attempt, account, ended = view.attempt, view.account, view.attempt.ended
    source = attempt.resumed_from
    return {
        "gpu_seconds": ended.device_seconds if ended else None,
        "resumed_from_step": account.resume or None,
        "resumed_from_run_id": source.run_id if source else None,
        "resumed_from_manifest_sha256": source.manifest_sha256 if source else None,
        "last_step": account.last if account.last > account.resume else None,
        "kept_steps": account.kept,
        "lost_steps": account.lost,
        "checkpoint_count": view.checkpoint_count,
        "cursor_from": cursor_from(attempt),
        "cursor_to": ended.cursor_to if ended else None,
    }
