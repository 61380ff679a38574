"""Finds the checkpoint that an attempt really resumes from, falling back loudly from a corrupt one."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tracks_dagster.core import run_fold
from tracks_dagster.core.bodies import CheckpointDecision
from tracks_dagster.core.body_json import from_json, to_json
from tracks_dagster.core.checkpoints import CheckpointRef, resume_target
from tracks_dagster.core.errors import CheckpointCorrupt, TrackBroken
from tracks_dagster.core.records import Draft, Json, Kind, Record
from tracks_dagster.core.track import read_records, run_track
from tracks_dagster.training.checkpoint_files import Stored, read_checkpoint
from tracks_dagster.training.launch import Launch

FALLBACKS_MAX = 64  # corrupt checkpoints passed over before the attempt gives up
WHY_CHARS_MAX = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What to restore; stored is None for a fresh start. fallback_why: see `AttemptRestored`."""

    stored: Stored | None
    fallback_why: str | None


def find_checkpoint(launch: Launch) -> Found:
    """Return the checkpoint that the attempt was opened with, else the newest that is whole.

    Collective. Every rank reads and verifies all of it; what any rank finds corrupt is quarantined.
    With none left the run starts afresh. Raises Fenced, and CheckpointCorrupt when it was another
    run's, which only that run may quarantine.
    """
    asked = launch.opened.resume
    if asked is None:
        return Found(stored=None, fallback_why=None)
    problems: list[str] = []
    for _ in range(FALLBACKS_MAX):
        target = _ref(launch.ranks.from_first(lambda: _choose(launch, asked)))
        if target is None:
            return Found(stored=None, fallback_why=_explain(problems, asked, target))
        stored, problem = _read(launch, target)
        if problem is None:
            return Found(stored=stored, fallback_why=_explain(problems, asked, target))
        problems.append(problem)
        if target.run_id != launch.place.run_id:
            break
        _quarantine(launch, target, problem)
    raise CheckpointCorrupt(
        f"{len(problems)} checkpoints cannot be restored, the last one because: {problems[-1]}"
    )


def _choose(launch: Launch, asked: CheckpointRef) -> Json:
    """Return `asked` while it may be resumed from, else the resume target of what is left."""
    state = run_fold.fold(read_records(launch.store, run_track(launch.place.run_id)))
    if state is None:
        raise TrackBroken(f"{run_track(launch.place.run_id)} has no records.")
    if asked in state.resumable or asked.run_id != launch.place.run_id:
        return to_json(asked)
    return to_json(resume_target(state.resumable)) if state.resumable else None


def _read(launch: Launch, target: CheckpointRef) -> tuple[Stored | None, str | None]:
    """Return the checkpoint and None, or what the first rank with a problem found."""
    stored, problem = None, None
    try:
        stored = read_checkpoint(launch.store, target)
    except CheckpointCorrupt as error:
        problem = str(error)
    found = [each for each in launch.ranks.gather(problem) if each is not None]
    return stored, found[0] if found else None


def _quarantine(launch: Launch, target: CheckpointRef, problem: str) -> None:
    print(
        f"The checkpoint of step {target.step} (attempt {target.attempt_id}) is corrupt and is "
        f"quarantined: {problem}",
        file=sys.stderr,
        flush=True,
    )
    body = CheckpointDecision(
        manifest_sha256=target.manifest_sha256,
        by=f"attempt {launch.place.attempt_id}, at restore",
        why=problem[:WHY_CHARS_MAX],
    )
    draft = launch.draft(Kind.CHECKPOINT_QUARANTINED, body)

    def choose(seen: list[Record]) -> Draft | None:
        done = any(
            record.kind is Kind.CHECKPOINT_QUARANTINED
            and record.body["manifest_sha256"] == target.manifest_sha256
            for record in seen
        )
        return None if done else draft

    def decide() -> Json:
        launch.own_track.decide(choose)
        return None

    launch.ranks.from_first(decide)


def _explain(problems: list[str], asked: CheckpointRef, target: CheckpointRef | None) -> str | None:
    if target == asked:
        return None
    cause = " ".join(problems) or "It was quarantined or deleted after the attempt was opened."
    instead = (
        "nothing is left, so it starts afresh"
        if target is None
        else (f"resumed from step {target.step} of attempt {target.attempt_id} instead")
    )
    return f"Step {asked.step} of attempt {asked.attempt_id}: {cause[:WHY_CHARS_MAX]} — {instead}."


def _ref(value: Json) -> CheckpointRef | None:
    return None if value is None else from_json(CheckpointRef, value)
