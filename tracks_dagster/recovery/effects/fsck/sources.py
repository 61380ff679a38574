"""Check what one track says of another: what a run branched from and trained on must be there."""

from __future__ import annotations

from collections.abc import Iterator

from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.recovery.effects.fsck.findings import Finding, FindingKind
from tracks_dagster.recovery.effects.fsck.tracks import RESTORE, fold_track, read_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import dataset_track, run_track


class Sources:
    """Looks up what other tracks have committed; reads each dataset's track once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._snapshots: dict[str, frozenset[str] | None] = {}

    def check(self, state: RunState) -> Iterator[Finding]:
        """Yield what the run refers to and no other track knows."""
        yield from self._check_branch(state)
        asked = [state.declared.snapshot, *(a.opened.snapshot for a in state.attempts)]
        for each in dict.fromkeys((ref.dataset, ref.snapshot_id) for ref in asked):
            dataset, snapshot_id = each
            if not self._has(dataset, snapshot_id):
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
        source, is_newer = self._read(name)
        if is_newer or (
            isinstance(source, RunState) and source.checkpoint(ref.manifest_sha256) is not None
        ):
            return
        yield Finding(
            kind=FindingKind.SOURCE_UNKNOWN,
            where=run_track(state.run_id),
            meaning=f"Run {state.run_id} branched from {checkpoint_at(ref)}, attempt "
            f"{ref.attempt_id}, and {name} has no record of that checkpoint: that track was cut, "
            "deleted or replaced.",
            to_do=f"{RESTORE}; until then nothing shows what the branch began with.",
        )

    def _has(self, dataset: str, snapshot_id: str) -> bool:
        """Whether the dataset has that snapshot; True where only a newer version could tell."""
        for is_again in (False, True):  # it may have been committed since the track was read
            if is_again or dataset not in self._snapshots:
                self._snapshots[dataset] = self._snapshots_of(dataset)
            there = self._snapshots[dataset]
            if there is None or snapshot_id in there:
                return True
        return False

    def _snapshots_of(self, dataset: str) -> frozenset[str] | None:
        state, is_newer = self._read(dataset_track(dataset))
        there = state.snapshots if isinstance(state, DatasetState) else ()
        return None if is_newer else frozenset(s.body.snapshot_id for s in there)

    def _read(self, name: str) -> tuple[TrackState | None, bool]:
        """Return the state of a track, and whether a newer version wrote what is not in it."""
        records, problems = read_track(self._store, name)
        state, objections = fold_track(name, records)
        kinds = {finding.kind for finding in (*problems, *objections)}
        return state, FindingKind.RECORD_NEWER in kinds
