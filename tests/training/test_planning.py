"""Which rank saves what: shared out, but for buffers, which may differ between ranks."""

from __future__ import annotations

import threading

import torch
from torch import nn

from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.saves.state_dict import collect
from tracks_dagster.training.saves.storage_writer import SavePlanning
from tracks_dagster.training.saves.trained import Trained


class TwoThreads(Ranks):
    """Two ranks of one process, each in a thread."""

    def __init__(self, rank: int, shared: tuple[list[object], threading.Barrier]) -> None:
        self.rank, self.world_size, self.shared = rank, 2, shared

    def sum(self, values: list[float]) -> list[float]:
        return [2 * value for value in values]

    def gather_objects(self, value: object) -> list[object]:  # type: ignore[override]
        plans, barrier = self.shared
        plans[self.rank] = value
        barrier.wait(30)
        return list(plans)


def test_the_buffers_of_one_checkpoint_are_all_of_rank_0() -> None:
    blocks = [nn.Sequential(nn.Conv2d(n, 2 * n, 3), nn.BatchNorm2d(2 * n)) for n in (2, 4, 8)]
    model = nn.Sequential(*blocks)
    tensors = collect(Trained(model=model, optimizer=torch.optim.SGD(model.parameters()))).tensors
    parameters = frozenset(f"model.{name}" for name, _ in model.named_parameters())
    shared: tuple[list[object], threading.Barrier] = ([None, None], threading.Barrier(2))
    found: list[list[str]] = [[], []]

    def plan(rank: int) -> None:
        planned = SavePlanning(TwoThreads(rank, shared), parameters).plan(dict(tensors))
        found[rank] = [item.index.fqn for item in planned.plan.items]

    threads = [threading.Thread(target=plan, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found[0] + found[1]) == sorted(tensors)
    assert set(found[1]) <= parameters
    assert found[1], "parameters are shared out"
