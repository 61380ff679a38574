"""Check everything that a store holds against what its tracks say, and the ledger against both.

Reads every byte that a record names by hash. It repairs nothing: each finding says what it means and
what a person does about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.recovery.effects.fsck.findings import Finding, FindingKind
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
from tracks_dagster.stores.journals import read_steps
from tracks_dagster.track.errors import LedgerError
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Record
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.states.run_state import AttemptState, RunState

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


# --- journals -------------------------------------------------------------------------------------
#
# Check the journals of every attempt. No record names them by hash: they are too frequent for that.
#
# What can be held against them: their segments follow one another to the byte, every line but the last
# is whole, and they reach the step that the record of the attempt's end tells.

_OFFSET = re.compile(r"[0-9]{1,18}")
RESTORE = "Restore the object from a backup or the bucket's versions if the steps matter"


def check_journals(store: ObjectStore, state: RunState) -> Iterator[Finding]:
    """Check the journal of every rank of every attempt that has ended; holds one segment at a time."""
    for attempt in state.attempts:
        if attempt.placed is None or attempt.ended is None:
            continue
        launch_id = attempt.placed.launch_id
        prefix = f"runs/{state.run_id}/attempts/{attempt.attempt_id}/{launch_id}/journal/"
        for rank in store.folders(prefix):
            yield from _check_segments(store, f"{prefix}{rank}/")
        yield from _check_end(store, state.run_id, attempt, prefix)


def _check_segments(store: ObjectStore, prefix: str) -> Iterator[Finding]:
    """Yield the first thing that is wrong with one rank's journal."""
    end, torn = 0, b""  # of the file on the gang's machine; what the segment before did not finish
    for key in store.list(prefix):
        name, data = key.removeprefix(prefix).removesuffix(".jsonl"), store.get(key)
        if not _OFFSET.fullmatch(name) or data is None:
            continue
        offset = int(name)
        if offset > end:
            yield Finding(
                kind=FindingKind.JOURNAL_GAP,
                where=key,
                meaning=f"The {offset - end} bytes of this journal before it are gone: segments are "
                "shipped one after the other, so one was deleted. The steps in it are not shown.",
                to_do=f"{RESTORE}; no decision rests on them.",
            )
            return
        lines = (torn + data[end - offset :]).split(b"\n")
        torn = lines.pop()
        end = max(end, offset + len(data))
        if (bad := next((line for line in lines if not _is_whole(line)), None)) is not None:
            yield Finding(
                kind=FindingKind.JOURNAL_EDITED,
                where=key,
                meaning=f"A line of this journal is no JSON ({bad[:40]!r}…) and whole lines follow "
                "it: it was edited or damaged after it was written. That line is not shown.",
                to_do=f"{RESTORE}, and find out who wrote there.",
            )
            return


def _check_end(
    store: ObjectStore, run_id: str, attempt: AttemptState, prefix: str
) -> Iterator[Finding]:
    assert attempt.placed is not None
    assert attempt.ended is not None
    recorded = attempt.ended.last_step
    if recorded is None:
        return
    steps = read_steps(store, run_id, attempt.attempt_id, attempt.placed.launch_id)
    found = steps[-1].step if steps else None
    if found is None or found < recorded:
        yield Finding(
            kind=FindingKind.JOURNAL_SHORT,
            where=prefix,
            meaning=f"The journal of attempt {attempt.attempt_id} of run {run_id} "
            f"{'holds no step' if found is None else f'ends at step {found}'}, and its record tells "
            f"step {recorded}: the end of it was deleted, or never left a machine that was taken away.",
            to_do="Nothing, where the machine is gone: the verdict and the count of steps stand in "
            f"the track. Else {RESTORE[0].lower()}{RESTORE[1:]}.",
        )


def _is_whole(line: bytes) -> bool:
    try:
        return not line or isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
