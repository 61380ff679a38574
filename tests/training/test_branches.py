"""A branch trains on from another run's checkpoint, exactly, and leaves that run as it was."""

from __future__ import annotations

import os
from pathlib import Path

from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.track.bodies import Drill
from tracks_dagster.training.saves.manifest import verify_checkpoint
from tracks_dagster.training.software import describe_code, foresee_software


def test_a_branch_repeats_its_source_to_the_bit_also_after_a_kill_before_its_first_commit(
    tmp_path: Path,
) -> None:
    source = TrainingRun(tmp_path, steps=12, every_steps=5)
    source.train_to_the_end()
    found = {c.ref.step: c.ref for c in source.state.checkpoints}
    records = source.records()
    killed = Drill(kind="preempt", step=7, grace_s=0.0)
    branch = TrainingRun(
        tmp_path,
        run_id="b",
        steps=12,
        every_steps=5,
        store=source.store,
        branched_from=found[5],
        drills=(killed,),
    )
    branch.train_to_the_end()

    state = branch.state
    assert [a.opened.resume for a in state.attempts] == [found[5], found[5]]
    assert [a.restored.step for a in state.attempts if a.restored] == [5, 5]
    assert branch.weights() == source.weights()
    losses = {step: line["loss"] for step, line in branch.steps(2).items()}
    assert losses == {step: line["loss"] for step, line in source.steps(1).items() if step > 5}
    assert state.checkpoints
    for checkpoint in state.checkpoints:  # it stands on bytes of its own
        chunks = branch.manifest_of(checkpoint.ref).chunks
        assert all(chunk.key.startswith("runs/b/") for chunk in chunks)
    assert source.records() == records
    assert verify_checkpoint(source.store, found[5]) > 0


def test_a_branch_whose_own_checkpoints_rot_goes_back_to_its_source(tmp_path: Path) -> None:
    source = TrainingRun(tmp_path, steps=4, every_steps=2)
    with source.joined() as a:
        train_linear(a, until=4)
    found = {c.ref.step: c.ref for c in source.state.checkpoints}
    branch = TrainingRun(
        tmp_path, run_id="b", steps=4, every_steps=3, store=source.store, branched_from=found[2]
    )
    with branch.joined() as a:
        train_linear(a, until=3)
    key = branch.manifest_of(branch.final()).chunks[0].key
    source.store.put(key, b"rot")
    with branch.joined() as a:
        train_linear(a, until=4)
    restored = branch.state.attempts[1].restored
    assert restored is not None
    assert restored.checkpoint == found[2]
    assert "resumed from step 2 of attempt 1 of r instead" in (restored.fallback_why or "")


def test_a_gang_says_the_environment_that_was_foreseen_for_it(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=1)
    run.train_to_the_end()
    placed = run.state.attempts[0].placed
    assert placed is not None
    code = describe_code(run.state.declared.trainer)
    assert dict(placed.environment) == {**foresee_software(os.environ), **code}
