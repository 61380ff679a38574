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
from tests.checkpoints.retention_mutants import OTHERS, SAMPLE, Mutant
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
    run(100)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_nothing_that_is_needed_is_lost_in_2000_random_sequences_with_crashes() -> None:
    run(2000)


@pytest.mark.parametrize("plant", SAMPLE, ids=lambda mutant: mutant.__name__)
def test_a_planted_fault_is_caught(plant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    catch(plant, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("plant", OTHERS, ids=lambda mutant: mutant.__name__)
def test_every_planted_fault_is_caught(plant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    catch(plant, monkeypatch)


def catch(plant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the machine with the fault in place until it fails by what it checks."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, CheckpointCorrupt)) as caught:
        run(MUTANT_SEQUENCES_MAX, shrinks=False)
    print(f"{plant.__name__}: {caught.value}")
