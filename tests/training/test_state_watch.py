"""What steps in the loop and is registered nowhere is named; what has nothing to resume is let be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from tests.training.gangs import TrainingRun
from tracks_dagster.track.errors import TrainingError
from tracks_dagster.training.attempt import Attempt

Step = Callable[[int], None]


def loop(
    a: Attempt, model: nn.Module, optimizer: Optimizer, step_it: Step, **named: Optimizer
) -> int:
    a.register(model=model, optimizer=optimizer, **named)
    loader = DataLoader(TensorDataset(torch.ones(100, 1)), batch_sampler=a.sampler(100, seed=5))
    done = 0
    for step, (batch,) in a.steps(loader, until=6):
        model.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        step_it(step)
        a.report(step, loss=loss)
        done = step
    return done


class Sharp(Optimizer):
    """Wraps another optimizer, whose state is not in its own."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_a_second_optimizer_made_in_the_loop_is_named(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=6)
    with run.joined() as a:
        model = nn.Linear(1, 1)
        first, later = Adam(model.parameters()), SGD(model.parameters(), lr=0.1, momentum=0.9)
        says = pytest.raises(TrainingError, match=r"SGD of 2 parameters\) has stepped since step 3")
        with says:
            loop(a, model, first, lambda step: (first if step < 3 else later).step())
    assert [c.ref.step for c in run.state.checkpoints] == []


def test_a_wrapped_optimizer_is_named_and_registered_is_right(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    sharp = Sharp(Adam(model.parameters()))
    run = TrainingRun(tmp_path / "outer", steps=6)
    with run.joined() as a, pytest.raises(TrainingError, match=r"Adam .* is not registered"):
        loop(a, model, sharp, lambda step: sharp.step())
    run = TrainingRun(tmp_path / "both", steps=6)
    with run.joined() as a:
        assert loop(a, model, sharp, lambda step: sharp.step(), inner=sharp.inner) == 6


def test_what_lives_for_one_step_has_no_state_or_only_evaluates_is_let_be(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=6)
    with run.joined() as a:
        model = nn.Linear(1, 1)
        optimizer, plain = Adam(model.parameters()), SGD(model.parameters(), lr=0.0)
        probe = Adam(model.parameters(), lr=0.0)

        def step_it(step: int) -> None:
            optimizer.step()
            plain.step()
            inner = Adam(model.parameters(), lr=0.0)
            inner.step()
            with a.evaluating():
                probe.step()

        assert loop(a, model, optimizer, step_it) == 6


def test_one_without_a_state_whose_rate_changes_is_named(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=6)
    with run.joined() as a:
        model = nn.Linear(1, 1)
        optimizer, plain = Adam(model.parameters()), SGD(model.parameters(), lr=0.1)

        def step_it(step: int) -> None:
            optimizer.step()
            plain.step()
            plain.param_groups[0]["lr"] = 0.1 / step

        with pytest.raises(TrainingError, match="SGD"):
            loop(a, model, optimizer, step_it)


def test_no_hook_is_left_behind(tmp_path: Path) -> None:
    from torch.optim.optimizer import _global_optimizer_post_hooks

    before = len(_global_optimizer_post_hooks)
    run = TrainingRun(tmp_path, steps=6)
    with run.joined() as a:
        model = nn.Linear(1, 1)
        optimizer = Adam(model.parameters())
        loop(a, model, optimizer, lambda step: optimizer.step())
    assert len(_global_optimizer_post_hooks) == before


class Counting(nn.Linear):
    """Keeps what no state dict has."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.is_warm = False
        self.width = 3
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.register_buffer("mask", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.is_warm = True
        self.seen += 1
        return super().forward(x)


def test_what_no_checkpoint_has_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = TrainingRun(tmp_path, steps=6)
    with run.joined() as a:
        model = Counting()
        optimizer = Adam(model.parameters())
        loop(a, model, optimizer, lambda step: optimizer.step())
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" and ")[0] for line in said] == [
        "model.is_warm is an attribute",
        "model.seen is a buffer that is not persistent",
    ]
    assert [x["text"] for x in run.journal(1) if x["kind"] == "not_saved"] == said


def test_gradients_between_two_optimizer_steps_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = TrainingRun(tmp_path, steps=6)
    with run.joined() as a:
        model = nn.Linear(1, 1)
        optimizer = Adam(model.parameters())
        loop(a, model, optimizer, lambda step: step % 3 or optimizer.step())
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("Step 1 ended without a step of optimizer, and left gradients.")


def test_numbers_that_are_drawn_behind_a_save_are_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = TrainingRun(tmp_path, steps=6, every_steps=2)
    with run.joined() as a:
        model = nn.Linear(1, 1)
        optimizer = Adam(model.parameters())
        a.register(model=model, optimizer=optimizer)
        for step, _ in a.steps(until=6):
            optimizer.step()
            torch.rand(1)
            a.report(step, loss=1.0)
            with a.evaluating():
                torch.rand(1)
            if step > 3:
                torch.rand(1)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("Random numbers were drawn after the report of step 4,")


def test_parameters_that_the_loop_adds_are_refused_at_the_next_save(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=6, every_steps=2)
    with run.joined() as a:
        model = nn.Sequential(nn.Linear(1, 1))
        optimizer = Adam(model.parameters())

        def step_it(step: int) -> None:
            optimizer.step()
            if step == 3:
                model.append(nn.Linear(1, 1))

        with pytest.raises(TrainingError, match=r"model\.1\.bias is not as it was built: the loop"):
            loop(a, model, optimizer, step_it)


def test_a_state_of_tensors_and_what_comes_later_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = TrainingRun(tmp_path, steps=6, every_steps=2)
    with run.joined() as a:
        model = nn.Linear(1, 1)
        model.hidden = torch.zeros(3)  # type: ignore[assignment]
        optimizer = Adam(model.parameters())
        optimizer.counted = 0  # type: ignore[attr-defined]

        def step_it(step: int) -> None:
            optimizer.step()
            if step == 5:
                model.hidden = torch.tensor([1.0, 0.0, -1.0])  # type: ignore[assignment]
                model.late = 1  # type: ignore[assignment]
                optimizer.counted = 5  # type: ignore[attr-defined]

        loop(a, model, optimizer, step_it)
    said = [line.partition(" is ")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == ["model.hidden", "model.late", "optimizer.counted"]


@pytest.mark.parametrize("how", ["scheduler", "named", "forgotten"])
def test_a_schedule_that_is_registered_nowhere_is_said(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = TrainingRun(tmp_path, steps=2)
    with run.joined() as a:
        model = nn.Linear(1, 1)
        optimizer = Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        given = {"scheduler": schedule} if how == "scheduler" else {"decay": schedule}
        registered: Any = {} if how == "forgotten" else given
        a.register(model=model, optimizer=optimizer, **registered)
        for step, _ in a.steps(until=2):
            optimizer.step()
            schedule.step()
            a.report(step, loss=1.0)
    said = capsys.readouterr().err
    assert said.startswith("A schedule was built over optimizer,") == (how == "forgotten")
    assert said == "" or how == "forgotten"


def small_steps(
    a: Attempt, train: Callable[[int], object], behind: Callable[[int], object], **named: Any
) -> None:
    """Train a toy for eight steps; behind: what the script does after each report."""
    a.register(**named)
    for step, _ in a.steps(until=8):
        train(step)
        a.report(step, loss=1.0)
        behind(step)


def nothing(step: int) -> None:
    del step


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 1)).square().mean().backward()


@pytest.mark.parametrize("how", ["scaler", "second", "whole", "skipped", "critic"])
def test_gradients_that_add_up_over_steps_are_said_whatever_else_steps(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer, second = SGD(model.parameters(), lr=0.1), SGD(other.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=how in ("scaler", "skipped"))

    def train(step: int) -> None:
        backward(model)
        if how == "whole":
            optimizer.step()  # the gradients are left, and used
        elif how == "skipped":
            next(model.parameters()).grad.fill_(torch.inf)  # type: ignore[union-attr]
            scaler.scale(torch.zeros(1))
            scaler.step(optimizer)
            scaler.update()
        elif how == "critic":  # one in five steps of the other one, whose gradients are left
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 1:
                second.zero_grad()
                backward(other)
                second.step()
        elif step % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        if how == "second":
            backward(other)
            second.step()

    run = TrainingRun(tmp_path, steps=8)
    with run.joined() as a:
        named = {"scaler": scaler, "other": other, "second": second}
        small_steps(a, train, nothing, model=model, optimizer=optimizer, **named)
    said = capsys.readouterr().err
    assert ("left gradients" in said) == (how in ("scaler", "second")), said


@pytest.mark.parametrize("what", ["scheduler", "average", "model", "nothing"])
def test_what_changes_behind_a_saved_report_is_said_once(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    average = torch.optim.swa_utils.AveragedModel(model)

    def train(step: int) -> None:
        backward(model)
        optimizer.step()

    def behind(step: int) -> None:
        optimizer.zero_grad()
        if what == "scheduler":
            schedule.step()
        elif what == "average":
            average.update_parameters(model)
        elif what == "model":
            model(torch.ones(2, 1))  # BatchNorm's counts go on: not in eval mode

    run = TrainingRun(tmp_path, steps=8, every_steps=2)
    with run.joined() as a:
        named = {"scheduler": schedule, "average": average}
        small_steps(a, train, behind, model=model, optimizer=optimizer, **named)
    lines = [line for line in capsys.readouterr().err.splitlines() if "changed after" in line]
    names = {"scheduler": "optimizer, scheduler", "average": "average", "model": "model"}
    begin = f"{names.get(what)} changed after the report of step 2,"
    assert [line.startswith(begin) for line in lines] == ([] if what == "nothing" else [True])
