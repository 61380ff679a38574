"""What protects a checkpoint: rules that no writer of ours may break, whatever retention decides. Pure.

Every answer is a tuple of reasons in words; an empty one means that nothing protects it.
`retention` decides what may go by its rule, and asks here; `run_fold.check` asks here again at the
very record that the decision would follow.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.track.records import Json, Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.evals import eval_id, final_checkpoint, unsettled
from tracks_dagster.track.states.run_state import CheckpointState, RunState

RESUMES = "a resume starts from it"


def objection_to(state: RunState, kind: Kind, body: Mapping[str, Json]) -> str | None:
    """Say why a record about a checkpoint may not come next, or None."""
    match kind:
        case Kind.EVAL_OPENED:
            return _objection_to_using(state, "evaluated", body["checkpoint"]["manifest_sha256"])
        case Kind.PROMOTION_DECIDED if body["promoted"]:
            return _objection_to_using(state, "promoted", body["checkpoint"]["manifest_sha256"])
        case Kind.CHECKPOINT_PINNED:
            return _objection_to_using(state, "pinned", body["manifest_sha256"])
        case Kind.CHECKPOINT_QUARANTINED:
            return _objection_to_using(state, "quarantined", body["manifest_sha256"])
        case Kind.CHECKPOINT_SUPERSEDED | Kind.CHECKPOINT_DELETED:
            checkpoint = state.checkpoint(body["manifest_sha256"])
            if checkpoint is None:
                return _objection_to_using(state, "let go", body["manifest_sha256"])
            against = (
                against_superseding(state, checkpoint)
                if kind is Kind.CHECKPOINT_SUPERSEDED
                else against_deleting(state, checkpoint)
            )
            return f"{_name(checkpoint.ref)}: {'; '.join(against)}" if against else None
    return None


def against_superseding(state: RunState, checkpoint: CheckpointState) -> tuple[str, ...]:
    """Return the reasons not to supersede `checkpoint`."""
    if checkpoint.status != "committed":
        return (f"it is {checkpoint.status} already",)
    return (*_uses(state, checkpoint), *_unverified(state))


def against_deleting(state: RunState, checkpoint: CheckpointState) -> tuple[str, ...]:
    """Return the reasons not to delete the bytes of `checkpoint`."""
    if checkpoint.deleted:
        return ("it is deleted already",)
    if checkpoint.status == "committed":
        return ("it was neither superseded nor quarantined", *_uses(state, checkpoint))
    return (
        *_uses(state, checkpoint),
        *_last_verified(state, checkpoint),
        *_in_use(state, checkpoint),
    )


def newest(state: RunState) -> CheckpointState | None:
    """Return the checkpoint that a resume would take now; None when there is none."""
    return (
        state.checkpoint(resume_target(state.resumable).manifest_sha256)
        if state.resumable
        else None
    )


def pins_of(state: RunState, checkpoint: CheckpointState) -> tuple[str, ...]:
    """Return who holds `checkpoint`, sorted: by a pin, by an eval open or due, by an alias it has.

    An alias that this run later gave to another checkpoint holds the older one no longer.
    """
    ref = checkpoint.ref
    open_evals = {
        e.opened.eval_id for e in state.evals if e.ended is None and e.opened.checkpoint == ref
    }
    due_evals = set()
    if state.finished is None and final_checkpoint(state) == ref:
        due_evals = {eval_id(required.suite, ref.step) for required in unsettled(state)}
    holders = {p.body.alias: p.body.checkpoint for p in state.promotions if p.body.promoted}
    aliases = {alias for alias, holder in holders.items() if holder == ref}
    return tuple(
        sorted(
            {
                *checkpoint.pins,
                *(f"eval:{name}" for name in open_evals | due_evals),
                *(f"promotion:{alias}" for alias in aliases),
            }
        )
    )


def _uses(state: RunState, checkpoint: CheckpointState) -> tuple[str, ...]:
    """Name its uses that count whether it is superseded or not."""
    target = newest(state)
    resumed = (RESUMES,) if target and target.ref == checkpoint.ref else ()
    return (*resumed, *(f"pinned by {pin}" for pin in pins_of(state, checkpoint)))


def _unverified(state: RunState) -> tuple[str, ...]:
    """Nothing may go while it is not known that the newest commit can be read."""
    target = newest(state)
    if target is None:
        return ("there is no committed checkpoint to resume from",)
    if target.verified_at is None:
        return (f"the newest commit, step {target.ref.step}, was not verified by a read yet",)
    return ()


def _last_verified(state: RunState, checkpoint: CheckpointState) -> tuple[str, ...]:
    """A newer commit may turn out corrupt: the last one that was read in full stays until then."""
    verified = [c.ref for c in state.checkpoints if c.is_resumable and c.verified_at is not None]
    if verified and resume_target(verified) == checkpoint.ref:
        return ("it is the last one that was verified by a read",)
    return ()


def _in_use(state: RunState, checkpoint: CheckpointState) -> tuple[str, ...]:
    """Name what the open attempt may still need: its saves name chunks of what it restored."""
    attempt = state.open_attempt
    if attempt is None:
        return ()
    name = f"attempt {attempt.attempt_id}"
    if attempt.restored is None:
        return (f"{name} is open and has not restored",)
    own = [c.ref for c in state.checkpoints if c.ref.attempt_id == attempt.attempt_id]
    uses = {
        f"{name}, which is open, restored it": attempt.restored.checkpoint,
        f"{name}, which is open, was opened with it": attempt.opened.resume,
        f"it is the newest commit of {name}, which is open": resume_target(own) if own else None,
    }
    return tuple(words for words, ref in uses.items() if ref == checkpoint.ref)


def _objection_to_using(state: RunState, verb: str, manifest_sha256: str) -> str | None:
    checkpoint = state.checkpoint(manifest_sha256)
    if checkpoint is None:
        return f"no checkpoint with the manifest {manifest_sha256!r} was committed in this run"
    if checkpoint.deleted:
        return f"{_name(checkpoint.ref)} is deleted and cannot be {verb} any more"
    return None


def _name(ref: CheckpointRef) -> str:
    return f"the checkpoint of step {ref.step}, attempt {ref.attempt_id}"
