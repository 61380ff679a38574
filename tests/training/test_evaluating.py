"""Evaluations inside the loop leave no trace in what trains, and none is skipped by an end."""

from __future__ import annotations

import random
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.training.gangs import TrainingRun
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.last_word import Drained
from tracks_dagster.training.saves import random_state
from tracks_dagster.training.triggers import StopSignal


class Killed(BaseException):
    """What no script catches."""


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_every_generator_and_the_mode_are_as_before(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=2)
    with run.joined() as a:
        model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))
        model[1].eval()
        a.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        loader = DataLoader(TensorDataset(torch.ones(100, 1)), batch_sampler=a.sampler(100, seed=1))
        for step, _ in a.steps(loader, until=2):
            a.report(step, loss=1.0)
            random_state.seed_all(step, rank=0)
            expected = draw()
            random_state.seed_all(step, rank=0)
            with suppress(ZeroDivisionError), a.evaluating():  # also where it fails
                model.eval()
                list(DataLoader(TensorDataset(torch.ones(4)), shuffle=True))
                draw()
                _ = 1 / 0
            assert draw() == expected
            assert [part.training for part in model.modules()] == [True, True, False]


def train(
    a: Attempt, made: list[int], *, until: int, every: int = 3, cut: int = 0, sigterm: int = 0
) -> list[float]:
    """Train with dropout, evaluating every third step; `cut`: the step whose evaluation is killed."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    a.register(model=model, optimizer=optimizer)
    at = [0]

    def evaluate() -> dict[str, float]:
        model.eval()
        torch.rand(7)
        if at[0] and at[0] == cut:
            raise Killed
        made.append(at[0])
        return {"score": float(len(made))}

    a.evaluate_every(every, evaluate)
    x = torch.linspace(-1, 1, 400).reshape(100, 4)
    loader = DataLoader(TensorDataset(x), batch_sampler=a.sampler(100, seed=5))
    losses = []
    for step, (batch,) in a.steps(loader, until=until):
        at[0] = step
        optimizer.zero_grad()
        loss = (model(batch) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == sigterm:
            signal.raise_signal(signal.SIGTERM)
        a.report(step, loss=loss)
    return losses


def test_a_run_that_evaluates_and_draws_resumes_to_the_bit(tmp_path: Path) -> None:
    calm, cut = TrainingRun(tmp_path / "calm", steps=8), TrainingRun(tmp_path / "cut", steps=8)
    made: list[int] = []
    with calm.joined() as a:
        expected = train(a, made, until=8)
    assert made == [3, 6]
    with cut.joined() as a:
        train(a, [], until=6)
    with cut.joined() as a:
        assert train(a, [], until=8) == expected[6:]


def test_an_evaluation_that_was_cut_off_is_made_once_at_the_resume(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=8, every_steps=3)
    made: list[int] = []
    with pytest.raises(Killed), run.joined() as a:
        train(a, made, until=8, cut=6)
    assert made == [3]
    with run.joined(run.open(resume_step=6)) as a:
        train(a, made, until=7)
    assert made == [3, 0]  # at the resume, before step 7
    with run.joined(run.open(resume_step=6)) as a:
        train(a, made, until=8)
    assert made == [3, 0]  # the journal of the second attempt has it


def test_an_evaluation_that_sigterm_left_no_time_for_is_made_at_the_resume(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=8)
    made: list[int] = []
    with StopSignal() as stop, pytest.raises(Drained), run.joined(stop=stop) as a:
        train(a, made, until=8, sigterm=3)
    assert made == []
    with run.joined() as a:
        train(a, made, until=5)
    assert made == [0]  # before step 4


def test_what_is_not_a_number_of_steps_is_refused(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=2)
    with run.joined() as a, pytest.raises(InvalidInput, match="1 or more"):
        a.evaluate_every(0, dict)
