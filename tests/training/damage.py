"""Damage to stored checkpoints and tracks: what disks, copies and people do to bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tracks_dagster.track.names import run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Record, canonical_json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.track.track import log_key
from tracks_dagster.training.saves.manifest import read_manifest

PAGE_BYTES = 4096
EXTENSION_BYTES_MAX = 4096
REDRAWS_MAX = 100  # damage that changes nothing (a page of zeroes zeroed) is drawn again


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """What was done, and the objects that differ now."""

    how: str
    keys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A run's checkpoints, oldest first. store: to be damaged; whole: the same before any damage."""

    store: ObjectStore
    whole: ObjectStore
    refs: Sequence[CheckpointRef]

    def chunks(self, ref: CheckpointRef) -> list[str]:
        """The chunks that a checkpoint names."""
        return [chunk.key for chunk in read_manifest(self.whole, ref).chunks]

    def objects(self, ref: CheckpointRef) -> list[str]:
        """Everything that a checkpoint consists of."""
        return [manifest_key(ref), *self.chunks(ref)]

    def read(self, key: str) -> bytes:
        """An object as it was."""
        data = self.whole.get(key)
        assert data is not None
        return data


def damage(draw: random.Random, target: Target, ref: CheckpointRef) -> Damaged:
    """Damage one thing of `ref`, drawn; whatever is touched differs from what it was."""
    for _ in range(REDRAWS_MAX):
        how = draw.choice(list(DAMAGES))
        changes = {
            key: data
            for key, data in DAMAGES[how](draw, target, ref).items()
            if data != target.read(key)
        }
        for key, data in changes.items():
            if data is None:
                target.store.delete(key)
            else:
                target.store.put(key, data)
        if changes:
            return Damaged(how=how, keys=frozenset(changes))
    raise AssertionError(f"{REDRAWS_MAX} times nothing was damaged")


Changes = dict[str, bytes | None]  # None: the object is removed


def _flip(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    key = draw.choice(target.objects(ref))
    data = bytearray(target.read(key))
    bit = draw.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    return {key: bytes(data)}


def _zero_page(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    key = draw.choice(target.objects(ref))
    data = target.read(key)
    begin = PAGE_BYTES * draw.randrange(-(-len(data) // PAGE_BYTES))
    page = data[begin : begin + PAGE_BYTES]
    return {key: data[:begin] + bytes(len(page)) + data[begin + len(page) :]}


def _zero_tail(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    key = draw.choice(target.objects(ref))
    data = target.read(key)
    begin = draw.randrange(len(data))
    return {key: data[:begin] + bytes(len(data) - begin)}


def _truncate(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    key = draw.choice(target.objects(ref))
    data = target.read(key)
    return {key: data[: draw.choice((0, len(data) - 1, draw.randrange(len(data))))]}


def _extend(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    key = draw.choice(target.objects(ref))
    count = draw.choice((1, draw.randint(1, EXTENSION_BYTES_MAX)))
    more = draw.choice((bytes(count), draw.randbytes(count)))
    return {key: target.read(key) + more}


def _swap_chunks(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    one, other = draw.sample(target.chunks(ref), 2)
    return {one: target.read(other), other: target.read(one)}


def _chunk_of_another_step(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    key = draw.choice(target.chunks(ref))
    other = draw.choice([each for each in target.refs if each != ref])
    same_size = [k for k in target.chunks(other) if len(target.read(k)) == len(target.read(key))]
    return {key: target.read(draw.choice(same_size))}


def _stale_manifest(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    other = draw.choice([each for each in target.refs if each != ref])
    return {manifest_key(ref): target.read(manifest_key(other))}


def _mixed_manifest(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    other = draw.choice([each for each in target.refs if each != ref])
    return {manifest_key(ref): mixed_manifest(draw, target, ref, other)}


def _remove(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    return {draw.choice(target.objects(ref)): None}


def _remove_manifest(draw: random.Random, target: Target, ref: CheckpointRef) -> Changes:
    return {manifest_key(ref): None}


DAMAGES: dict[str, Callable[[random.Random, Target, CheckpointRef], Changes]] = {
    "a flipped bit": _flip,
    "a zeroed page": _zero_page,
    "a zeroed tail": _zero_tail,
    "truncation": _truncate,
    "extension": _extend,
    "swapped chunks": _swap_chunks,
    "a chunk of another step": _chunk_of_another_step,
    "a stale manifest": _stale_manifest,
    "a manifest of two steps": _mixed_manifest,
    "a removed object": _remove,
    "a removed manifest": _remove_manifest,
}


def mixed_manifest(
    draw: random.Random, target: Target, ref: CheckpointRef, other: CheckpointRef
) -> bytes:
    """The manifest of `ref` with one member of `other`, each with its right sha256."""
    mixed = json.loads(target.read(manifest_key(ref)))
    stale = json.loads(target.read(manifest_key(other)))
    member = draw.choice(sorted(mixed["members"]))
    mixed["members"][member] = stale["members"][member]
    mixed["chunks"] += stale["chunks"]  # so that nothing but the step tells
    return canonical_json(mixed)


def edit_record(draw: random.Random, store: ObjectStore, records: Sequence[Record]) -> str:
    """Edit one of `records` but the last two, which follow it and tell; return how."""
    track = run_track("r")
    record = draw.choice(records[:-2])
    key = log_key(track, record.seq)
    data = store.get(key)
    assert data is not None
    how = draw.choice(("body", "body and the next record's link", "a bit", "truncated", "removed"))
    if how == "removed":
        store.delete(key)
    elif how == "truncated":
        store.put(key, data[: draw.randrange(len(data))])
    elif how == "a bit":
        flipped = bytearray(data)
        bit = draw.randrange(8 * len(data))
        flipped[bit // 8] ^= 1 << bit % 8
        store.put(key, bytes(flipped))
    else:
        edited = _edited(json.loads(data))
        store.put(key, edited)
        if how != "body":
            _link(store, log_key(track, record.seq + 1), sha256_hex(edited))
    return f"record {record.seq}: {how}"


def _edited(stored: dict[str, Any]) -> bytes:
    stored["body"] = {**stored["body"], "edited": "by a person"}
    return canonical_json(stored)


def _link(store: ObjectStore, key: str, prev_sha256: str) -> None:
    data = store.get(key)
    assert data is not None
    store.put(key, canonical_json({**json.loads(data), "prev_sha256": prev_sha256}))
