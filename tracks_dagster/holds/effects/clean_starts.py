"""What may be started from, as far as quarantines go: asked before every decision that starts or gives
anything (an attempt, a branch, an eval, a promotion)."""

from __future__ import annotations

from tracks_dagster.holds.clean_start import NothingClean, Withheld, clean_start
from tracks_dagster.holds.effects.quarantines import Marks, Quarantines
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import CodeVersion, SnapshotRef
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import RunState


def withheld_of(quarantines: Quarantines, state: RunState) -> Withheld:
    """Return what a run's next attempt may not build upon: its code, some of its checkpoints."""
    carried = quarantines.of_checkpoints(state)
    checkpoints = {
        ref.manifest_sha256: words
        for ref in state.resumable
        if (words := first_words(carried.get(ref.manifest_sha256, {}))) is not None
    }
    source = state.declared.branched_from
    if source is not None:
        words = first_words(quarantines.of_checkpoint(source))
        if words is not None:
            checkpoints[source.manifest_sha256] = words
    code = first_words(quarantines.of_code(state.declared.code))
    run = None if code is None else f"{state.run_id} {code}"
    return Withheld(run=run, checkpoints=checkpoints)


def refuse_declaration(
    tracks: Tracks, run_id: str, code: CodeVersion, source: CheckpointRef | None
) -> None:
    """Raise InvalidInput when a run would be declared with code, or as a branch of a checkpoint, that
    is or descends from a source in quarantine."""
    quarantines, doing = Quarantines(tracks), f"{run_id} cannot be declared"
    words = first_words(quarantines.of_code(code))
    if words is not None:
        raise InvalidInput(f"{doing}: it {words}")
    words = first_words(quarantines.of_checkpoint(source)) if source is not None else None
    if source is not None and words is not None:
        raise InvalidInput(f"{doing}: {checkpoint_at(source)} {words}")


def resume_or_refuse(
    tracks: Tracks, state: RunState, *, source_withdrawn: str | None, doing: str
) -> tuple[CheckpointRef | None, str]:
    """Return what an attempt that is opened now may resume from, and what there is to say of it.

    doing: what was attempted. Raises InvalidInput when nothing of the run may be opened, or nothing
    is left that it could resume from, naming the source, its record and the command that releases it.
    """
    withheld = withheld_of(Quarantines(tracks), state)
    if withheld.run is not None:
        raise InvalidInput(f"{doing}: {withheld.run}")
    start = clean_start(state, state.resumes_from, withheld, source_withdrawn=source_withdrawn)
    if isinstance(start, NothingClean):
        raise InvalidInput(f"{doing}: {start.why}")
    return start.resume, start.words


def checkpoint_withheld(
    tracks: Tracks,
    state: RunState,
    ref: CheckpointRef,
    *,
    snapshot: SnapshotRef | None = None,
    quarantines: Quarantines | None = None,
) -> str | None:
    """Say why nothing may be built on `ref`, or on an eval of it on `snapshot`; None where it may."""
    found = quarantines or Quarantines(tracks)
    words = first_words(found.of_checkpoint(ref, state))
    if words is not None:
        return f"{checkpoint_at(ref)} (attempt {ref.attempt_id}) {words}"
    if snapshot is None or not snapshot.dataset:  # a proposal without an eval names none
        return None
    words = first_words(found.of_snapshot(snapshot))
    return None if words is None else f"the eval {words}"


def first_words(marks: Marks) -> str | None:
    """Return what to say of the oldest of `marks`; None without one. Others are met after it."""
    oldest = min(marks.values(), key=lambda each: (each.at, each.track, each.seq), default=None)
    return None if oldest is None else oldest.words
