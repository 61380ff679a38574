"""Whether an attempt may resume as it was opened to: asked by the supervisor before it starts a gang.

Two questions: does another run's checkpoint still hold (from one of its own that does not, the trainer
falls back by itself), and would the gang compute with what the checkpoint was saved with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracks_dagster.core.bodies import AttemptPlaced, Note
from tracks_dagster.core.body_json import to_json
from tracks_dagster.core.checkpoints import CheckpointRef
from tracks_dagster.core.environments import (
    EnvironmentRule,
    Judgement,
    differences,
    joined,
    judge,
)
from tracks_dagster.core.evidence import (
    CHECKPOINT_WITHDRAWN,
    ENVIRONMENT_DIFFERS,
    START_REFUSED,
    Condition,
)
from tracks_dagster.core.ports import ForeseeEnvironment
from tracks_dagster.core.records import Json, format_time
from tracks_dagster.core.run_state import AttemptState, RunState
from tracks_dagster.services.branch_source import withdrawn
from tracks_dagster.services.tracks import Tracks

NOTE_BY = "supervisor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeCheck:
    """What the supervisor has to know. refusal: why no gang may start; note: what is to be said."""

    refusal: Condition | None = None
    note: Note | None = None


def check_resume(
    tracks: Tracks,
    state: RunState,
    attempt: AttemptState,
    *,
    foresee: ForeseeEnvironment,
    rules: Sequence[EnvironmentRule],
) -> ResumeCheck:
    """Check what `attempt` resumes from and what its gang would get.

    Writes nothing. An attempt that begins afresh is never refused, nor is one whose checkpoint was
    written by a launch that told no environment.
    """
    ref = attempt.opened.resume
    if ref is None:
        return ResumeCheck()
    source: RunState | None = state
    if ref.run_id != state.run_id:
        source = tracks.find_run(ref.run_id)
        if (gone := withdrawn(source, ref)) is not None:
            return ResumeCheck(refusal=_refusal(tracks, CHECKPOINT_WITHDRAWN, gone))
    wrote = source.attempt(ref.attempt_id) if source is not None else None
    if wrote is None or wrote.placed is None:
        return ResumeCheck()
    judgement = judge(differences(_comparable(wrote.placed), foresee()), rules)
    if judgement.is_allowed or attempt.opened.allows_environment_change:
        return ResumeCheck(note=_note(state, attempt, ref, judgement))
    words = (
        f"{joined(judgement.refused)}: {_named(ref)} was saved with other libraries than the gang "
        "would get, so none was started. Install those again, or let it go on with "
        f'`tracks retry {state.run_id} --why "…" --allow-environment-change`.'
    )
    return ResumeCheck(refusal=_refusal(tracks, ENVIRONMENT_DIFFERS, words))


def _note(
    state: RunState, attempt: AttemptState, ref: CheckpointRef, judgement: Judgement
) -> Note | None:
    """Return what is to be said of an allowed difference; None without one, or when it was said."""
    differing = (*judgement.refused, *judgement.said)
    if not differing or _was_said(state, attempt):
        return None
    allowed = f", allowed by {attempt.opened.decided_by}" if judgement.refused else ""
    return Note(
        by=NOTE_BY,
        text=f"Resumes {_named(ref)} in another environment{allowed}: {joined(differing)}.",
        data={"differences": [to_json(each) for each in differing]},
    )


def _refusal(tracks: Tracks, reason: str, words: str) -> Condition:
    return Condition(
        type=START_REFUSED,
        reason=reason,
        message=words,
        at=format_time(tracks.now()),
        source=NOTE_BY,
    )


def _comparable(placed: AttemptPlaced) -> dict[str, Json]:
    """Return the environment of a launch; the thread count only where the CPU did the sums."""
    saved = dict(placed.environment)
    if any(place.device != "cpu" for place in placed.ranks):
        saved.pop("threads", None)
    return saved


def _was_said(state: RunState, attempt: AttemptState) -> bool:
    """Whether a supervisor that died before the gang started left the note already."""
    return any(
        note.body.by == NOTE_BY and note.attempt_id == attempt.attempt_id for note in state.notes
    )


def _named(ref: CheckpointRef) -> str:
    return f"step {ref.step} of {ref.run_id} (attempt {ref.attempt_id})"
