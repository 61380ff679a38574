"""What a drill must not do, whatever gang plays it."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.core.bodies import Drill
from tracks_dagster.core.errors import Fenced
from tracks_dagster.core.records import Kind
from tracks_dagster.training import drills


def test_a_zombie_does_not_use_up_the_drill_of_the_attempt_after_it(
    tmp_path: Path, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drills, "SIGNAL_S_MAX", 0.1)
    preempt = Drill(kind="preempt", step=2)
    run = TrainingRun(tmp_path, store=store, steps=4, every_steps=None, drills=(preempt,))

    def on_step(step: int, model: nn.Module) -> None:
        if step == 2:
            run.open()  # ends the attempt that is in this step

    with run.joined() as a, pytest.raises(Fenced):
        train_linear(a, until=4, on_step=on_step)
    assert run.records(Kind.NOTE) == []
