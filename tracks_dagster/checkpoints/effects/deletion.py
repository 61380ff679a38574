"""Remove the bytes of checkpoints whose deletion is decided: the record first, then the bytes.

Chunks go before the manifest: as long as the manifest is there, some bytes may be, and the next pass
continues. Everything is idempotent, so two collectors and a crash between any two calls do no harm.
Leftovers, bytes that no record names, go without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta

from tracks_dagster.checkpoints.retention import ChunkSizes, Deletion, still_asked_for
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.bodies import CheckpointDecision
from tracks_dagster.track.errors import CheckpointCorrupt, ObjectLost
from tracks_dagster.track.json_text import MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind, canonical_json, sha256_hex
from tracks_dagster.track.states.checkpoints import manifest_key
from tracks_dagster.track.states.run_state import CheckpointState, RunState

CHUNKS_IN_RECORD_MAX = 40  # a key is at most about 200 bytes, a record 16 KiB
FINISHED_AGAIN_MAX = 200  # newest deletions of a run whose bytes are looked after in one pass
LIST_UNNAMED_S_MAX = 24 * 3600.0  # a collector stores a list and names it within seconds
ATTEMPTS_MAX = 50  # newest ended attempts that are looked through in one pass
KEYS_MAX = 10_000  # removed in one pass; the next one continues


def decide_deletion(
    tracks: Tracks,
    deletion: Deletion,
    named: Mapping[str, ChunkSizes],
    *,
    by: str,
    now: datetime,
    ignores_grace: bool = False,
) -> bool:
    """Append the decision if the run's state still asks for exactly this; True when it was appended.

    named: as `plan_deletions` takes it, less what was deleted since; ignores_grace: as there. A commit
    or a pin in between makes another deletion of it, or none: then nothing is appended, and the caller
    plans again.
    """
    body = _decision(tracks.store, deletion, by=by, now=now)

    def choose(state: RunState | None) -> Draft | None:
        if state is None or not still_asked_for(
            deletion, state, now, named, ignores_grace=ignores_grace
        ):
            return None
        return tracks.draft(Kind.CHECKPOINT_DELETED, body)

    return tracks.decide_run(deletion.ref.run_id, choose) is not None


def finish_deletions(
    store: ObjectStore, state: RunState, has_time: Callable[[], bool] = lambda: True
) -> tuple[str, ...]:
    """Remove what decided deletions left, of a crashed pass or of this one; return which have to wait.

    No further one is begun once `has_time` is false. A chunk that is there again after a power loss,
    without its manifest, goes as a leftover. Raises StoreUnavailable.
    """
    deleted = [c for c in state.checkpoints if c.deleted]
    newest = sorted(deleted, key=lambda c: (c.deleted_at, c.seq))[-FINISHED_AGAIN_MAX:]
    waiting: list[str] = []
    for checkpoint in newest:
        if not has_time():
            return (*waiting, "the bytes of deleted checkpoints: no time was left in this pass")
        if store.get(manifest_key(checkpoint.ref), 0) is None:
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


def unnamed_lists(store: ObjectStore, state: RunState, now: datetime) -> list[str]:
    """Return the keys of lists that no record names and that no collector is about to name.

    A list is stored just before the record that names it, so one of now may belong to a collector
    that is between the two. The key has the time; a day later that collector was killed or lost its
    place. Were it only asleep, and woke, its record would name a list that is gone: `finish_deletions`
    says so, and the bytes go as leftovers.
    """
    named = {c.deletion.chunks_key for c in state.checkpoints if c.deletion is not None}
    prefix = _lists_prefix(state.run_id)
    before = prefix + _time_part(now - timedelta(seconds=LIST_UNNAMED_S_MAX))
    return [key for key in store.list(prefix) if key < before and key not in named]


def _decision(
    store: ObjectStore, deletion: Deletion, *, by: str, now: datetime
) -> CheckpointDecision:
    keys = tuple(deletion.chunks)
    listed = len(keys) > CHUNKS_IN_RECORD_MAX
    return CheckpointDecision(
        manifest_sha256=deletion.ref.manifest_sha256,
        by=by,
        why=deletion.why,
        chunks=() if listed else keys,
        chunks_key=_store_list(store, deletion.ref.run_id, keys, now) if listed else None,
    )


def _store_list(store: ObjectStore, run_id: str, keys: tuple[str, ...], now: datetime) -> str:
    data = canonical_json(list(keys))
    key = f"{_lists_prefix(run_id)}{_time_part(now)}/{sha256_hex(data)}.json"
    store.put(key, data)
    return key


def _lists_prefix(run_id: str) -> str:
    return f"runs/{run_id}/deletions/"


def _time_part(at: datetime) -> str:
    """Return the time as a part of a key; in the order of keys the earlier comes first."""
    return at.strftime("%Y%m%dT%H%M%SZ")


def _chunks(store: ObjectStore, checkpoint: CheckpointState) -> tuple[str, ...]:
    """Return the keys that the decision named, from the record or from the object that it names."""
    deletion = checkpoint.deletion
    if deletion is None or deletion.chunks_key is None:
        return deletion.chunks if deletion is not None else ()
    key = deletion.chunks_key
    try:
        listed = read_addressed(store, key, bytes_max=MANIFEST_BYTES_MAX)
        return tuple(parse_json(listed, bytes_max=MANIFEST_BYTES_MAX))
    except ObjectLost as error:
        raise CheckpointCorrupt(
            f"Cannot remove the chunks of step {checkpoint.ref.step}, attempt "
            f"{checkpoint.ref.attempt_id}: their list {error}. What lies under its own prefix goes "
            "without the list, once the attempt has ended; the rest stays until it is restored."
        ) from error


# --- leftovers ------------------------------------------------------------------------------------
#
# Bytes under an ended attempt that no checkpoint needs: of saves that were never committed, of fenced
# launches, and of deleted checkpoints (a chunk that came back after a power loss, or all of one whose
# list of chunks was lost). No other prefix can hold any: a chunk lies under the prefix of the
# checkpoint that first named it. They are removed without a record, because no record names them.
# For that reason listing is allowed here: it decides nothing about a committed checkpoint.


def leftover_keys(store: ObjectStore, state: RunState) -> list[str]:
    """Return keys below the step folders of ended attempts that no committed checkpoint owns.

    An ended attempt commits nothing more, so what is in `state` is all that it ever committed.
    The caller leaves out what a manifest names: a checkpoint may name chunks under the prefix of a
    deleted one.
    """
    kept = {c.ref.object_prefix for c in state.checkpoints if not c.deleted}
    found: list[str] = []
    ended = [a.attempt_id for a in state.attempts if not a.is_open][-ATTEMPTS_MAX:]
    for attempt_id in ended:
        for prefix in _step_prefixes(store, AttemptRef(state.run_id, attempt_id).folder):
            if prefix in kept:
                continue
            for key in store.list(prefix):
                if len(found) == KEYS_MAX:
                    return found
                found.append(key)
    return found


def _step_prefixes(store: ObjectStore, attempt_prefix: str) -> Iterator[str]:
    """Yield `<launch>/step-<step>/` prefixes; journals and evidence lie beside them and stay."""
    for launch_id in list(store.folders(attempt_prefix)):
        for folder in list(store.folders(f"{attempt_prefix}{launch_id}/")):
            if folder.startswith("step-"):
                yield f"{attempt_prefix}{launch_id}/{folder}/"
