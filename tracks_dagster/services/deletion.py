"""Remove the bytes of checkpoints whose deletion is decided: the record first, then the bytes.

Chunks go before the manifest: as long as the manifest is there, some bytes may be, and the next pass
goes on. Everything is idempotent, so two collectors and a crash between any two calls do no harm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from tracks_dagster.core.bodies import CheckpointDecision
from tracks_dagster.core.checkpoints import manifest_key
from tracks_dagster.core.errors import CheckpointCorrupt
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.core.records import Draft, Kind, canonical_json, sha256_hex
from tracks_dagster.core.retention import ChunkSizes, Deletion, Fate, judge, plan_deletion
from tracks_dagster.core.run_state import CheckpointState, RunState
from tracks_dagster.services.tracks import Tracks

CHUNKS_IN_RECORD_MAX = 40  # a key is at most about 200 bytes, a record 16 KiB
FINISHED_AGAIN_MAX = 200  # newest deletions of a run whose bytes are looked after in one pass


def decide_deletion(
    tracks: Tracks, deletion: Deletion, named: Mapping[str, ChunkSizes], *, by: str, now: datetime
) -> bool:
    """Append the decision if the run's state still asks for exactly this; True when it stands.

    named: as `plan_deletion` takes it. A commit or a pin in between makes another deletion of it, or
    none: then nothing is appended, and the caller looks again.
    """
    body = _decision(tracks.store, deletion, by=by)

    def choose(state: RunState | None) -> Draft | None:
        if state is None or not _is_due(deletion, state, now, named):
            return None
        return tracks.draft(Kind.CHECKPOINT_DELETED, body)

    return tracks.decide_run(deletion.ref.run_id, choose) is not None


def next_deletion(
    state: RunState, now: datetime, named: Mapping[str, ChunkSizes]
) -> Deletion | tuple[str, ...]:
    """Return the oldest deletion that is due and can be made, else why those that are due wait."""
    waiting = []
    for judged in judge(state, now):
        if judged.fate is Fate.DELETE:
            planned = plan_deletion(judged, state, named)
            if isinstance(planned, Deletion):
                return planned
            waiting.append(planned)
    return tuple(waiting)


def finish_deletions(store: ObjectStore, state: RunState) -> tuple[str, ...]:
    """Remove what decided deletions left, of a crashed pass or of this one; say which have to wait.

    A chunk that is there again after a power loss, without its manifest, goes as a leftover. Raises
    StoreUnavailable.
    """
    deleted = [c for c in state.checkpoints if c.deleted]
    newest = sorted(deleted, key=lambda c: (c.deleted_at, c.seq))[-FINISHED_AGAIN_MAX:]
    waiting = []
    for checkpoint in newest:
        if store.get(manifest_key(checkpoint.ref)) is None:
            continue
        try:
            keys = _chunks(store, checkpoint)
        except CheckpointCorrupt as error:
            waiting.append(str(error))
            continue
        for key in keys:
            store.delete(key)
        store.delete(manifest_key(checkpoint.ref))
    return tuple(waiting)


def _is_due(
    deletion: Deletion, state: RunState, now: datetime, named: Mapping[str, ChunkSizes]
) -> bool:
    """Whether the state asks for exactly this deletion."""
    return any(
        judged.checkpoint.ref == deletion.ref
        and judged.fate is Fate.DELETE
        and plan_deletion(judged, state, named) == deletion
        for judged in judge(state, now)
    )


def _decision(store: ObjectStore, deletion: Deletion, *, by: str) -> CheckpointDecision:
    keys = tuple(deletion.chunks)
    listed = len(keys) > CHUNKS_IN_RECORD_MAX
    return CheckpointDecision(
        manifest_sha256=deletion.ref.manifest_sha256,
        by=by,
        why=deletion.why,
        chunks=() if listed else keys,
        chunks_key=_store_list(store, deletion.ref.run_id, keys) if listed else None,
    )


def _store_list(store: ObjectStore, run_id: str, keys: tuple[str, ...]) -> str:
    # Where another decides first, the list stays: it is small, and the other's record may name it.
    data = canonical_json(list(keys))
    key = f"runs/{run_id}/deletions/{sha256_hex(data)}.json"
    store.put(key, data)
    return key


def _chunks(store: ObjectStore, checkpoint: CheckpointState) -> tuple[str, ...]:
    """Return the keys that the decision named, from the record or from the object that it names."""
    deletion = checkpoint.deletion
    if deletion is None or deletion.chunks_key is None:
        return deletion.chunks if deletion is not None else ()
    key = deletion.chunks_key
    data = store.get(key)
    found = "nothing" if data is None else sha256_hex(data)
    if data is None or found != key.rpartition("/")[2].removesuffix(".json"):
        raise CheckpointCorrupt(
            f"Cannot remove the chunks of step {checkpoint.ref.step}, attempt "
            f"{checkpoint.ref.attempt_id}: {key} lists them and has sha256 {found}. What "
            "lies under its own prefix goes without the list; the rest stays until it is restored."
        )
    return tuple(json.loads(data))
