"""Faults that a save, a collection or a store could have: each must be found by killing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.real.checkpoint_life import Life
from tracks_dagster.checkpoints.effects import retention
from tracks_dagster.stores.local import LocalStore, write_new


def commit_before_manifest(life: Life) -> None:
    """The record that a checkpoint is committed stands before its manifest does."""
    waiting: dict[str, bytes] = {}
    put, create = life.store.put, life.store.create

    def put_later(key: str, data: bytes | memoryview) -> None:
        if "/manifest-" in key:
            waiting[key] = bytes(data)
        else:
            put(key, data)

    def create_first(key: str, data: bytes | memoryview) -> bool:
        created = create(key, data)
        while waiting:
            put(*waiting.popitem())
        return created

    life.store.put, life.store.create = put_later, create_first  # type: ignore[method-assign]


def bytes_before_decision(life: Life) -> None:
    """Chunks are removed before the record that decides it."""
    decide = retention.decide_deletion

    def remove_first(tracks, deletion, named, *, by, now):  # type: ignore[no-untyped-def]
        for key in deletion.chunks:
            tracks.store.delete(key)
        return decide(tracks, deletion, named, by=by, now=now)

    retention.decide_deletion = remove_first


def records_in_place(life: Life) -> None:
    """A record is written under its own name, not beside it."""

    def create(store: LocalStore, key: str, data: bytes | memoryview) -> bool:
        path = store._path(key)
        store._make_folder(path.parent)
        try:
            write_new(path, data)
        except FileExistsError:
            return False
        return True

    LocalStore.create = create  # type: ignore[method-assign]


# Name → what plants it.
PLANTED: Mapping[str, Callable[[Life], None]] = {
    "commit before manifest": commit_before_manifest,
    "bytes before decision": bytes_before_decision,
    "records in place": records_in_place,
}
