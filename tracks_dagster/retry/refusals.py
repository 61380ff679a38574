"""Why no next attempt is opened where another track stands against it: what the run branched from, its
snapshot, or a source in quarantine. Pure."""

from __future__ import annotations

from tracks_dagster.retry.advice import retry_command
from tracks_dagster.retry.decision import Refuse
from tracks_dagster.retry.decision_words import seqs_of
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.run_state import AttemptState, RunState

QUARANTINE_LIMIT = "quarantine"  # of a refusal, as in `RetryRefused`


def cut_off(failed: AttemptState, reason: TerminationReason, why: str) -> Refuse:
    """Refuse what has nothing left to resume from: a branch may not silently begin at step 0."""
    ended = f"Attempt {failed.attempt_id} ended as {reason} (record {failed.ended_seq})"
    return Refuse(
        reason=reason,
        limit="branch",
        decision=f"{ended} and is not retried: the run has no checkpoint of its own, and {why}",
        what_to_do=(
            "Declare another branch (`tracks run --from RUN@STEP`): this one goes on from that "
            "checkpoint or not at all."
        ),
        counted_seqs=seqs_of(failed, ()),
    )


def without_data(
    state: RunState, failed: AttemptState, reason: TerminationReason, why: str
) -> Refuse:
    """Refuse what would train on data that was found to be bad."""
    ended = f"Attempt {failed.attempt_id} ended as {reason} (record {failed.ended_seq})"
    return Refuse(
        reason=reason,
        limit="snapshot",
        decision=f"{ended} and is not retried: {why}",
        what_to_do=(
            f"Give it another snapshot: `{retry_command(state.run_id, '--snapshot SNAPSHOT')}`; or "
            f"release this one, then `{retry_command(state.run_id)}` goes on."
        ),
        counted_seqs=seqs_of(failed, ()),
    )


def in_quarantine(
    state: RunState, failed: AttemptState, reason: TerminationReason, why: str
) -> Refuse:
    """Refuse what would build on a source that a person does not trust."""
    ended = f"Attempt {failed.attempt_id} ended as {reason} (record {failed.ended_seq})"
    return Refuse(
        reason=reason,
        limit=QUARANTINE_LIMIT,
        decision=f"{ended} and is not retried: {why}",
        what_to_do=(
            "Declare a run that does not rest on it, or release it, and then "
            f"`{retry_command(state.run_id)}` goes on."
        ),
        counted_seqs=seqs_of(failed, ()),
    )
