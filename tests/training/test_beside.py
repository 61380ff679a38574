"""Several samplers, and samplers of a script's own: kept with their position, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from tests.training.gangs import TrainingRun
from tracks_dagster.track.errors import CheckpointMismatch, TrainingError
from tracks_dagster.training.attempt import Attempt

DATA = TensorDataset(torch.arange(40.0))
Next = Callable[[int], torch.Tensor]


def loaders(a: Attempt, *, workers: int = 0, count: int = 2) -> list[DataLoader[Any]]:
    orders = [a.sampler(40, seed=seed, global_batch=4) for seed in range(count)]
    return [DataLoader(DATA, batch_sampler=each, num_workers=workers) for each in orders]


def train(
    a: Attempt, loop: object, beside: Callable[[], Next], *, until: int = 8
) -> dict[int, tuple[list[float], list[float]]]:
    model = nn.Linear(1, 1)
    a.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    seen: dict[int, tuple[list[float], list[float]]] = {}
    ask: Next | None = None
    for step, (batch,) in a.steps(loop, until=until):  # type: ignore[arg-type]
        ask = ask or beside()
        seen[step] = batch.tolist(), ask(step).tolist()
        a.report(step, loss=1.0)
    return seen


def kept(loader: DataLoader[Any]) -> Next:
    batches = iter(loader)
    return lambda step: next(batches)[0]


def again(loader: DataLoader[Any]) -> Next:
    return lambda step: next(iter(loader))[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("main", [0, 1])
def test_a_second_order_goes_on_where_it_was(tmp_path: Path, workers: int, main: int) -> None:
    def run(a: Attempt, until: int) -> dict[int, tuple[list[float], list[float]]]:
        both = loaders(a, workers=workers)
        return train(a, both[main], lambda: kept(both[1 - main]), until=until)

    calm, cut = TrainingRun(tmp_path / "calm", steps=8), TrainingRun(tmp_path / "cut", steps=8)
    with calm.joined() as a:
        expected = run(a, 8)
    with cut.joined() as a:
        first = run(a, 3)
    with cut.joined() as a:
        assert first | run(a, 8) == expected
    assert all(one != other for one, other in expected.values())


def test_an_iterator_that_is_made_in_each_step_gives_that_steps_batch(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=8)
    with run.joined() as a:
        both = loaders(a)
        by_one = train(a, both[0], lambda: kept(both[1]))
    run = TrainingRun(tmp_path / "again", steps=8)
    with run.joined() as a:
        both = loaders(a)
        assert train(a, both[0], lambda: again(both[1])) == by_one


@pytest.mark.parametrize("workers", [0, 2])
def test_two_batches_in_a_step_are_named(tmp_path: Path, workers: int) -> None:
    def twice(loader: DataLoader[Any]) -> Next:
        ask = kept(loader)
        return lambda step: (ask(step), ask(step))[1]

    run = TrainingRun(tmp_path, steps=8)
    with run.joined() as a:
        both = loaders(a, workers=workers)
        with pytest.raises(TrainingError, match=r"was asked twice in step [23];"):
            train(a, both[0], lambda: twice(both[1]))


def test_a_batch_in_every_other_step_is_named(tmp_path: Path) -> None:
    def seldom(loader: DataLoader[Any]) -> Next:
        ask = kept(loader)
        return lambda step: ask(step) if step % 2 else torch.zeros(1)

    run = TrainingRun(tmp_path, steps=8)
    with run.joined() as a:
        both = loaders(a)
        with pytest.raises(TrainingError, match="in step 1 and not again before step 3"):
            train(a, both[0], lambda: seldom(both[1]))


def test_another_number_of_orders_is_refused(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=8)
    with run.joined() as a:
        both = loaders(a)
        train(a, both[0], lambda: kept(both[1]), until=3)
    says = pytest.raises(CheckpointMismatch, match=r"saved with 2 orders .* this attempt has 1;")
    with says, run.joined() as a:
        (one,) = loaders(a, count=1)
        train(a, one, lambda: lambda step: torch.zeros(1))


def test_a_loader_that_fetches_before_the_loop_is_named(tmp_path: Path) -> None:
    run = TrainingRun(tmp_path, steps=8)
    with run.joined() as a:
        (loader,) = loaders(a, count=1)
        with pytest.raises(TrainingError, match=r"before a\.steps\(…\) began"):
            next(iter(loader))


class Weighted(Sampler[int]):
    """Draws by a generator of its own, which is its state."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(torch.randint(40, (1,), generator=self.generator))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


@pytest.mark.parametrize("gives", ["the loader", "its iterator"])
def test_a_registered_sampler_of_a_loader_with_workers_is_refused(
    tmp_path: Path, gives: str
) -> None:
    run = TrainingRun(tmp_path, steps=8)
    says = pytest.raises(TrainingError, match="order is asked ahead by 2 loader workers")
    with says, run.joined() as a:
        model, order = nn.Linear(1, 1), Weighted()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        a.register(model=model, optimizer=optimizer, per_rank={"order": order})
        loader: Any = DataLoader(DATA, batch_size=4, sampler=order, num_workers=2)
        next(a.steps(loader if gives == "the loader" else iter(loader), until=3))


def test_a_registered_sampler_goes_on_where_it_was(tmp_path: Path) -> None:
    def seen(a: Attempt, until: int) -> list[list[float]]:
        model, order = nn.Linear(1, 1), Weighted()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        a.register(model=model, optimizer=optimizer, per_rank={"order": order})
        found = []
        for step, (batch,) in a.steps(DataLoader(DATA, batch_size=4, sampler=order), until=until):
            found.append(batch.tolist())
            a.report(step, loss=1.0)
        return found

    calm, cut = TrainingRun(tmp_path / "calm", steps=6), TrainingRun(tmp_path / "cut", steps=6)
    with calm.joined() as a:
        expected = seen(a, 6)
    with cut.joined() as a:
        first = seen(a, 3)
    with cut.joined() as a:
        assert first + seen(a, 6) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_the_iterator_of_a_second_loader_draws_nothing_that_training_would(
    tmp_path: Path, workers: int
) -> None:
    """torch seeds a loader's workers from its generator, whenever an iterator is made."""

    def seen(a: Attempt, until: int) -> list[float]:
        both = loaders(a, workers=workers)
        drawn: list[float] = []
        train(a, both[0], lambda: drawing(both[1], drawn), until=until)
        return drawn

    def drawing(loader: DataLoader[Any], drawn: list[float]) -> Next:
        ask = kept(loader)
        return lambda step: (ask(step), drawn.append(float(torch.rand(()))))[0]

    calm, cut = TrainingRun(tmp_path / "calm", steps=6), TrainingRun(tmp_path / "cut", steps=6)
    torch.manual_seed(3)
    with calm.joined() as a:
        expected = seen(a, 6)
    torch.manual_seed(3)
    with cut.joined() as a:
        first = seen(a, 3)
    with cut.joined() as a:
        assert first + seen(a, 6) == expected
