"""The learning rate of a step, and its gradient's norm where that is cheap."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tracks_dagster.training.signals import optimizer_watch
from tracks_dagster.training.signals.optimizer_watch import OptimizerWatch


@pytest.fixture
def weight() -> nn.Parameter:
    """Its gradient is [3, 4]."""
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    return weight


def test_the_rate_is_the_one_that_the_step_was_made_with(weight: nn.Parameter) -> None:
    optimizer = torch.optim.SGD([weight], lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.1)
    watch = OptimizerWatch(measures=True)
    watch.follow(optimizer)
    assert watch.take() == {"lr": 0.5}  # no step was made
    optimizer.step()
    schedule.step()
    assert watch.take() == {"lr": 0.5, "grad_norm": 5.0}
    assert watch.take() == {"lr": pytest.approx(0.05)}


def test_a_rate_in_a_tensor_and_an_optimizer_in_a_wrapper_are_read_too(
    weight: nn.Parameter,
) -> None:
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.5))
    watch = OptimizerWatch(measures=False)
    watch.follow(SimpleNamespace(optimizer=optimizer))  # type: ignore[arg-type]  # as accelerate's
    optimizer.step()
    assert watch.take() == {"lr": 0.5}


def test_no_norm_is_measured_that_is_dear_or_that_the_script_reports(
    weight: nn.Parameter, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = torch.optim.SGD([weight], lr=0.5)
    for is_dear in (True, False):
        watch = OptimizerWatch(measures=True)
        watch.follow(optimizer)
        with monkeypatch.context() as patch:
            patch.setitem(optimizer_watch.NUMBERS_MAX, "cpu", 1 if is_dear else 2)
            if not is_dear:
                watch.script_measures()
            optimizer.step()
        assert watch.take() == {"lr": 0.5}
        watch.leave()


def test_of_a_sparse_gradient_no_norm_is_measured() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    watch = OptimizerWatch(measures=True)
    watch.follow(optimizer)
    optimizer.step()
    assert watch.take() == {"lr": 0.5}


def test_the_hook_vanishes_and_a_copy_has_none(weight: nn.Parameter) -> None:
    optimizer = torch.optim.SGD([weight], lr=0.5)
    watch = OptimizerWatch(measures=True)
    watch.follow(optimizer)
    copy.deepcopy(optimizer).step()
    watch.leave()
    optimizer.step()
    assert watch.take() == {}
