"""One attempt's receipt as flat, named values: what Dagster's UI shows beside the attempt.

Units stand in the keys. Values are JSON; a value that is not known is left out.
"""

from __future__ import annotations

from tracks_dagster.core.body_json import to_json
from tracks_dagster.core.checkpoints import checkpoint_at
from tracks_dagster.core.errors import UnknownRun
from tracks_dagster.core.names import attempt_key
from tracks_dagster.core.placement import nodes_of
from tracks_dagster.core.records import Json
from tracks_dagster.services.receipts import Receipt, read_receipts
from tracks_dagster.services.tracks import Tracks


def attempt_metadata(tracks: Tracks, run_id: str, attempt_id: int) -> dict[str, Json]:
    """Return the receipt of an attempt as it stands now; raises UnknownRun."""
    for receipt in read_receipts(tracks, run_id).receipts:
        if receipt.attempt.attempt_id == attempt_id:
            return receipt_metadata(run_id, receipt)
    raise UnknownRun(f"{run_id} has no attempt {attempt_id}.")


def receipt_metadata(run_id: str, receipt: Receipt) -> dict[str, Json]:
    """Return what is recorded of one attempt: why it ended, on what it ran, from where.

    Kept and lost steps are not among it: what a later attempt resumes from decides them, and an event
    in Dagster's log is never corrected. `tracks explain` tells them.
    """
    attempt = receipt.attempt
    opened = attempt.opened
    values: dict[str, Json] = {
        "attempt": attempt_key(run_id, attempt.attempt_id),
        **_end(receipt),
        "training_run_id": run_id,
        "opened_because": opened.decision,
        "decided_by": opened.decided_by,
        "changes": [to_json(change) for change in opened.remediation] or None,
        "resumed_from": checkpoint_at(attempt.resumed_from) if attempt.resumed_from else None,
        "resumed_from_step": attempt.resumed_step,
        "last_step": receipt.account.last,
        "last_committed_step": receipt.last_committed_step,
        "saves_failed": len(receipt.failed_saves) or None,
        "continuity": to_json(receipt.continuity) if receipt.continuity else None,
        "snapshot_id": opened.snapshot.snapshot_id,
        "dataset": opened.snapshot.dataset,
        "config": dict(opened.config),
        "ranks": opened.compute.ranks,
        **_placement(receipt),
    }
    return {name: value for name, value in values.items() if value is not None}


def _placement(receipt: Receipt) -> dict[str, Json]:
    placed = receipt.attempt.placed
    if placed is None:
        return {}
    return {
        "launch_id": placed.launch_id,
        "nodes": list(nodes_of(placed)),
        "devices": [place.device for place in placed.ranks],
        "image": placed.image,
        "environment": dict(placed.environment),
    }


def _end(receipt: Receipt) -> dict[str, Json]:
    ended, reason = receipt.attempt.ended, receipt.attempt.reason
    if ended is None or reason is None:
        return {}
    return {
        "termination_reason": reason.value,
        "meaning": reason.sentence,
        "decided_by_rule": ended.rule,
        "confidence": ended.confidence,
        "evidence_lines": list(ended.lines),
        "evidence_key": ended.evidence_key,
        "device_seconds": ended.device_seconds,
        "accelerator": ended.accelerator,
        "started_at": ended.started_at,
        "finished_at": ended.finished_at,
        "closed_by": ended.closed_by,
    }
