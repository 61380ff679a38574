"""What `tracks run` prints last: one JSON object that says how a training run went.

Its fields are a contract with scripts. Two runs are compared by `final`: the same weights have the
same `weights_sha256`, the same samples in the same order the same `samples_sha256`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from tracks_dagster.core.bodies import EvalEnded, EvalOpened
from tracks_dagster.core.body_json import to_json
from tracks_dagster.core.checkpoints import CheckpointRef
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.core.reasons import TerminationReason
from tracks_dagster.core.records import Json, format_time
from tracks_dagster.core.run_state import RunState
from tracks_dagster.services.receipts import Receipt, RunReceipts

WeightsDigest = Callable[[ObjectStore, CheckpointRef], str]  # of all model tensors, verified


def outcome(run: RunReceipts, store: ObjectStore, weights_digest: WeightsDigest) -> dict[str, Json]:
    """Return the outcome of a run; raises what `weights_digest` raises for a corrupt checkpoint."""
    return {
        "run_id": run.state.run_id,
        "state": run.status.state,
        "attempts": [_attempt(receipt) for receipt in run.receipts],
        "final": _final(run, store, weights_digest),
        "evals": [
            _eval(e.opened, e.ended)
            for e in run.state.evals
            if e.ended is not None and e.ended.reason == TerminationReason.COMPLETED
        ],
        "promotion": _promotion(run.state),
    }


def samples_sha256(receipts: Sequence[Receipt], last_step: int) -> str | None:
    """Return the digest of all sample indices that steps 1 to `last_step` consumed, in order.

    It is the sha256 of the kept steps' `indices_sha256` (hex digits), concatenated in step order.
    None when the journal of one of these steps is not in the store.
    """
    kept = {step.step: step.indices_sha256 for r in receipts for step in r.kept_steps}
    if any(step not in kept for step in range(1, last_step + 1)):
        return None
    joined = "".join(kept[step] for step in range(1, last_step + 1))
    return hashlib.sha256(joined.encode()).hexdigest()


def _attempt(receipt: Receipt) -> dict[str, Json]:
    attempt, account = receipt.attempt, receipt.account
    return {
        "attempt_id": attempt.attempt_id,
        "termination_reason": attempt.reason.value if attempt.reason else None,
        "resumed_from_step": attempt.resumed_step or None,
        "last_step": account.last if account.last > account.resume else None,
        "kept_steps": account.kept,
        "lost_steps": account.lost,
        "gpu_seconds": attempt.ended.device_seconds if attempt.ended else None,
        "continuity": to_json(receipt.continuity) if receipt.continuity else None,
    }


def _final(
    run: RunReceipts, store: ObjectStore, weights_digest: WeightsDigest
) -> dict[str, Json] | None:
    ref = run.final
    if ref is None:
        return None
    return {
        "step": ref.step,
        "weights_sha256": weights_digest(store, ref),
        "manifest_sha256": ref.manifest_sha256,
        "samples_sha256": samples_sha256(run.receipts, ref.step),
    }


def _eval(opened: EvalOpened, ended: EvalEnded) -> dict[str, Json]:
    return {
        "checkpoint_step": opened.checkpoint.step,
        "manifest_sha256": opened.checkpoint.manifest_sha256,
        "suite": opened.suite,
        "snapshot_id": opened.snapshot.snapshot_id,
        "metrics": dict(ended.metrics),
    }


def _promotion(state: RunState) -> dict[str, Json] | None:
    """Return the newest promotion; a refusal to promote is none."""
    promoted = [p for p in state.promotions if p.body.promoted]
    if not promoted:
        return None
    newest = promoted[-1]
    return {
        "alias": newest.body.alias,
        "manifest_sha256": newest.body.checkpoint.manifest_sha256,
        "decided_by": newest.body.decided_by,
        "at": format_time(newest.at),
    }
