"""What `tracks run` prints last: one JSON object that says how a training run went.

Its fields are a contract with scripts. Two runs are compared by `final`: the same weights have the
same `weights_sha256`, the same samples in the same order the same `samples_sha256`. Where the weights
cannot be read, `weights_sha256` is null and `problem` says what was found and what is next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from tracks_dagster.checkpoints.effects.verification import Verified, describe_fallback, quarantine
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.facts.attempt import ATTEMPT
from tracks_dagster.ledger.facts.fact import row
from tracks_dagster.review.effects.receipts import Receipt, RunReceipts, read_receipts
from tracks_dagster.track.bodies import EvalEnded, EvalOpened
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import CheckpointCorrupt, CheckpointMismatch, StoreError
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState

ATTEMPT_FACTS = (  # of each attempt, as the ledger's columns
    *("attempt_id", "termination_reason", "resumed_from_step", "last_step"),
    *("kept_steps", "lost_steps", "gpu_seconds"),
)

WeightsDigest = Callable[[ObjectStore, CheckpointRef], str]  # of all model tensors, verified


def read_outcome(
    tracks: Tracks, run_id: str, weights_digest: WeightsDigest, *, by: str
) -> dict[str, Json]:
    """Return the outcome of a run as its track and journals are now.

    A final checkpoint that turns out to be corrupt is quarantined in the name of `by`, so that nothing
    resumes from it. Raises UnknownRun, and StoreError where the track itself cannot be read.
    """
    run = read_receipts(tracks, run_id)
    return {
        "run_id": run.state.run_id,
        "state": run.status.state,
        "attempts": [_attempt(receipt) for receipt in run.receipts],
        "final": _final(tracks, run, weights_digest, by=by),
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
    None when the journal of one of these steps is not in the store, or the order is the script's own.
    """
    steps = (step for receipt in receipts for step in receipt.kept_steps)
    kept = {each.step: each.indices_sha256 for each in steps if each.indices_sha256 is not None}
    if any(step not in kept for step in range(1, last_step + 1)):
        return None
    joined = "".join(kept[step] for step in range(1, last_step + 1))
    return hashlib.sha256(joined.encode()).hexdigest()


def _attempt(receipt: Receipt) -> dict[str, Json]:
    columns = row(ATTEMPT, receipt.view)
    continuity = to_json(receipt.continuity) if receipt.continuity else None
    return {**{name: columns[name] for name in ATTEMPT_FACTS}, "continuity": continuity}


def _final(
    tracks: Tracks, run: RunReceipts, weights_digest: WeightsDigest, *, by: str
) -> dict[str, Json] | None:
    ref = run.final
    if ref is None:
        return None
    digest, problem = None, None
    try:
        digest = weights_digest(tracks.store, ref)
    except CheckpointCorrupt as error:
        problem = _corrupt(run, quarantine(tracks, ref, str(error), by=by))
    except (CheckpointMismatch, StoreError) as error:
        problem = f"{error} To read it again: `tracks checkpoints verify {_named(ref)}`."
    return {
        "step": ref.step,
        "weights_sha256": digest,
        "manifest_sha256": ref.manifest_sha256,
        "samples_sha256": samples_sha256(run.receipts, ref.step),
        "problem": problem,
    }


def _corrupt(run: RunReceipts, read: Verified) -> str | None:
    """Say what was found, which record keeps everybody away from it, and how the run continues.

    None where it was deleted while it was read.
    """
    if read.problem is None:
        return None
    record = f"record {read.seq}" if read.seq is not None else "an earlier record"
    found = f"{read.problem} Quarantined by {record}. {describe_fallback(read.fallback)}"
    return f"{found} {_go_on(run, read.fallback)}"


def _go_on(run: RunReceipts, fallback: CheckpointRef | None) -> str:
    run_id = run.state.run_id
    if run.state.finished is None:
        return f"To resume: `tracks run --run-id {run_id}`."
    if fallback is None:
        return "To train it again: `tracks run`, with the same options and another --run-id."
    return (
        f"To train the steps after it again: `tracks run --from {fallback.run_id}@{fallback.step} "
        f'--intent "…"`.'
    )


def _named(ref: CheckpointRef) -> str:
    return f"{ref.run_id} --step {ref.step} --attempt {ref.attempt_id}"


def _eval(opened: EvalOpened, ended: EvalEnded) -> dict[str, Json]:
    return {
        "checkpoint_step": opened.checkpoint.step,
        "manifest_sha256": opened.checkpoint.manifest_sha256,
        "suite": opened.suite,
        "snapshot_id": None if opened.snapshot is None else opened.snapshot.snapshot_id,
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
