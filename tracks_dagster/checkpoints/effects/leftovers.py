"""Bytes under an ended attempt that no checkpoint needs: saves that were never committed, prefixes of
fenced launches, and what a deleted checkpoint left: a chunk that came back after a power loss, or all
of one whose list of chunks was lost. (No other prefix can hold any: a chunk lies under the prefix of
the checkpoint that first named it.)

They are removed without a record, because no record names them. Listing is allowed here for that
reason: it decides nothing about a committed checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.run_state import RunState

ATTEMPTS_MAX = 50  # newest ended attempts that are looked through in one pass
KEYS_MAX = 10_000  # removed in one pass; the next one goes on


def leftover_keys(store: ObjectStore, state: RunState) -> list[str]:
    """Return keys below the step folders of ended attempts that no committed checkpoint owns.

    An ended attempt commits nothing more, so what stands in `state` is all that it ever committed.
    The caller leaves out what a manifest names: a checkpoint may name chunks under the prefix of a
    deleted one.
    """
    kept = {c.ref.object_prefix for c in state.checkpoints if not c.deleted}
    found: list[str] = []
    ended = [a.attempt_id for a in state.attempts if not a.is_open][-ATTEMPTS_MAX:]
    for attempt_id in ended:
        for prefix in _step_prefixes(store, f"runs/{state.run_id}/attempts/{attempt_id}/"):
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
