"""Check everything that a store holds against what its tracks say, and the ledger against both.

Reads every byte that a record names by hash. It repairs nothing: each finding says what it means and
what a person does about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

from tracks_dagster.core.dataset_state import DatasetState
from tracks_dagster.core.errors import LedgerError
from tracks_dagster.core.ports import Ledger, ObjectStore
from tracks_dagster.core.records import Record
from tracks_dagster.core.run_state import RunState
from tracks_dagster.services.fsck.findings import Finding
from tracks_dagster.services.fsck.journals import check_journals
from tracks_dagster.services.fsck.ledger import (
    after_restoring,
    check_ledger,
    check_orphans,
    unreadable,
)
from tracks_dagster.services.fsck.objects import (
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
from tracks_dagster.services.fsck.sources import Sources
from tracks_dagster.services.fsck.tracks import check_cursor, fold_track, read_track, track_names

P = ParamSpec("P")


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
        records, problems = read_track(store, name)
        record_count += len(records)
        forgotten, ledger = _asked(ledger, _check_cursor, name, records, is_read=not problems)
        problems += forgotten
        state, objections = fold_track(name, records)
        problems += objections
        findings += problems
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
        wrong, ledger = _asked(ledger, check_ledger, name, records, is_whole=not problems)
        findings += wrong
    orphans, ledger = _asked(ledger, check_orphans, names)
    findings += orphans
    findings += [unreadable(ledger)] if isinstance(ledger, LedgerError) else []
    return Checked(
        track_count=len(names),
        record_count=record_count,
        checkpoint_count=checkpoint_count,
        snapshot_count=snapshot_count,
        findings=tuple(after_restoring(findings)),
    )


def _asked(
    ledger: Ledger | LedgerError,
    check: Callable[Concatenate[Ledger, P], Iterable[Finding]],
    *of: P.args,
    **by: P.kwargs,
) -> tuple[list[Finding], Ledger | LedgerError]:
    """Return what `check` finds in the ledger, and the ledger, or why it cannot be read any more."""
    if isinstance(ledger, LedgerError):
        return [], ledger
    try:
        return list(check(ledger, *of, **by)), ledger
    except LedgerError as error:
        return [], error


def _check_cursor(
    ledger: Ledger, name: str, records: Sequence[Record], *, is_read: bool
) -> Iterator[Finding]:
    return check_cursor(name, records, ledger.cursor(name), is_read=is_read)
