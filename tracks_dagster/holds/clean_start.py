"""From which checkpoint a run may go on when some descend from a source in quarantine. Pure.

Nothing is copied into the run's track: the checkpoints that are left behind stay as they are, and are
what a resume takes again once the source is released.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at, resume_target
from tracks_dagster.track.states.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """What other tracks say may not be built upon. run: why no attempt of the run may be opened, None
    where one may; checkpoints: manifest sha256 → why, after the name of the checkpoint."""

    run: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)


NOTHING_WITHHELD = Withheld()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStart:
    """Where an attempt may begin: resume None is the beginning. words: what was left out, or empty."""

    resume: CheckpointRef | None
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingClean:
    """No checkpoint is left to begin at. why: with the source, the record and the command."""

    why: str


def clean_start(
    state: RunState,
    asked: CheckpointRef | None,
    withheld: Withheld,
    *,
    source_withdrawn: str | None,
    given_up: Collection[CheckpointRef] = (),
) -> CleanStart | NothingClean:
    """Return `asked`, or the newest checkpoint before it that descends from nothing in quarantine.

    Then what the run branched from, where it still offers that. Never the beginning of a run that has
    come further: whether its steps are worth a start from nothing is for a person to say.
    given_up: what a rollback passes over.
    """
    if asked is None or asked.manifest_sha256 not in withheld.checkpoints:
        return CleanStart(resume=asked)
    left_out = f"Step {asked.step} (attempt {asked.attempt_id})"
    if asked.run_id != state.run_id:
        left_out = f"{checkpoint_at(asked)} (attempt {asked.attempt_id})"
    told = f"{left_out} {withheld.checkpoints[asked.manifest_sha256]}"
    before = [
        ref
        for ref in state.resumable
        if ref.manifest_sha256 not in withheld.checkpoints
        and ref not in given_up
        and asked.run_id == state.run_id
        and (ref.attempt_id, ref.step) < (asked.attempt_id, asked.step)
        and ref.step <= asked.step
    ]
    if before:
        found = resume_target(before)
        return CleanStart(
            resume=found,
            words=f"{told} It goes back to step {found.step} of attempt {found.attempt_id}, the newest "
            "before it that does not.",
        )
    source = state.declared.branched_from
    if (
        source not in (None, asked)
        and source_withdrawn is None
        and source.manifest_sha256 not in withheld.checkpoints
    ):
        return CleanStart(
            resume=source,
            words=f"{told} It goes back to {checkpoint_at(source)}, where it branched.",
        )
    return NothingClean(why=f"{told} No checkpoint before it is left that does not.")
