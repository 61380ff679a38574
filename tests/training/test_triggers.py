"""When a checkpoint is made: every so many steps, every so many seconds, on demand, at the end."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.training import triggers

SCRIPT = """
    import os, signal
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from tracks_dagster.training import attempt

    with attempt.join() as a:
        model = torch.nn.Linear(1, 1)
        a.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        sampler = a.sampler(100, seed=1)
        loader = DataLoader(TensorDataset(torch.ones(100, 1)), batch_sampler=sampler)
        for step, batch in a.steps(loader, until=6):
            if step == 3 and a.rank == a.world_size - 1:
                {wish}
            a.report(step, loss=1.0)
"""
WISHES = ["a.save_soon()", "os.kill(os.getpid(), signal.SIGUSR1)"]


def commits(run: TrainingRun) -> list[tuple[int, str]]:
    return [(c.body.ref.step, c.body.trigger) for c in run.state.checkpoints]


@pytest.mark.parametrize("wish", WISHES, ids=["save_soon", "SIGUSR1"])
def test_one_ranks_wish_saves_the_running_step_of_all(tmp_path: Path, wish: str) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(textwrap.dedent(SCRIPT).replace("{wish}", wish))
    run = TrainingRun(tmp_path, ranks=2, steps=6, every_steps=5, script=script)
    assert run.train().exit_codes == [0, 0]
    assert commits(run) == [(3, "demand"), (5, "interval"), (6, "final")]


def test_a_wish_is_granted_once_and_a_step_that_is_saved_anyway_grants_it(
    tmp_path: Path, store: FakeObjectStore
) -> None:
    run = TrainingRun(tmp_path, store=store, steps=6, every_steps=4)
    with run.joined() as a:

        def wish(step: int, model: nn.Module) -> None:
            if step in (2, 4):
                a.save_soon()

        train_linear(a, until=6, on_step=wish)
    assert commits(run) == [(2, "demand"), (4, "interval"), (6, "final")]


def test_steps_or_seconds_whichever_comes_first(
    tmp_path: Path, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TrainingRun(tmp_path, store=store, steps=9, every_steps=4, every_s=10.0)
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(triggers, "time", clock)

    def take_time(step: int, model: nn.Module) -> None:
        now[0] += 11.0 if step == 5 else 3.0

    with run.joined() as a:
        train_linear(a, until=9, on_step=take_time)
    # Seconds count from the last save, or from the beginning: 12 at step 4, then 11 at step 5, then 9.
    assert commits(run) == [(4, "interval"), (5, "time"), (8, "interval"), (9, "final")]


def test_seconds_alone_save_at_the_end_of_a_slow_step(
    tmp_path: Path, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TrainingRun(tmp_path, store=store, steps=5, every_steps=None, every_s=10.0)
    now = [100.0]
    monkeypatch.setattr(triggers, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def take_time(step: int, model: nn.Module) -> None:
        now[0] += 25.0 if step == 2 else 5.0

    with run.joined() as a:
        train_linear(a, until=5, on_step=take_time)
    assert commits(run) == [(2, "time"), (4, "time"), (5, "final")]
