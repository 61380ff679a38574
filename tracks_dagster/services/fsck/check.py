"""Check everything that a store holds against what its tracks say, and the ledger against both.

Reads every byte that a record names by hash. It repairs nothing: each finding says what it means and
what a person does about it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.core.dataset_state import DatasetState
from tracks_dagster.core.ports import Ledger, ObjectStore
from tracks_dagster.core.run_state import RunState
from tracks_dagster.services.fsck.findings import Finding
from tracks_dagster.services.fsck.journals import check_journals
from tracks_dagster.services.fsck.ledger import check_ledger, check_orphans
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
    ledger: Ledger,
    verify: VerifyCheckpoint,
    *,
    is_absent: IsAbsent = nothing_is_absent,
) -> Checked:
    """Check the whole store and the ledger; `verify` reads a checkpoint (CheckpointError if bad).

    is_absent: tells what an exported run was made without.
    """
    findings: list[Finding] = []
    sources = Sources(store)
    record_count = checkpoint_count = snapshot_count = 0
    names = track_names(store)
    for name in names:
        records, problems = read_track(store, name)
        record_count += len(records)
        findings += problems
        findings += check_cursor(name, records, ledger.cursor(name))
        state, problems = fold_track(name, records)
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
        findings += check_ledger(ledger, name, records)
    findings += check_orphans(ledger, names)
    return Checked(
        track_count=len(names),
        record_count=record_count,
        checkpoint_count=checkpoint_count,
        snapshot_count=snapshot_count,
        findings=tuple(findings),
    )
