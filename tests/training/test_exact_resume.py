"""Real ranks, interrupted in every way: the end is equal, to the bit, to the undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from tests.training.gangs import TrainingRun
from tracks_dagster.track.bodies import CheckpointCadence, Drill
from tracks_dagster.track.names import EXIT_DRAINED
from tracks_dagster.track.records import Kind
from tracks_dagster.track.samples import SampleOrder
from tracks_dagster.training.environment import AttemptPlace
from tracks_dagster.training.triggers import StopSignal, Triggers, time_left_s

GRACE = Drill(kind="preempt", step=7)
NO_GRACE = Drill(kind="preempt", step=8, grace_s=0.0)


def samples(run: TrainingRun) -> dict[int, str]:
    """The digest of every step's samples, from whichever attempt ran it last."""
    attempts = run.state.attempts
    return {
        step: line["indices_sha256"]
        for attempt in attempts
        for step, line in run.steps(attempt.attempt_id).items()
    }


@pytest.mark.parametrize(
    ("ranks", "order"),
    [
        (1, SampleOrder.FEISTEL),
        (1, SampleOrder.SORTED),
        (2, SampleOrder.FEISTEL),
        (3, SampleOrder.FEISTEL),
    ],
)
def test_weights_and_losses_are_equal_with_and_without_an_interruption(
    tmp_path: Path, ranks: int, order: SampleOrder
) -> None:
    calm, drained, killed = (
        TrainingRun(tmp_path / name, ranks=ranks, family="gpt", drills=drills, sample_order=order)
        for name, drills in (("calm", ()), ("drained", (GRACE,)), ("killed", (NO_GRACE,)))
    )
    for run in (calm, drained, killed):
        run.train_to_the_end()
    assert calm.weights() == drained.weights() == killed.weights()
    assert samples(calm) == samples(drained) == samples(killed)
    # every 5 steps and at the drain: 7 is saved with grace, 5 is the last one without
    assert [a.resumed_step for a in drained.state.attempts] == [0, 7]
    assert [a.resumed_step for a in killed.state.attempts] == [0, 5]
    losses = {step: line["loss"] for step, line in calm.steps(1).items()}
    again = {step: line["loss"] for step, line in killed.steps(2).items()}
    assert again == {step: losses[step] for step in range(6, 13)}


def test_a_loader_with_workers_resumes_exactly(tmp_path: Path) -> None:
    without = TrainingRun(tmp_path / "without", ranks=2, loader_workers=0)
    drills = (Drill(kind="preempt", step=2), NO_GRACE)
    workers = TrainingRun(tmp_path / "workers", ranks=2, loader_workers=2, drills=drills)
    for run in (without, workers):
        run.train_to_the_end()
    assert without.weights() == workers.weights()


def test_a_resumed_run_trains_its_last_finished_step_once(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, drills=(GRACE,))
    run.train_to_the_end()
    assert list(run.steps(1)) == [*range(1, 8)]
    assert list(run.steps(2)) == [*range(8, 13)]


def test_with_grace_the_gang_ends_drained_and_no_step_is_lost(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, ranks=2, drills=(GRACE,))
    gang = run.train()
    assert gang.exit_codes == [EXIT_DRAINED, EXIT_DRAINED]
    assert run.state.checkpoints[-1].body.trigger == "sigterm"
    assert run.final().step == 7
    assert [word.reason for word in run.last_words(1)] == ["drained", "drained"]


def test_when_one_rank_is_asked_to_stop_all_stop_after_the_same_step(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, ranks=3, steps=100_000, every_steps=None)
    gang = run.start()
    gang.wait(until=lambda: bool(list(gang.work.glob("journal/*/rank-2.jsonl"))))
    assert gang.ranks[2].pid is not None
    os.kill(gang.ranks[2].pid, signal.SIGTERM)
    gang.wait()
    assert gang.exit_codes == [EXIT_DRAINED] * 3
    assert {word.step for word in run.last_words(1)} == {run.final().step}


def test_another_number_of_ranks_sees_the_same_samples_in_the_same_order(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path / "changed", ranks=2, drills=(NO_GRACE,))
    run.train()
    run.ranks = 3
    run.train_to_the_end()
    calm = TrainingRun(tmp_path / "calm", ranks=1)
    calm.train_to_the_end()
    assert samples(run) == samples(calm)
    assert [line["cursor_to"] for line in run.steps(2).values()] == [12 * s for s in range(6, 13)]


def test_the_time_trigger_saves_too_and_the_final_step_always_is(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, ranks=2, every_steps=None, every_s=0.0, steps=3)
    run.train_to_the_end()
    assert [(c.body.ref.step, c.body.trigger) for c in run.state.checkpoints] == [
        (1, "time"),
        (2, "time"),
        (3, "final"),
    ]


@pytest.mark.parametrize(
    ("left_s", "slowest_s", "is_due"),
    [
        (301, 0.0, False),  # 60 s early, 120 s of notice, as long again
        (299, 0.0, True),
        (299, 60.0, False),  # twice as long fits into the notice
        (381, 100.0, False),  # 60 s early, 120 s of notice, twice 100 s
        (379, 100.0, True),
    ],
)
def test_a_save_is_due_once_before_a_limit_whose_notice_may_be_too_short_for_one(
    tmp_path: Path, left_s: float, slowest_s: float, is_due: bool
) -> None:
    now = time.time()
    place = AttemptPlace(
        store_url="",
        run_id="r",
        attempt_id=1,
        opened_seq=1,
        work=tmp_path,
        cache=tmp_path,
        ends_at_s=now + left_s,
        notice_s=120.0,
    )
    cadence = CheckpointCadence(every_steps=None)
    for is_clock in (True, False):
        triggers = Triggers(cadence, StopSignal(), place, is_clock=is_clock)
        with mock.patch("tracks_dagster.training.triggers.time") as clock:
            clock.time.return_value = now
            clock.monotonic.return_value = 0.0
            assert time_left_s(place) == left_s
            assert triggers.asked(slowest_s)[2] == (is_due and is_clock)
            assert not triggers.asked(slowest_s)[2]
    for unknown in (replace(place, ends_at_s=None), replace(place, notice_s=None)):
        triggers = Triggers(cadence, StopSignal(), unknown, is_clock=True)
        assert not triggers.asked(slowest_s)[2]
    assert time_left_s(replace(place, ends_at_s=None)) is None


def test_an_attempt_that_finds_its_last_step_done_completes_without_a_step(
    tmp_path: Path,
) -> None:
    run = TrainingRun(tmp_path, steps=5)
    run.train_to_the_end()
    assert run.train().exit_codes == [0]
    assert run.steps(2) == {}
    assert len(run.state.checkpoints) == 1
    assert run.last_words(2)[0].reason == "completed"


def test_the_command_of_a_rank_trains_its_attempt(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=3)
    work = tmp_path / "work"
    environment = run.environment(run.open(), work)
    done = subprocess.run(
        [sys.executable, str(run.script)],
        env={**environment, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert run.final().step == 3


@pytest.mark.full
@pytest.mark.parametrize("family", ["gpt", "tabular"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_many_interruptions_in_a_row_change_nothing(
    tmp_path: Path, family: str, ranks: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    drills = tuple(
        Drill(kind="preempt", step=step, grace_s=rng.choice([0.0, 30.0]))
        for step in sorted(rng.sample(range(1, 30), 5))
    )
    asked = {"ranks": ranks, "family": family, "steps": 30, "global_batch": 24}
    calm = TrainingRun(tmp_path / "calm", **asked)
    shaken = TrainingRun(tmp_path / "shaken", **asked, drills=drills)
    calm.train_to_the_end()
    shaken.train_to_the_end(attempts_max=6)
    assert len(shaken.state.attempts) == 6
    assert calm.weights() == shaken.weights()
    assert samples(calm) == samples(shaken)
    assert len(shaken.records(Kind.NOTE)) == 5
