"""Objects that are named by the sha256 of their bytes, and the one way in which they are read.

A store may lose what it holds, or give back other bytes than were written: a failing disk, a person,
another writer. What a record says of an object is true only of the bytes that it names, so nobody uses
others.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from tracks_dagster.track.errors import ObjectLost
from tracks_dagster.track.json_text import SNAPSHOT_BYTES_MAX
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import sha256_hex


def read_addressed(
    store: ObjectStore, key: str, sha256: str | None = None, *, bytes_max: int = SNAPSHOT_BYTES_MAX
) -> bytes:
    """Return the object `key`, whose bytes have that sha256; None: the one that its name gives.

    Raises ObjectLost where it is missing or has other bytes, as one of more than `bytes_max` has.
    """
    data = store.get(key, bytes_max)
    problem = damage_of(data, sha256_in(key) if sha256 is None else sha256)
    if data is None or problem is not None:
        raise ObjectLost(f"{key} {problem}")
    return data


def write_addressed(store: ObjectStore, key: str, data: bytes) -> None:
    """Store an object under the key that its sha256 gives; other bytes that lie there are replaced."""
    if not store.create(key, data) and damage_at(store, key) is not None:
        store.put(key, data)


def damage_at(store: ObjectStore, key: str, sha256: str | None = None) -> str | None:
    """Return what is wrong with the object `key`, as the end of a sentence; sha256 as in
    `read_addressed`."""
    data = store.get(key, SNAPSHOT_BYTES_MAX)
    return damage_of(data, sha256_in(key) if sha256 is None else sha256)


def damage_of(data: bytes | None, sha256: str) -> str | None:
    """Return what is wrong with an object that should have that sha256, as the end of a sentence."""
    if data is None:
        return "is missing"
    found = sha256_hex(data)
    return None if found == sha256 else f"has sha256 {found}; expected sha256 {sha256}"


def sha256_in(key: str) -> str:
    """Return the sha256 that names an object: the last part of its key, without its ending."""
    return PurePosixPath(key).name.partition(".")[0]
