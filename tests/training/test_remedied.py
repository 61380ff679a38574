"""Real ranks with what a remedy changed: other samples, another learning rate, less memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ConstantLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.track.bodies import CheckpointCadence, Drill
from tracks_dagster.track.errors import CheckpointMismatch
from tracks_dagster.training.saves.trained import Trained
from tracks_dagster.training.starting import rescale

WINDOW = [[6, 8]]


def digests(run: TrainingRun, attempt_id: int) -> dict[int, str]:
    return {s: line["indices_sha256"] for s, line in run.steps(attempt_id).items()}


def test_a_rollback_with_a_window_trains_on_the_samples_after_it(tmp_path: Path) -> None:
    calm = TrainingRun(tmp_path / "calm", steps=15)
    calm.train_to_the_end()
    run = TrainingRun(tmp_path / "run", ranks=2)
    run.train()
    run.train(run.open(resume_step=5, skip_windows=WINDOW))
    expected = digests(calm, 1)
    assert digests(run, 2) == {step: expected[step + 3] for step in range(6, 13)}
    lines = run.steps(2)
    assert [line["cursor_to"] for line in lines.values()] == [12 * (s + 3) for s in range(6, 13)]
    restored = run.state.attempts[1].restored
    assert restored is not None
    assert (restored.step, restored.cursor) == (5, 60)
    assert run.state.checkpoints[-1].body.cursor == 12 * 15


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_with_a_window_resumes_exactly(tmp_path: Path, ranks: int) -> None:
    calm = TrainingRun(tmp_path / "calm", ranks=ranks)
    drills = (Drill(kind="preempt", step=9),)
    shaken = TrainingRun(tmp_path / "shaken", ranks=ranks, drills=drills)
    for run in (calm, shaken):
        run.train(run.open(skip_windows=WINDOW))
    shaken.train(shaken.open(skip_windows=WINDOW))
    assert [a.resumed_step for a in shaken.state.attempts] == [0, 9]
    assert calm.weights() == shaken.weights()
    assert digests(calm, 1) == digests(shaken, 1) | digests(shaken, 2)


def test_a_window_reaches_a_plain_loop_as_well(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=4)
    with run.joined() as a:
        train_linear(a, until=4)
    with run.joined(run.open(resume_step=None, skip_windows=[[5, 8]], steps=8)) as a:
        train_linear(a, until=8)
    assert [line["cursor_to"] for line in run.steps(2).values()] == [12 * s for s in range(9, 13)]


def test_a_window_before_the_checkpoint_is_refused(tmp_path: Path) -> None:
    """That checkpoint was trained on what the window leaves out."""
    run = TrainingRun(tmp_path, steps=4)
    with run.joined() as a:
        train_linear(a, until=4)
    attempt_id = run.open(skip_windows=[[3, 6]])
    says = pytest.raises(CheckpointMismatch, match="skip_windows up to that step")
    with says, run.joined(attempt_id) as a:
        train_linear(a, until=8)


def test_half_the_learning_rate_holds_for_what_was_restored(tmp_path: Path) -> None:
    """Optimizer and scheduler bring the old rate back from the checkpoint."""
    run = TrainingRun(tmp_path, ranks=2, lr=0.008)
    run.train()
    run.train(run.open(resume_step=5, lr=0.004))
    rates = [{s: line["metrics"]["lr"] for s, line in run.steps(n).items()} for n in (1, 2)]
    assert set(rates[1]) == set(range(6, 13))
    for step, rate in rates[1].items():
        assert rate == pytest.approx(rates[0][step] / 2, rel=1e-12)


def test_the_same_rate_leaves_what_was_restored_to_the_bit(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path)
    run.train()
    run.train(run.open(resume_step=5, allocator="expandable_segments"))
    assert {s: x["loss"] for s, x in run.steps(2).items()} == {
        s: x["loss"] for s, x in run.steps(1).items() if s > 5
    }


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: None,
        lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
        lambda o: OneCycleLR(o, max_lr=0.4, total_steps=30, cycle_momentum=False),
        lambda o: SequentialLR(
            o, [ConstantLR(o, 0.5, 2), LambdaLR(o, lambda step: 0.9**step)], milestones=[3]
        ),
        lambda o: ReduceLROnPlateau(o, patience=0),
    ],
    ids=["none", "lambda", "one-cycle", "sequential", "plateau"],
)
def test_a_schedule_goes_on_at_half_the_height(schedule: object) -> None:
    whole, half = (_trained(schedule) for _ in range(2))
    for trained in (whole, half):
        for _ in range(2):
            _step(trained)
    rescale(half.optimizers.values(), half.schedulers, 0.5)
    for _ in range(5):
        rates = [[g["lr"] for g in t.optimizer.param_groups] for t in (whole, half)]
        assert rates[1] == pytest.approx([rate / 2 for rate in rates[0]], rel=1e-9)
        for trained in (whole, half):
            _step(trained)


@pytest.mark.parametrize("ranks", [1, 2])
def test_activation_checkpointing_gives_the_same_weights(tmp_path: Path, ranks: int) -> None:
    plain = TrainingRun(tmp_path / "plain", family="gpt", ranks=ranks, dropout=0.2, layers=2)
    less = TrainingRun(
        tmp_path / "less",
        family="gpt",
        ranks=ranks,
        dropout=0.2,
        layers=2,
        activation_checkpointing=True,
    )
    for run in (plain, less):
        run.train_to_the_end()
    assert plain.weights() == less.weights()


def test_an_attempt_saves_as_often_as_it_was_opened_to(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=6, every_steps=None)
    run.train(run.open(cadence=CheckpointCadence(every_steps=2)))
    assert [c.ref.step for c in run.state.checkpoints] == [2, 4, 6]


def _trained(schedule: object) -> Trained:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trained(
        model=model,
        optimizer=optimizer,
        scheduler=schedule(optimizer),  # type: ignore[operator]
    )


def _step(trained: Trained) -> None:
    trained.optimizer.step()
    if isinstance(trained.scheduler, ReduceLROnPlateau):
        trained.scheduler.step(1.0)
    elif trained.scheduler is not None:
        trained.scheduler.step()
