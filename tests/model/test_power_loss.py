"""Proof: a power loss at any moment loses nothing that a call returned, tears nothing, mixes nothing.

The real code of the local store runs; what it asks of the system is recorded, and after every single
operation the states that a file system may keep, by the letter of POSIX, are judged (`disk`).
TRACKS_POWER_LOSS_SEED reruns what a printed seed found.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.model.disk import Disk
from tests.model.recording import Promised, Synced, Trace, recorded
from tests.model.saves import UNREAD, Values, live, problem

SEED = int(os.environ.get("TRACKS_POWER_LOSS_SEED", "1"))
LIVES_FULL = 6
LIVES_OF_MUTANTS = 6  # tried before a mutant counts as missed
STATES_FULL_MIN = 10_000


def trace_of(root: Path, seed: int) -> Trace:
    root.mkdir()
    with recorded(root) as trace:
        live(root, trace, seed)
    return trace


def lose_power(
    trace: Trace, *, seed: int, limit: int, dropped: str | None = None
) -> tuple[int, str | None]:
    """Return how many states were judged, and what is wrong with the first bad one."""
    disk, values = Disk(unread=UNREAD, dropped=dropped), dict[str, Values]()
    judged = 0
    for number, op in enumerate(trace.ops):
        if isinstance(op, Promised):
            values[op.key] = op.values
        else:
            disk.apply(op)
        for files in disk.states(seed + number, limit):
            judged += 1
            wrong = problem(files, values)
            if wrong is not None:
                return judged, f"seed {seed}, power lost after operation {number} ({op}): {wrong}"
    return judged, None


def sites(trace: Trace) -> list[str]:
    return sorted({op.site for op in trace.ops if isinstance(op, Synced)})


def test_a_power_loss_at_any_moment_loses_nothing_that_was_promised(tmp_path: Path) -> None:
    judged, wrong = lose_power(trace_of(tmp_path / "disk", SEED), seed=SEED, limit=4)
    print(f"seed {SEED}: {judged} states")
    assert wrong is None
    assert judged > 500


@pytest.mark.full
def test_ten_thousand_states_after_a_power_loss_keep_every_promise(tmp_path: Path) -> None:
    states = 0
    for seed in range(SEED, SEED + LIVES_FULL):
        judged, wrong = lose_power(trace_of(tmp_path / f"{seed}", seed), seed=seed, limit=16)
        assert wrong is None
        states += judged
    print(f"seeds {SEED} to {SEED + LIVES_FULL - 1}: {states} states")
    assert states >= STATES_FULL_MIN


def test_taking_out_any_one_sync_is_caught(tmp_path: Path) -> None:
    """At every place of the store's code that syncs; a few lives, for not all meet every danger."""
    missed: set[str] = set()
    for life, seed in enumerate(range(SEED, SEED + LIVES_OF_MUTANTS)):
        trace = trace_of(tmp_path / f"{seed}", seed)
        suspects = sites(trace) if life == 0 else sorted(missed)
        missed = {
            site
            for site in suspects
            if lose_power(trace, seed=seed, limit=16, dropped=site)[1] is None
        }
        print(f"seed {seed}: of {len(suspects)} syncs taken out one at a time, missed {missed}")
        if not missed:
            break
    assert missed == set()


def test_every_way_to_sync_is_among_those_taken_out(tmp_path: Path) -> None:
    assert set(sites(trace_of(tmp_path / "disk", SEED))) == {
        "make_root",
        "create > _written",
        "create > _make_folder",
        "create > _settle",
        "create",
        "put > _written",
        "put > _make_folder",
        "put",
        "delete > _settle",
    }
