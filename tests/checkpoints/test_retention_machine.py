"""Proof that no checkpoint anybody needs is lost, and that the proof itself can fail.

`TRACKS_RETENTION_SEED=<n>` runs the sequences of that seed again; each run prints its own.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.checkpoints.retention_machine import Retention
from tests.checkpoints.retention_mutants import (
    QUICK,
    SLOW,
    Mutant,
    a_commit_in_between_is_not_seen,
)
from tests.checkpoints.retention_world import RUN_ID, Interrupted, Reader, World
from tracks_dagster.checkpoints.effects.retention import collect
from tracks_dagster.track.bodies import RetentionRule
from tracks_dagster.track.errors import CheckpointCorrupt

SEED = int(os.environ.get("TRACKS_RETENTION_SEED") or random.randrange(2**32))
STEPS = 30  # of one sequence
MUTANT_SEQUENCES_MAX = 1000  # within which every mutant has to be caught


def run(sequences: int, *, shrinks: bool = True) -> None:
    """Run so many random sequences of the machine; raises what the first bad one raises."""
    print(f"TRACKS_RETENTION_SEED={SEED}")
    phases = [Phase.generate, Phase.shrink] if shrinks else [Phase.generate]

    class Seeded(Retention):
        pass

    run_state_machine_as_test(
        seed(SEED)(Seeded),
        settings=settings(
            max_examples=sequences,
            stateful_step_count=STEPS,
            phases=phases,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_nothing_that_is_needed_is_lost_in_random_sequences_with_crashes() -> None:
    run(30)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_nothing_that_is_needed_is_lost_in_2000_random_sequences_with_crashes() -> None:
    run(2000)


@pytest.mark.parametrize("plant", QUICK, ids=lambda mutant: mutant.__name__)
def test_a_planted_fault_is_caught(plant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    catch(plant, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("plant", SLOW, ids=lambda mutant: mutant.__name__)
def test_a_planted_fault_that_shows_seldom_is_caught(
    plant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    catch(plant, monkeypatch)


def catch(plant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the machine with the fault in place until it fails by what it checks."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, CheckpointCorrupt)) as caught:
        run(MUTANT_SEQUENCES_MAX, shrinks=False)
    print(f"{plant.__name__}: {caught.value}")


# One race, at every call: a save takes a chunk of a checkpoint whose deletion is just decided.


CHANGES = range(1, 13)  # calls that write or delete; the pass makes fewer


def race(at: int, *, after: bool) -> World:
    """Begin a save that shares a chunk with the first checkpoint; it commits in mid-collection."""
    world = World(RetentionRule(keep_last=1, keep_best=0, delete_after_s=0.0))
    world.open_attempt()
    (trainer,) = world.trainers
    trainer.start()
    for layers in ((0, 0, 0), (1, 0, 0), (2, 0, 0)):
        world.save(trainer, layers, 1.0)
        world.save(trainer, layers, 1.0)
    trainer.begin_save((0, 0, 0), 1.0)  # the first layer's chunk is named by the first commit only
    disturbed = Interrupted(
        world.store, at=at, action=trainer.finish_save, after=after, only_changes=True
    )
    tracks = world.fresh_tracks(disturbed)
    tracks.run(RUN_ID)
    disturbed.arm()
    collect(tracks, Reader(disturbed), RUN_ID, by="collector")
    return world


def check_all() -> None:
    for at in CHANGES:
        check(race(at, after=False))


def check(world: World) -> None:
    kept = [checkpoint.ref for checkpoint in world.state.checkpoints if not checkpoint.deleted]
    assert kept
    for ref in kept:
        Reader(world.store).verify(ref)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", CHANGES)
def test_a_commit_keeps_its_chunks_or_is_abandoned(at: int, after: bool) -> None:
    check(race(at, after=after))


def test_a_deletion_that_misses_the_commit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    a_commit_in_between_is_not_seen(monkeypatch)
    with pytest.raises(CheckpointCorrupt, match="has sha256 nothing"):
        check_all()
