"""An optimizer's state comes back to the bit: by name, in its own types and memory format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.fakes import FakeObjectStore
from tests.training.checkpoints import read, ref_of, write
from tests.training.gangs import TrainingRun
from tracks_dagster.track.errors import CheckpointMismatch, TrainingError
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.saves.loading import load_into
from tracks_dagster.training.saves.optimizer_state import parameter_names
from tracks_dagster.training.saves.trained import Trained


class TwoWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(2))
        self.b = nn.Parameter(torch.ones(2))


class InOwnTypes(torch.optim.Optimizer):
    """Keeps float32 weights and an 8-bit moment beside bfloat16 parameters."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["weights"] = torch.linspace(0, 1, parameter.numel()) / 3
            state["moments"] = [torch.arange(parameter.numel(), dtype=torch.uint8)]


def stepped(optimizer: torch.optim.Optimizer, model: TwoWeights) -> Trained:
    (model.a.sum() + 100 * model.b.sum()).backward()
    optimizer.step()
    return Trained(model=model, optimizer=optimizer)


def restored(store: FakeObjectStore, saved: Trained, fresh: Trained) -> Trained:
    load_into(fresh, read(store, ref_of(write(store, saved)), fresh))
    return fresh


def test_state_finds_its_parameter_in_another_order(store: FakeObjectStore) -> None:
    model, other = TwoWeights(), TwoWeights()
    saved = stepped(torch.optim.Adam([model.a, model.b]), model)
    fresh = Trained(model=other, optimizer=torch.optim.Adam([other.b, other.a]))
    restored(store, saved, fresh)
    for name in ("a", "b"):
        mine, theirs = getattr(model, name), getattr(other, name)
        before = saved.optimizer.state[mine]["exp_avg"]
        assert torch.equal(before, fresh.optimizer.state[theirs]["exp_avg"])


def test_groups_are_matched_by_what_is_in_them(store: FakeObjectStore) -> None:
    model, other = TwoWeights(), TwoWeights()
    groups = [{"params": [model.a], "lr": 0.1}, {"params": [model.b], "lr": 0.2}]
    saved = stepped(torch.optim.SGD(groups, lr=1.0), model)
    turned = [{"params": [other.b], "lr": 1.0}, {"params": [other.a], "lr": 1.0}]
    fresh = Trained(model=other, optimizer=torch.optim.SGD(turned, lr=1.0))
    restored(store, saved, fresh)
    assert [group["lr"] for group in fresh.optimizer.param_groups] == [0.2, 0.1]


def test_other_groups_are_refused_by_name(store: FakeObjectStore) -> None:
    model, other = TwoWeights(), TwoWeights()
    saved = stepped(torch.optim.Adam([model.a, model.b]), model)
    split = [{"params": [other.a]}, {"params": [other.b]}]
    fresh = Trained(model=other, optimizer=torch.optim.Adam(split))
    with pytest.raises(CheckpointMismatch, match="no group of exactly a;"):
        restored(store, saved, fresh)


def test_tensors_keep_types_of_their_own(store: FakeObjectStore) -> None:
    model, other = TwoWeights().bfloat16(), TwoWeights().bfloat16()
    saved = stepped(InOwnTypes(model.parameters()), model)
    fresh = restored(store, saved, Trained(model=other, optimizer=InOwnTypes(other.parameters())))
    before = saved.optimizer.state[model.a]
    after = fresh.optimizer.state[other.a]
    assert torch.equal(before["weights"], after["weights"])
    assert after["weights"].dtype == torch.float32
    assert torch.equal(before["moments"][0], after["moments"][0])
    assert after["moments"][0].dtype == torch.uint8


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_a_step_after_a_restore_is_equal_to_the_bit_in_any_memory_format(
    how: dict[str, bool], store: FakeObjectStore
) -> None:
    def make() -> Trained:
        model = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return Trained(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1, **how))

    def step(trained: Trained, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        trained.optimizer.zero_grad()
        batch = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
        trained.model(batch).pow(2).sum().backward()
        trained.optimizer.step()
        weight: torch.Tensor = trained.model.weight  # type: ignore[assignment]
        return weight

    saved = make()
    step(saved, 0)
    fresh = restored(store, saved, make())
    assert torch.equal(step(saved, 1), step(fresh, 1))


def test_a_parameter_outside_the_model_is_refused(store: FakeObjectStore) -> None:
    model, criterion = TwoWeights(), nn.Linear(2, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    with pytest.raises(
        TrainingError, match=r"Parameter 2 .* shape \[3, 2\], is not the registered"
    ):
        parameter_names(optimizer, dict(model.named_parameters()))


def a_key_of_its_own(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    optimizer.state["all"] = {"k": 1}  # type: ignore[index]


def a_tuple_as_key(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    scheduler.table = {(0, 1): 0.5}


def two_of_one_name(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    scheduler.table = {"x.y": torch.zeros(1), "x": {"y": torch.ones(1)}}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (a_key_of_its_own, "has the key 'all'"),
        (a_tuple_as_key, "is a tuple"),
        (two_of_one_name, "two tensors"),
    ],
)
def test_what_could_not_be_restored_is_not_saved(
    spoil: Callable[[torch.optim.Optimizer, Any], None], words: str, store: FakeObjectStore
) -> None:
    model = TwoWeights()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    spoil(optimizer, scheduler)
    with pytest.raises(TrainingError, match=words):
        write(store, Trained(model=model, optimizer=optimizer, scheduler=scheduler))
    assert store.objects == {}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_group_that_was_added_in_the_loop_is_added_again(tmp_path: Path, momentum: float) -> None:
    run = TrainingRun(tmp_path, steps=6)
    optimizers = []
    for until in (3, 6):
        with run.joined() as a:
            model = TwoWeights()
            optimizer = torch.optim.SGD([model.a], lr=0.1, momentum=momentum)
            optimizers.append(optimizer)
            a.register(model=model, optimizer=optimizer)
            loader = DataLoader(TensorDataset(torch.ones(99)), batch_sampler=a.sampler(99, seed=1))
            for step, _ in a.steps(loader, until=until):
                if step == 2:
                    optimizer.add_param_group({"params": [model.b], "lr": 0.05})
                optimizer.zero_grad()
                loss = (model.a * 3 + model.b).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                a.report(step, loss=loss)
    before, after = ([(g["lr"], len(g["params"])) for g in o.param_groups] for o in optimizers)
    assert before == after == [(0.1, 1), (0.05, 1)]
    assert len(optimizers[1].state) == (2 if momentum else 0)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_group_that_is_built_no_more_is_refused_by_name(
    tmp_path: Path, optimizer: type[torch.optim.Optimizer]
) -> None:
    """Without a momentum nothing else of the checkpoint names its parameters."""
    run = TrainingRun(tmp_path, steps=6)

    def train(a: Attempt, groups: Callable[[TwoWeights], Any], until: int) -> None:
        model = TwoWeights()
        built = optimizer(groups(model), lr=0.1)  # type: ignore[call-arg]
        a.register(model=model, optimizer=built)
        loader = DataLoader(TensorDataset(torch.ones(99)), batch_sampler=a.sampler(99, seed=1))
        for step, _ in a.steps(loader, until=until):
            a.report(step, loss=1.0)

    with run.joined() as a:
        train(a, lambda model: [{"params": [model.a]}, {"params": [model.b]}], 3)
    says = pytest.raises(CheckpointMismatch, match="has a group of exactly b, which this one lacks")
    with says, run.joined() as a:
        train(a, lambda model: [{"params": [model.a]}], 6)


def test_empty_groups_come_back_with_their_numbers(store: FakeObjectStore) -> None:
    model, other = TwoWeights(), TwoWeights()
    rates = [{"params": [], "lr": 0.1}, {"params": [], "lr": 0.2}]
    saved = stepped(torch.optim.Adam([{"params": [model.a, model.b]}, *rates]), model)
    for group in saved.optimizer.param_groups[1:]:
        group["lr"] /= 2
    fresh = Trained(
        model=other,
        optimizer=torch.optim.Adam(
            [{"params": [other.a, other.b]}, {"params": []}, {"params": []}]
        ),
    )
    restored(store, saved, fresh)
    assert [g["lr"] for g in fresh.optimizer.param_groups] == [0.001, 0.05, 0.1]
