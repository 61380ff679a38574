"""Blocks of schedules of `faulted_saves`, here or in processes beside each other."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.forked import PROCESSES
from tests.s3_faults import REQUESTS_MAX, Wrong
from tests.s3_fronts import Front, no_wire, wire
from tests.training import faulted_saves
from tracks_dagster.training.saves import layout

ENV_SEED = "TRACKS_FAULTY_S3_SEED"
BLOCK = 100  # schedules of one task for a process
FRONTS = {"no wire": no_wire, "wire": wire}


@dataclass
class Met:
    """What the schedules of a block did, and what answers the program got."""

    faults: Counter[Wrong] = field(default_factory=Counter)
    end_counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        faults = ", ".join(f"{wrong.name} {count}" for wrong, count in self.faults.items())
        return f"{dict(self.end_counts)}; {faults}"


def play_block(over: str, seeds: Sequence[int]) -> Met:
    """Play every schedule; AssertionError names the seed and the faults of the first that fails."""
    met = Met()
    with pytest.MonkeyPatch.context() as monkeypatch, FRONTS[over](monkeypatch) as front:
        make_chunks_tiny(monkeypatch)
        for seed in seeds:
            met.end_counts += play_one(front, seed)
            assert front.served is not None
            met.faults += front.served.played
    return met


def play_one(front: Front, seed: int) -> Counter[str]:
    """Play one schedule; whatever it raises becomes an AssertionError that names the seed."""
    schedule = front.play(seed)
    try:
        end_counts = faulted_saves.play(schedule).counts
        assert schedule.requests <= REQUESTS_MAX
    except Exception as error:
        faults = {wrong.name: count for wrong, count in schedule.played.items()}
        raise AssertionError(
            f"{ENV_SEED}={seed}, in phase {schedule.phase!r} after {faults}: {error!r}"
        ) from error
    return end_counts


def play_side_by_side(over: str, seeds: range) -> Met:
    """Play the schedules in as many processes as there are cores."""
    blocks = [seeds[first : first + BLOCK] for first in range(0, len(seeds), BLOCK)]
    met = Met()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=PROCESSES) as pool:
        for part in pool.map(play_block, [over] * len(blocks), blocks):
            met.faults += part.faults
            met.end_counts += part.end_counts
    return met


def make_chunks_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of at most 256 bytes; tensors above 64 bytes have their own."""
    monkeypatch.setattr(layout, "CHUNK_BYTES_MAX", 256)
    monkeypatch.setattr(layout, "SHARED_BYTES_MAX", 64)
