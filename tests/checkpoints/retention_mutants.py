"""Faults planted in the collector, each of which the state machine has to catch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

import pytest

from tests.bodies import ended
from tracks_dagster.checkpoints import retention
from tracks_dagster.checkpoints.effects import deletion, pins
from tracks_dagster.checkpoints.effects import retention as service
from tracks_dagster.checkpoints.retention import ChunkSizes, Deletion, Judged
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states import protection
from tracks_dagster.track.states.checkpoints import manifest_key
from tracks_dagster.track.states.run_state import CheckpointState, RunState

Mutant = Callable[[pytest.MonkeyPatch], None]
Named = Mapping[str, ChunkSizes]
Plans = tuple[Deletion | str, ...]


def shared_chunks_go_too(patch: pytest.MonkeyPatch) -> None:
    """A deletion takes every chunk of the manifest, no matter who else names it."""
    real = retention.plan_deletions

    def plan(state: RunState, now: datetime, named: Named, *, ignores_grace: bool) -> Plans:
        return tuple(
            replace(each, chunks=named.get(each.ref.manifest_sha256, {}))
            if isinstance(each, Deletion)
            else each
            for each in real(state, now, named, ignores_grace=ignores_grace)
        )

    patch.setattr(service, "plan_deletions", plan)


def quarantined_manifests_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """A chunk that only a quarantined checkpoint needs is taken."""
    real = retention.plan_deletions

    def plan(state: RunState, now: datetime, named: Named, *, ignores_grace: bool) -> Plans:
        quarantined = {c.ref.manifest_sha256 for c in state.checkpoints if c.quarantined}
        counted = {sha: {} if sha in quarantined else own for sha, own in named.items()}
        return real(state, now, counted, ignores_grace=ignores_grace)

    patch.setattr(service, "plan_deletions", plan)


def the_newest_is_not_held(patch: pytest.MonkeyPatch) -> None:
    """What a resume would take counts for nothing by itself, nor does its place among the last."""
    real = retention.wanted_by_rule

    def wanted(state: RunState) -> dict[str, tuple[str, ...]]:
        target = protection.newest(state)
        newest = target.ref.manifest_sha256 if target is not None else None
        return {sha: why for sha, why in real(state).items() if sha != newest}

    patch.setattr(retention, "wanted_by_rule", wanted)
    patch.setattr(protection, "_uses", protection.pins_of)


def the_best_is_evicted_by_the_ring(patch: pytest.MonkeyPatch) -> None:
    """Only the last K are kept."""
    patch.setattr(retention, "_best", lambda usable, rule: [])


def pins_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """Nobody can hold a checkpoint."""
    patch.setattr(protection, "pins_of", lambda state, checkpoint: ())


def the_newest_need_not_be_verified(patch: pytest.MonkeyPatch) -> None:
    """Older ones go while nobody knows whether the newest can be read."""
    patch.setattr(protection, "_unverified", lambda state: ())
    patch.setattr(service, "_verify_newest", lambda this: ())


def the_open_attempt_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Checkpoints go while an attempt restores them or goes on from them."""
    patch.setattr(protection, "_in_use", lambda state, checkpoint: ())


def there_is_no_grace(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint is deleted at once."""
    real = retention._judge

    def judge(
        state: RunState,
        checkpoint: CheckpointState,
        wanted: tuple[str, ...],
        now: datetime,
        ignores_grace: bool,
    ) -> Judged:
        rule = replace(state.declared.retention, delete_after_s=0.0)
        declared = replace(state.declared, retention=rule)
        return real(replace(state, declared=declared), checkpoint, wanted, now, ignores_grace)

    patch.setattr(retention, "_judge", judge)


def bytes_go_before_the_record(patch: pytest.MonkeyPatch) -> None:
    """The decision is written down when its chunks are gone."""
    real = service.decide_deletion

    def decide(
        tracks: Tracks,
        planned: Deletion,
        named: Mapping[str, ChunkSizes],
        *,
        by: str,
        now: datetime,
        ignores_grace: bool,
    ) -> bool:
        for key in (*planned.chunks, manifest_key(planned.ref)):
            tracks.store.delete(key)
        return real(tracks, planned, named, by=by, now=now, ignores_grace=ignores_grace)

    patch.setattr(service, "decide_deletion", decide)


def leftovers_of_open_attempts_go(patch: pytest.MonkeyPatch) -> None:
    """A save that is under way loses its chunks before its commit."""

    real = deletion.leftover_keys

    def keys(store: ObjectStore, state: RunState) -> list[str]:
        closed = tuple(replace(a, ended=a.ended or ended("preempted")) for a in state.attempts)
        return real(store, replace(state, attempts=closed))

    patch.setattr(service, "leftover_keys", keys)


def leftovers_of_deleted_checkpoints_go_no_matter_who_needs_them(patch: pytest.MonkeyPatch) -> None:
    """Chunks under the prefix of a deleted checkpoint go although a later one names them."""

    def remove(this: service._Pass, manifests: object) -> int:
        keys = deletion.leftover_keys(this.tracks.store, this.state)
        for key in keys:
            this.tracks.store.delete(key)
        return len(keys)

    patch.setattr(service, "_remove_leftovers", remove)


def a_commit_in_between_is_not_seen(patch: pytest.MonkeyPatch) -> None:
    """The deletion is appended to whatever state there is, with the chunks of an older one."""

    def decide(
        tracks: Tracks,
        planned: Deletion,
        named: Mapping[str, ChunkSizes],
        *,
        by: str,
        now: datetime,
        ignores_grace: bool,
    ) -> bool:
        body = deletion._decision(tracks.store, planned, by=by, now=now)
        draft = tracks.draft(deletion.Kind.CHECKPOINT_DELETED, body)
        return tracks.decide_run(planned.ref.run_id, lambda state: draft) is not None

    patch.setattr(service, "decide_deletion", decide)


def branches_lose_their_source_while_they_run(patch: pytest.MonkeyPatch) -> None:
    """A pass lets go of what a branch that is declared and not finished holds."""
    patch.setattr(pins, "_why_not_needed", lambda tracks, holder, pinned_at: "mutant")


QUICK: tuple[Mutant, ...] = (
    shared_chunks_go_too,
    the_newest_is_not_held,
    quarantined_manifests_do_not_count,
    pins_are_ignored,
    the_newest_need_not_be_verified,
    the_open_attempt_is_ignored,
    there_is_no_grace,
    leftovers_of_deleted_checkpoints_go_no_matter_who_needs_them,
    branches_lose_their_source_while_they_run,
)
SLOW: tuple[Mutant, ...] = (  # caught only after hundreds of sequences
    bytes_go_before_the_record,
    the_best_is_evicted_by_the_ring,
    leftovers_of_open_attempts_go,
)
