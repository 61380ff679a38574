"""What a run logged beside numbers, over all of its attempts: what is kept, and what was lost."""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.json_text import MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.track.media import ITEM_BYTES_MAX, Logged, index_key, index_of, part_key
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.accounting import kept_and_lost
from tracks_dagster.track.states.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLogged:
    """items: by step, of each name and step the newest that was kept; places: of each the attempt and
    its index in what that attempt stored, which only grows; lost_count: how many were not kept;
    words: why some were not stored."""

    items: tuple[Logged, ...]
    places: tuple[tuple[int, int], ...] = ()
    lost_count: int = 0
    words: tuple[str, ...] = ()

    def at(self, name: str, step: int) -> Logged | None:
        """Return the newest of that name up to a step; None without one."""
        found = [item for item in self.items if item.name == name and item.step <= step]
        return found[-1] if found else None


def read_logged(store: ObjectStore, state: RunState) -> RunLogged:
    """Return what the run logged; one request to the store for each launch. A damaged list is empty."""
    kept: dict[tuple[str, int], tuple[Logged, tuple[int, int]]] = {}
    words: list[str] = []
    lost_count = 0
    for attempt, account in zip(state.attempts, kept_and_lost(state), strict=True):
        if attempt.placed is None:
            continue
        items, more = read_launch_logged(store, state.ref(attempt), attempt.placed.launch_id)
        words += more
        for index, item in enumerate(items):
            if attempt.ended is None or item.step <= account.end:
                kept[item.name, item.step] = item, (attempt.attempt_id, index)
            else:
                lost_count += 1
    ordered = sorted(kept.values(), key=lambda each: (each[0].step, each[0].name))
    return RunLogged(
        items=tuple(item for item, _ in ordered),
        places=tuple(place for _, place in ordered),
        lost_count=lost_count,
        words=tuple(words),
    )


def read_launch_logged(
    store: ObjectStore, ref: AttemptRef, launch_id: str
) -> tuple[tuple[Logged, ...], tuple[str, ...]]:
    """Return what a launch logged, as stored, and why some was not; of a damaged list nothing."""
    data = store.get(index_key(ref, launch_id), MANIFEST_BYTES_MAX)
    try:
        return index_of(parse_json(data or b"null", bytes_max=MANIFEST_BYTES_MAX))
    except ValueError:
        return (), ()


def read_bytes(store: ObjectStore, run_id: str, item: Logged) -> bytes:
    """Return the bytes of one; raises ObjectLost where they are gone or damaged."""
    return read_addressed(
        store, part_key(run_id, item.sha256), item.sha256, bytes_max=ITEM_BYTES_MAX
    )
