"""Check everything that a store holds against what its tracks say, and the ledger against both.

Reads every byte that a record names by hash. It repairs nothing: each finding says what it means and
what a person does about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.recovery.effects.fsck.findings import Finding
from tracks_dagster.recovery.effects.fsck.journals import check_journals
from tracks_dagster.recovery.effects.fsck.ledger import check_ledger, check_orphans, unreadable
from tracks_dagster.recovery.effects.fsck.objects import (
    IsAbsent,
    VerifyCheckpoint,
    check_checkpoints,
    check_deletions,
    check_eval_results,
    check_evidence,
    check_places,
    check_snapshots,
    check_trainer,
    nothing_is_absent,
)
from tracks_dagster.recovery.effects.fsck.tracks import (
    Sources,
    check_cursor,
    fold_track,
    read_track,
    track_names,
)
from tracks_dagster.track.errors import LedgerError
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Record
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.states.run_state import RunState

TRIES_MAX = 64  # cursors that moved while a track was compared; each is an append that was read


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was looked at, and what was found. checkpoint_count: without deleted ones."""

    track_count: int
    record_count: int
    checkpoint_count: int
    snapshot_count: int
    findings: tuple[Finding, ...]


def fsck(
    store: ObjectStore,
    ledger: Ledger | LedgerError,
    verify: VerifyCheckpoint,
    *,
    is_absent: IsAbsent = nothing_is_absent,
) -> Checked:
    """Check the whole store and the ledger; `verify` reads a checkpoint (CheckpointError if bad).

    ledger: or why it cannot be read, which is then a finding.
    is_absent: tells what an exported run was made without.
    """
    findings: list[Finding] = []
    sources = Sources(store)
    record_count = checkpoint_count = snapshot_count = 0
    names = track_names(store)
    for name in names:
        track, ledger = _read(store, ledger, name)
        state = track.state
        record_count += len(track.records)
        findings += track.problems
        if isinstance(state, RunState):
            checkpoint_count += sum(not c.deleted for c in state.checkpoints)
            findings += check_checkpoints(store, state, verify)
            findings += check_deletions(store, state)
            findings += check_evidence(store, state, is_absent)
            findings += check_places(store, state, is_absent)
            findings += check_trainer(store, state, is_absent)
            findings += check_eval_results(store, state)
            findings += check_journals(store, state)
            findings += sources.check(state)
        elif isinstance(state, DatasetState):
            snapshot_count += len(state.snapshots)
            findings += check_snapshots(store, state, is_absent)
        findings += track.wrong_rows
    if not isinstance(ledger, LedgerError):
        try:
            findings += check_orphans(ledger, store, set(names))
        except LedgerError as error:
            ledger = error
    findings += [unreadable(ledger)] if isinstance(ledger, LedgerError) else []
    return Checked(
        track_count=len(names),
        record_count=record_count,
        checkpoint_count=checkpoint_count,
        snapshot_count=snapshot_count,
        findings=tuple(findings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Track:
    """A track and what is wrong with it; wrong_rows: of the ledger, for the same records."""

    records: Sequence[Record]
    state: TrackState | None
    problems: Sequence[Finding]
    wrong_rows: Sequence[Finding] = ()


def _read(
    store: ObjectStore, ledger: Ledger | LedgerError, name: str
) -> tuple[_Track, Ledger | LedgerError]:
    """Return the track, compared with the ledger, and the ledger, or why it cannot be read any more."""
    if not isinstance(ledger, LedgerError):
        try:
            return _compared(store, ledger, name), ledger
        except LedgerError as error:
            ledger = error
    records, problems = read_track(store, name)
    state, objections = fold_track(name, records)
    return _Track(records=records, state=state, problems=[*problems, *objections]), ledger


def _compared(store: ObjectStore, ledger: Ledger, name: str) -> _Track:
    """Read the track and the ledger's rows of it, again while the ledger takes in what is appended.

    Its cursor is read before the track, which only grows, and after the rows.
    """
    cursor = ledger.cursor(name)
    records: list[Record] = []
    for _ in range(TRIES_MAX):
        records, broken = read_track(store, name, cursor, known=records)
        broken += check_cursor(name, records, cursor, is_read=not broken)
        state, objections = fold_track(name, records)
        problems = [*broken, *objections]
        wrong_rows = list(check_ledger(ledger, name, records, cursor, problems))
        before, cursor = cursor, ledger.cursor(name)
        if cursor == before:
            break
    else:
        wrong_rows = []  # of no one moment
    return _Track(records=records, state=state, problems=problems, wrong_rows=wrong_rows)
