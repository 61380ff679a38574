"""A run by the newest records of its track alone: from the opening of its last attempt on. Pure.

A long run has thousands of records, and the state of its open attempt is in the last dozen. What came
before them is in the ledger. Everything else folds a whole track (`run_fold`); nothing is decided on
what is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tracks_dagster.track.bodies import (
    BUDGET,
    MOVE,
    AttemptEnded,
    AttemptOpened,
    AttemptPlaced,
    AttemptReclassified,
    AttemptRestored,
    AttemptSupervised,
    CheckpointCommitted,
    CheckpointDecision,
    RetryRefused,
    RunDeclared,
    RunFinished,
    StopRequested,
)
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.records import Kind, Record
from tracks_dagster.track.states.run_state import AttemptState, CheckpointState, Supervision


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What the newest records hold. head_seq: of the last of them.

    declared: only where the tail reaches back to the first record; attempt: None before there is one.
    commits: of the tail, oldest first; unusable: manifests quarantined or deleted in it. stops: asked
    for since the attempt was opened; refusal: of what would follow on it.
    """

    head_seq: int = 0
    declared: RunDeclared | None = None
    attempt: AttemptState | None = None
    commits: tuple[CheckpointState, ...] = ()
    unusable: frozenset[str] = frozenset()
    stops: tuple[StopRequested, ...] = ()
    refusal: RetryRefused | None = None
    refusal_seq: int | None = None
    finished: RunFinished | None = None
    finished_seq: int | None = None

    @property
    def asked_stop(self) -> StopRequested | None:
        """The stop, or else the drain, that a person asked for; what only moves a run, or meets a cap
        in money, holds nothing."""
        asked = [stop for stop in self.stops if stop.mode not in (MOVE, BUDGET)]
        return min(asked, key=lambda stop: stop.mode != "stop", default=None)


def fold_tail(records: Iterable[Record]) -> Tail:
    """Return what `records` hold, in order. The first of them opens an attempt or declares the run."""
    tail = Tail()
    for record in records:
        tail = replace(_apply(tail, record), head_seq=record.seq)
    return tail


def _apply(tail: Tail, record: Record) -> Tail:
    match record.kind:
        case Kind.RUN_DECLARED:
            return replace(tail, declared=body_of(RunDeclared, record))
        case Kind.ATTEMPT_OPENED:
            return replace(tail, attempt=_opened(record), stops=(), refusal=None)
        case Kind.CHECKPOINT_COMMITTED:
            commit = CheckpointState(
                seq=record.seq, at=record.at, body=body_of(CheckpointCommitted, record)
            )
            return replace(tail, commits=(*tail.commits, commit))
        case Kind.CHECKPOINT_QUARANTINED | Kind.CHECKPOINT_DELETED:
            gone = body_of(CheckpointDecision, record).manifest_sha256
            return replace(tail, unusable=tail.unusable | {gone})
        case Kind.RUN_FINISHED:
            return replace(tail, finished=body_of(RunFinished, record), finished_seq=record.seq)
        case Kind.RETRY_REFUSED:
            return replace(tail, refusal=body_of(RetryRefused, record), refusal_seq=record.seq)
        case Kind.STOP_REQUESTED:
            return replace(tail, stops=(*tail.stops, body_of(StopRequested, record)))
        case _:
            return replace(tail, attempt=_grown(tail.attempt, record))


def _opened(record: Record) -> AttemptState:
    return AttemptState(
        attempt_id=record.attempt_id or 1,
        opened=body_of(AttemptOpened, record),
        opened_seq=record.seq,
        opened_at=record.at,
    )


def _grown(attempt: AttemptState | None, record: Record) -> AttemptState | None:
    """Return the attempt with what the record adds to it."""
    if attempt is None or record.attempt_id != attempt.attempt_id:
        return attempt
    seq, at = record.seq, record.at
    match record.kind:
        case Kind.ATTEMPT_SUPERVISED:
            claim = Supervision(seq=seq, at=at, body=body_of(AttemptSupervised, record))
            return replace(attempt, claims=(*attempt.claims, claim))
        case Kind.ATTEMPT_PLACED:
            placed = body_of(AttemptPlaced, record)
            return replace(attempt, placed=placed, placed_seq=seq, placed_at=at)
        case Kind.ATTEMPT_RESTORED:
            return replace(attempt, restored=body_of(AttemptRestored, record), restored_at=at)
        case Kind.ATTEMPT_ENDED:
            ended = body_of(AttemptEnded, record)
            return replace(attempt, ended=ended, ended_seq=seq, ended_at=at)
        case Kind.ATTEMPT_RECLASSIFIED:
            newest = body_of(AttemptReclassified, record)
            return replace(attempt, reclassified=newest, reclassified_seq=seq)
        case _:
            return attempt
