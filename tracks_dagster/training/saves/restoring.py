"""Finds the checkpoint that an attempt really resumes from, falling back loudly from a corrupt one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tracks_dagster.track.bodies import CheckpointDecision
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import CheckpointCorrupt, CheckpointMismatch, TrackBroken
from tracks_dagster.track.names import AttemptRef, run_track
from tracks_dagster.track.records import Draft, Json, Kind, Record
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.track import read_records
from tracks_dagster.training.launch import Launch

FALLBACKS_MAX = 64  # corrupt checkpoints passed over before the attempt gives up
WHY_CHARS_MAX = 4000

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[T]):
    """What to restore; fetched is None for a fresh start. fallback_why: see `AttemptRestored`."""

    fetched: T | None
    fallback_why: str | None


def find_checkpoint(launch: Launch, fetch: Callable[[CheckpointRef], T]) -> Found[T]:
    """Return the checkpoint that the attempt was opened with, else the newest that is whole.

    Collective; changes nothing that is trained. Every rank reads and verifies what it needs by
    `fetch`, which raises CheckpointCorrupt; what any rank finds corrupt is quarantined. With none
    left the run starts afresh, a branch from its source. Raises Fenced, CheckpointMismatch for one
    of another model, or of another run that this one is not a branch of, and CheckpointCorrupt when it
    is the branch's source, which only its own run may quarantine.
    """
    asked = launch.opened.resume
    if asked is None:
        return Found(fetched=None, fallback_why=None)
    _check_run(launch, asked)
    problems: list[str] = []
    for _ in range(FALLBACKS_MAX):
        target = _ref(launch.ranks.from_first(lambda: _choose(launch, asked)))
        if target is None:
            return Found(fetched=None, fallback_why=_explain(problems, asked, target))
        fetched, problem = _fetch(launch, target, fetch)
        if problem is None:
            return Found(fetched=fetched, fallback_why=_explain(problems, asked, target))
        problems.append(problem)
        if target.run_id != launch.place.run_id:
            break
        _quarantine(launch, target, problem)
    raise CheckpointCorrupt(
        f"{len(problems)} checkpoints cannot be restored, the last one because: {problems[-1]}"
    )


def _choose(launch: Launch, asked: CheckpointRef) -> Json:
    """Return `asked` while it may be resumed from, else what the run resumes from now."""
    track, opened_seq = run_track(launch.place.run_id), launch.place.opened_seq
    state = run_fold.fold(read_records(launch.store, track))
    if state is None or state.head.seq < opened_seq:  # its checkpoints may stand after the gap
        missing = 0 if state is None else state.head.seq + 1
        raise TrackBroken(
            f"Record {missing} of {track} is missing, and this attempt was opened in record "
            f"{opened_seq}; what the run can resume from is not known, so nothing is restored."
        )
    if asked in state.resumable or asked.run_id != launch.place.run_id:
        return to_json(asked)
    target = state.resumes_from
    return None if target is None else to_json(target)


def _check_run(launch: Launch, asked: CheckpointRef) -> None:
    """Refuse another run's checkpoint, unless this run is declared as a branch of it."""
    own = AttemptRef(asked.run_id, asked.attempt_id).folder
    if not asked.object_prefix.startswith(own):
        raise CheckpointMismatch(
            f"The checkpoint of step {asked.step} is said to be of {asked.run_id}, attempt "
            f"{asked.attempt_id}, and lies at {asked.object_prefix}; nothing is restored."
        )
    if asked.run_id != launch.place.run_id and asked != launch.declared.branched_from:
        raise CheckpointMismatch(
            f"Step {asked.step} is of run {asked.run_id} and {launch.place.run_id} is not a branch of "
            f"it; declare one with `tracks run --from {asked.run_id}@{asked.step}`."
        )


def _fetch(
    launch: Launch, target: CheckpointRef, fetch: Callable[[CheckpointRef], T]
) -> tuple[T | None, str | None]:
    """Return the checkpoint and None, or what the first rank with a problem found."""
    fetched, problem = None, None
    try:
        fetched = fetch(target)
    except CheckpointCorrupt as error:
        problem = str(error)
    found = [each for each in launch.ranks.gather(problem) if each is not None]
    return fetched, found[0] if found else None


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
    of_run = f" of {target.run_id}" if target and target.run_id != asked.run_id else ""
    cause = " ".join(problems) or "It was quarantined or deleted after the attempt was opened."
    instead = (
        "nothing is left, so it starts afresh"
        if target is None
        else f"resumed from step {target.step} of attempt {target.attempt_id}{of_run} instead"
    )
    return f"Step {asked.step} of attempt {asked.attempt_id}: {cause[:WHY_CHARS_MAX]} — {instead}."


def _ref(value: Json) -> CheckpointRef | None:
    return None if value is None else from_json(CheckpointRef, value)
