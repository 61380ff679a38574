"""The refusal in place of a decision that fits no record: tried again, it would fail for ever."""

from __future__ import annotations

from tracks_dagster.retry.decision import Refuse, Retry
from tracks_dagster.track.errors import RecordTooLarge
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import RECORD_BYTES_MAX, Draft, canonical_json
from tracks_dagster.track.states.run_state import RunState


def too_large(
    state: RunState, decision: Retry | Refuse, draft: Draft, error: RecordTooLarge
) -> Refuse:
    """Return the refusal in place of a decision whose record is too large to be stored."""
    failed = state.attempts[-1]
    sizes = {key: len(canonical_json(value)) for key, value in draft.body.items()}
    largest = max(sizes, key=lambda key: sizes[key])
    return Refuse(
        reason=failed.reason or TerminationReason.UNKNOWN,
        limit="record",
        decision=(
            f"Attempt {failed.attempt_id} ended as {failed.reason} (record {failed.ended_seq}), and "
            f"what was decided cannot be stored: {error} The largest part of it is {largest}, "
            f"{sizes[largest]} bytes of at most {RECORD_BYTES_MAX} in all."
        ),
        what_to_do=(
            f'Make {largest} smaller: `tracks retry {state.run_id} --why "…" --set KEY=VALUE` '
            f"changes the config; `tracks run --from {state.run_id}@STEP` goes on in a new run, which "
            "has none of what was added to this one."
        ),
        counted_seqs=decision.counted_seqs,
    )
