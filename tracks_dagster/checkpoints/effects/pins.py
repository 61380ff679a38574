"""Pins: a person, or a run that branched from it, keeps a checkpoint by a record of their own.

Evals and promotions need none: their own records keep the checkpoint (`track.states.protection`).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tracks_dagster.holds.hold import loss
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import CheckpointDecision
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.protection import pins_of
from tracks_dagster.track.states.run_state import CheckpointState, RunState

UNDECLARED_BRANCH_S_MAX = 24 * 3600.0  # a command that pins for a branch declares it at once

_BRANCH = "branch:"


def pin_of_person(person: str) -> str:
    """Return the pin of a person."""
    return f"hold:{person}"


def pin_of_branch(run_id: str) -> str:
    """Return the pin of a run that branches."""
    return f"{_BRANCH}{run_id}"


def pin(tracks: Tracks, ref: CheckpointRef, *, holder: str, by: str, why: str) -> Record | None:
    """Record that `holder` needs `ref` from now on; None when it holds it already.

    Safe to repeat. Raises InvalidInput when it may not be resumed from: never committed, quarantined
    or deleted. (What is quarantined while it is held stays held.)
    """
    return _pin(tracks, ref, holder=holder, by=by, why=why, is_fresh=True)


def pin_source(tracks: Tracks, ref: CheckpointRef, run_id: str, *, by: str) -> None:
    """Pin `ref` for the branch `run_id`, before it is declared: what is pinned is not deleted.

    Idempotent. A pin that a killed command left long ago is recorded again: a pass that is about to
    release it loses its place in the track. Raises InvalidInput as `pin` does.
    """
    holder = pin_of_branch(run_id)
    at = _pinned_at(tracks, ref.run_id).get((ref.manifest_sha256, holder))
    age = tracks.now() - at if at is not None else timedelta(0)
    is_fresh = age < timedelta(seconds=UNDECLARED_BRANCH_S_MAX / 2)
    _pin(tracks, ref, holder=holder, by=by, why=f"{run_id} branches from it.", is_fresh=is_fresh)


def find_pinned(
    state: RunState, step: int, *, holder: str, attempt_id: int | None = None
) -> CheckpointRef:
    """Return the newest checkpoint of `step` that `holder` holds, a quarantined one too.

    Raises InvalidInput naming who holds which checkpoint of that step.
    """
    there = [
        c
        for c in state.checkpoints
        if c.ref.step == step and not c.deleted and attempt_id in (None, c.ref.attempt_id)
    ]
    pinned = [c.ref for c in there if holder in c.pins]
    if not pinned and there:
        raise InvalidInput(_not_pinned(state, there[-1], holder))
    if not pinned:
        steps = ", ".join(str(c.ref.step) for c in state.checkpoints if not c.deleted) or "none"
        raise UnknownRun(f"{state.run_id} has no checkpoint of step {step}; it has: {steps}.")
    return max(pinned, key=lambda ref: ref.attempt_id)


def unpin(tracks: Tracks, ref: CheckpointRef, *, holder: str, by: str, why: str) -> Record:
    """Record that `holder` needs `ref` no longer.

    Raises InvalidInput naming who holds it, when `holder` does not hold it by a record of its own;
    and when it is a branch that has committed nothing yet, which would have nothing to resume from.
    """

    def choose(state: RunState | None) -> Draft | None:
        checkpoint = _committed(state, ref)
        if holder not in checkpoint.pins:
            raise InvalidInput(_not_pinned(state, checkpoint, holder))
        return _draft(tracks, Kind.CHECKPOINT_UNPINNED, ref, holder, by, why)

    _check_branch(tracks, holder)
    record = tracks.decide_run(ref.run_id, choose)
    assert record is not None, "choose raises where it has nothing to say"
    return record


def release_branches(tracks: Tracks, run_id: str, *, by: str) -> tuple[Record, ...]:
    """Unpin what branches of `run_id` held and need no longer. Idempotent, from two processes too.

    A branch needs its source until it is finished, for a quarantine may take all that it committed
    itself. One that was not declared within a day never will be: its command was killed.
    """
    released = []
    for checkpoint in tracks.run(run_id).checkpoints:
        for holder in sorted(checkpoint.pins) if not checkpoint.deleted else ():
            record = _release(tracks, checkpoint.ref, holder, by=by)
            released += [record] if record is not None else []
    return tuple(released)


def _release(tracks: Tracks, ref: CheckpointRef, holder: str, *, by: str) -> Record | None:
    if not holder.startswith(_BRANCH):
        return None
    seen = tracks.run(ref.run_id).head.seq
    at = _pinned_at(tracks, ref.run_id).get((ref.manifest_sha256, holder))
    why = _why_not_needed(tracks, holder, at)
    if why is None:
        return None
    draft = _draft(tracks, Kind.CHECKPOINT_UNPINNED, ref, holder, by, why)

    def choose(state: RunState | None) -> Draft | None:
        # Only at what was looked at: the branch's command may just have pinned again, to declare it.
        return draft if state is not None and state.head.seq == seen else None

    return tracks.decide_run(ref.run_id, choose)


def _pinned_at(tracks: Tracks, run_id: str) -> dict[tuple[str, str], datetime]:
    """Return (manifest sha256, holder) → when it was last pinned, released ones too."""
    return {
        (record.body["manifest_sha256"], record.body["pin"]): record.at
        for record in tracks.records(run_track(run_id))
        if record.kind is Kind.CHECKPOINT_PINNED
    }


def _pin(
    tracks: Tracks, ref: CheckpointRef, *, holder: str, by: str, why: str, is_fresh: bool
) -> Record | None:
    """Pin; is_fresh: an existing pin is good enough."""

    def choose(state: RunState | None) -> Draft | None:
        lost = loss(state, ref)
        if lost is not None:
            raise InvalidInput(lost.sentence)
        checkpoint = state.checkpoint(ref.manifest_sha256) if state is not None else None
        if is_fresh and checkpoint is not None and holder in checkpoint.pins:
            return None
        return _draft(tracks, Kind.CHECKPOINT_PINNED, ref, holder, by, why)

    return tracks.decide_run(ref.run_id, choose)


def _why_not_needed(tracks: Tracks, holder: str, pinned_at: datetime | None) -> str | None:
    """Return why a branch needs its pin no longer; None where it needs it."""
    branch = tracks.find_run(holder.removeprefix(_BRANCH))
    if branch is not None:
        return f"{branch.run_id} is finished." if branch.finished is not None else None
    late = timedelta(seconds=UNDECLARED_BRANCH_S_MAX)
    if pinned_at is None or tracks.now() - pinned_at < late:
        return None
    return f"The branch was not declared within {UNDECLARED_BRANCH_S_MAX / 3600:g} hours."


def _check_branch(tracks: Tracks, holder: str) -> None:
    is_branch = holder.startswith(_BRANCH)
    branch = tracks.find_run(holder.removeprefix(_BRANCH)) if is_branch else None
    if branch is not None and branch.finished is None and not branch.resumable:
        raise InvalidInput(
            f"{branch.run_id} was branched from this checkpoint and has committed none of its own "
            "yet: without the pin it could not be resumed. Stop it first: "
            f"`tracks stop {branch.run_id}`."
        )


def _committed(state: RunState | None, ref: CheckpointRef) -> CheckpointState:
    checkpoint = state.checkpoint(ref.manifest_sha256) if state is not None else None
    if checkpoint is None:
        raise UnknownRun(
            f"{ref.run_id} has committed no checkpoint with the manifest {ref.manifest_sha256}."
        )
    return checkpoint


def _not_pinned(state: RunState | None, checkpoint: CheckpointState, holder: str) -> str:
    holders = ", ".join(pins_of(state, checkpoint)) if state is not None else ""
    return (
        f"{holder} does not hold step {checkpoint.ref.step} of {checkpoint.ref.run_id}; it is held "
        f"by: {holders or 'nobody'}. An eval lets go when it ends or is waived, an alias when it is "
        "given to another checkpoint."
    )


def _draft(tracks: Tracks, kind: Kind, ref: CheckpointRef, holder: str, by: str, why: str) -> Draft:
    body = CheckpointDecision(manifest_sha256=ref.manifest_sha256, by=by, why=why, pin=holder)
    return tracks.draft(kind, body)
