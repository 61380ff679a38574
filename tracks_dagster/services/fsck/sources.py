"""Check what one track says of another: what a run branched from and trained on must be there."""

from __future__ import annotations

from collections.abc import Iterator

from tracks_dagster.core.checkpoints import checkpoint_at
from tracks_dagster.core.dataset_state import DatasetState
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.core.run_state import RunState
from tracks_dagster.core.track import dataset_track, run_track
from tracks_dagster.services.fsck.findings import Finding, FindingKind
from tracks_dagster.services.fsck.tracks import RESTORE, fold_track, read_track


class Sources:
    """Looks up what other tracks have committed; reads each dataset's track once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._snapshots: dict[str, frozenset[str]] = {}

    def check(self, state: RunState) -> Iterator[Finding]:
        """Yield what the run refers to and no other track knows."""
        yield from self._check_branch(state)
        asked = [state.declared.snapshot, *(a.opened.snapshot for a in state.attempts)]
        for each in dict.fromkeys((ref.dataset, ref.snapshot_id) for ref in asked):
            dataset, snapshot_id = each
            if snapshot_id not in self._of(dataset):
                yield Finding(
                    kind=FindingKind.SNAPSHOT_UNKNOWN,
                    where=run_track(state.run_id),
                    meaning=f"Run {state.run_id} trains on snapshot {snapshot_id} of {dataset}, and "
                    f"{dataset_track(dataset)} has no record of it: that track was cut or replaced.",
                    to_do=f"{RESTORE}: what the run saw cannot be told without it.",
                )

    def _check_branch(self, state: RunState) -> Iterator[Finding]:
        ref = state.declared.branched_from
        if ref is None:
            return
        name = run_track(ref.run_id)
        source, _ = fold_track(name, read_track(self._store, name)[0])
        if isinstance(source, RunState) and source.checkpoint(ref.manifest_sha256) is not None:
            return
        yield Finding(
            kind=FindingKind.SOURCE_UNKNOWN,
            where=run_track(state.run_id),
            meaning=f"Run {state.run_id} branched from {checkpoint_at(ref)}, attempt "
            f"{ref.attempt_id}, and {name} has no record of that checkpoint: that track was cut, "
            "deleted or replaced.",
            to_do=f"{RESTORE}; until then nothing shows what the branch began with.",
        )

    def _of(self, dataset: str) -> frozenset[str]:
        if dataset not in self._snapshots:
            name = dataset_track(dataset)
            state, _ = fold_track(name, read_track(self._store, name)[0])
            there = state.snapshots if isinstance(state, DatasetState) else ()
            self._snapshots[dataset] = frozenset(s.body.snapshot_id for s in there)
        return self._snapshots[dataset]
