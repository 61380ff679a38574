"""Commits, saves and restores over an S3 that misbehaves, by seeded schedules.

A schedule's seed decides which requests go wrong and how (`tests.s3_faults`): 409, a 412 for one's own
success, silence after success, late arrivals, storms of 503, resets, replies that break off. Most
schedules run at the SDK's HTTP session, one in five over real HTTP; both in front of moto's S3.

TRACKS_FAULTY_S3_SEED=n runs the one schedule n in every test here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.s3_faults import Wrong
from tests.s3_fronts import Front, no_wire
from tests.training.faulted_blocks import (
    ENV_SEED,
    make_chunks_tiny,
    play_block,
    play_one,
    play_side_by_side,
)
from tracks_dagster.stores.s3 import S3Store
from tracks_dagster.track.append import Done, Reply, Walk
from tracks_dagster.track.errors import OutcomeUnknown, StoreUnavailable
from tracks_dagster.track.records import parse
from tracks_dagster.training.saves.loading import CheckpointStorageReader
from tracks_dagster.training.saves.manifest import Chunk

PLANTED_SEEDS_MAX = 200  # schedules in which a planted fault has to show


def play(over: str, seeds: range, *, side_by_side: bool = False) -> None:
    """Play every schedule, or the one asked for, and print what was met."""
    chosen = os.environ.get(ENV_SEED)
    if chosen is not None:
        print(f"\nseed {chosen}: {play_block(over, [int(chosen)])}")
        return
    print(f"\nseeds {seeds.start} to {seeds.stop - 1}, {over}")
    met = play_side_by_side(over, seeds) if side_by_side else play_block(over, seeds)
    print(met)
    ends = {"save done", "save unknown", "save fenced", "restore done", "restore failed"}
    assert ends <= met.end_counts.keys(), "the schedules no longer meet every end"
    assert set(met.faults) == set(Wrong), "the schedules no longer play every fault"


def fresh(count: int) -> range:
    """Seeds that no run has played yet, most likely."""
    first = random.SystemRandom().randrange(2**31)
    return range(first, first + count)


def test_schedules_at_the_http_session_never_break_a_promise() -> None:
    play("no wire", range(24))


def test_schedules_over_http_never_break_a_promise() -> None:
    play("wire", range(4000, 4024))


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_hundreds_of_fresh_schedules_at_the_http_session_never_break_a_promise() -> None:
    play("no wire", fresh(300), side_by_side=True)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_hundreds_of_fresh_schedules_over_http_never_break_a_promise() -> None:
    play("wire", fresh(120), side_by_side=True)


def trusts_every_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation whose outcome is not known is taken for a success."""
    create = S3Store.create

    def created(self: S3Store, key: str, data: bytes | memoryview) -> bool:
        try:
            return create(self, key, data)
        except OutcomeUnknown:
            return True

    monkeypatch.setattr(S3Store, "create", created)


def forgets_its_own_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record found on the way is another's, always."""
    advance = Walk.advance

    def forgetful(self: Walk, reply: Reply) -> Walk | Done:
        if isinstance(reply, bytes):
            record = parse(reply, seq=self.seq)
            if record.uid == self.draft.uid:
                return replace(self, seq=self.seq + 1, prev_sha256=record.sha256)
        return advance(self, reply)

    monkeypatch.setattr(Walk, "advance", forgetful)


def believes_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are read without a look at their size and hash."""

    def read(self: CheckpointStorageReader, chunk: Chunk, part: memoryview) -> None:
        self._store.read_into(chunk.key, part)

    monkeypatch.setattr(CheckpointStorageReader, "_read", read)


def commits_before_its_bytes_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that could not be stored is passed over."""
    put = S3Store.put

    def careless(self: S3Store, key: str, data: bytes | memoryview) -> None:
        with suppress(StoreUnavailable):
            put(self, key, data)

    monkeypatch.setattr(S3Store, "put", careless)


@pytest.mark.parametrize(
    "plant",
    [
        trusts_every_reply,
        forgets_its_own_uid,
        believes_what_it_reads,
        commits_before_its_bytes_are_durable,
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    make_chunks_tiny(monkeypatch)
    with no_wire(monkeypatch) as front:
        found = next((seed for seed in range(PLANTED_SEEDS_MAX) if _fails(front, seed)), None)
    print(f"\n{plant.__name__}: found by seed {found}")
    assert found is not None


def _fails(front: Front, seed: int) -> bool:
    try:
        play_one(front, seed)
    except AssertionError:
        return True
    return False
