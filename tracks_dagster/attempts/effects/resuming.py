"""Checks whether an attempt may resume as it was opened to, before its gang starts.

Three questions: was what it builds on put in quarantine since it was opened, does another run's
checkpoint still hold (from one of its own that does not, the trainer falls back by itself), and would
the gang compute with what the checkpoint was saved with, or any that it may fall back to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.attempts.ports import ForeseeEnvironment
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.hold import (
    HoldAct,
    find_hold,
    key_of_checkpoint,
    key_of_run,
    loss_for_branch,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.evidence import (
    CHECKPOINT_WITHDRAWN,
    ENVIRONMENT_DIFFERS,
    SNAPSHOT_QUARANTINED,
    SOURCE_QUARANTINED,
    START_REFUSED,
    Condition,
)
from tracks_dagster.retry.environments import (
    Difference,
    EnvironmentJudgement,
    EnvironmentRule,
    differences,
    format_differences,
    judge,
)
from tracks_dagster.track.bodies import AttemptPlaced, Note
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import AttemptState, RunState, program_of, trainer_of

NOTE_BY = "supervisor"
NAMED_MAX = 16  # checkpoints in one note: a record is at most 16 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeCheck:
    """refusal: why no gang may start; note: which allowed differences to record."""

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
    """Check what `attempt` builds on and what its gang would get.

    Writes nothing. An attempt that starts afresh, or whose checkpoint's launch recorded no environment,
    is not refused for its environment.
    """
    refusal = _in_quarantine(tracks, state, attempt)
    if refusal is not None:
        return ResumeCheck(refusal=refusal)
    ref = attempt.opened.resume
    if ref is None:
        return ResumeCheck()
    if ref.run_id != state.run_id:
        lost = loss_for_branch(tracks.find_run(ref.run_id), ref)
        if lost is not None:
            return ResumeCheck(refusal=_refusal(tracks, CHECKPOINT_WITHDRAWN, lost.sentence))
    program = program_of(state, attempt)
    found = foresee(trainer_of(state, attempt), None if program is None else program.python)
    compared = [
        _compare(tracks, state, each, found, rules, is_fallback=each != ref)
        for each in _reachable(state, ref)
    ]
    differing = [each for each in compared if each.differences]
    refused = [each for each in differing if each.is_refused]
    if refused and not attempt.opened.allows_environment_change:
        return ResumeCheck(
            refusal=_refusal(tracks, ENVIRONMENT_DIFFERS, _describe_refusal(state, refused[0]))
        )
    return ResumeCheck(note=_note(state, attempt, differing))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A checkpoint that may be resumed from. is_refused: only a person can let it be so."""

    ref: CheckpointRef
    is_fallback: bool
    judgement: EnvironmentJudgement
    is_refused: bool

    @property
    def differences(self) -> tuple[Difference, ...]:
        return (*self.judgement.refused, *self.judgement.reported)


def _in_quarantine(tracks: Tracks, state: RunState, attempt: AttemptState) -> Condition | None:
    """Return what was put in quarantine since the attempt was opened: its data, code or checkpoint.

    The next attempt, which a person opens, begins at what does not descend from it.
    """
    holds, ref = Holds(tracks), attempt.opened.resume
    hold = holds.on_snapshot(attempt.opened.snapshot)
    if hold is not None:
        return _refusal(tracks, SNAPSHOT_QUARANTINED, f"No gang was started: {hold.sentence}")
    found = holds.on_lineage(state)
    hold = find_hold(found, HoldAct.QUARANTINE, key_of_run(state.run_id))
    if hold is None and ref is not None:
        hold = find_hold(found, HoldAct.QUARANTINE, key_of_checkpoint(ref))
    if hold is None:
        return None
    return _refusal(tracks, SOURCE_QUARANTINED, f"No gang was started: {hold.sentence}")


def _reachable(state: RunState, asked: CheckpointRef) -> list[CheckpointRef]:
    """Return what the gang may resume from: `asked`, and what it falls back to from corrupt ones.

    Only the newest of each attempt: an attempt has one environment.
    """
    own = sorted(state.resumable, key=lambda ref: (ref.attempt_id, ref.step), reverse=True)
    source = state.declared.branched_from
    newest: dict[tuple[str, int], CheckpointRef] = {}
    for ref in (asked, *own, *((source,) if source is not None else ())):
        newest.setdefault((ref.run_id, ref.attempt_id), ref)
    return list(newest.values())


def _compare(
    tracks: Tracks,
    state: RunState,
    ref: CheckpointRef,
    found: Mapping[str, Json],
    rules: Sequence[EnvironmentRule],
    *,
    is_fallback: bool,
) -> _Compared:
    """Compare what wrote `ref` with what the gang would get.

    A fallback is not refused where a person let a later attempt run with the libraries that are
    found now: that covers everything before.
    """
    is_own = ref.run_id == state.run_id
    source = state if is_own else tracks.find_run(ref.run_id)
    judgement = _judge(source.attempt(ref.attempt_id) if source is not None else None, found, rules)
    later = state.attempts[ref.attempt_id if is_own else 0 :]
    was_allowed = is_fallback and any(
        each.opened.allows_environment_change
        and each.restored is not None
        and _judge(each, found, rules).is_allowed
        for each in later
    )
    return _Compared(
        ref=ref,
        is_fallback=is_fallback,
        judgement=judgement,
        is_refused=not judgement.is_allowed and not was_allowed,
    )


def _judge(
    wrote: AttemptState | None, found: Mapping[str, Json], rules: Sequence[EnvironmentRule]
) -> EnvironmentJudgement:
    """Judge what differs from the environment of an attempt; without one nothing differs."""
    saved = _comparable(wrote.placed) if wrote is not None and wrote.placed is not None else {}
    return judge(differences(saved, found), rules)


def _describe_refusal(state: RunState, refused: _Compared) -> str:
    which = ", which it would fall back to from a corrupt one," if refused.is_fallback else ""
    return (
        f"{format_differences(refused.judgement.refused)}: {_named(refused.ref)}{which} was saved "
        "with other libraries than the gang would get, so none was started. Install those again, "
        f'or allow it with `tracks retry {state.run_id} --why "…" --allow-environment-change`.'
    )


def _note(state: RunState, attempt: AttemptState, differing: Sequence[_Compared]) -> Note | None:
    """Return the note on allowed differences; None without one, or when it was left already."""
    if not differing or _was_noted(state, attempt):
        return None
    sentences = []
    for each in differing[:NAMED_MAX]:
        verb = "From a corrupt one it may fall back to" if each.is_fallback else "Resumes"
        allowed = f", allowed by {attempt.opened.decided_by}" if each.is_refused else ""
        words = format_differences(each.differences)
        how = "with other code" if _is_of_code(each) else "in another environment"
        sentences.append(f"{verb} {_named(each.ref)} {how}{allowed}: {words}.")
    return Note(
        by=NOTE_BY,
        text=" ".join(sentences),
        data={"differences": [to_json(each) for each in differing[0].differences]},
    )


def _is_of_code(compared: _Compared) -> bool:
    """Whether nothing differs but the code."""
    return all(each.key.endswith("code_sha256") for each in compared.differences)


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


def _was_noted(state: RunState, attempt: AttemptState) -> bool:
    """Whether a supervisor that died before the gang started left the note already."""
    return any(
        note.body.by == NOTE_BY and note.attempt_id == attempt.attempt_id for note in state.notes
    )


def _named(ref: CheckpointRef) -> str:
    return f"step {ref.step} of {ref.run_id} (attempt {ref.attempt_id})"
