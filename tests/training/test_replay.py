"""A planned drain may train past its checkpoint: the next attempt's steps can then be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.track.bodies import Program
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.last_word import Drained
from tracks_dagster.training.triggers import StopSignal

STEPS = 6
REPLAYS = Program(entry=("train.py",), replay_steps=1)


def in_our_loop(a: Attempt, stop_in: int, stop: StopSignal) -> None:
    def on_step(step: int, model: object) -> None:
        stop.received |= step == stop_in

    train_linear(a, until=STEPS, on_step=on_step)


def in_a_loop_of_its_own(a: Attempt, stop_in: int, stop: StopSignal) -> None:
    folder = a.folder()
    done = 0 if folder is None else int((folder / "step").read_text())
    for step in range(done + 1, STEPS + 1):
        stop.received |= step == stop_in
        a.report(step, loss=1 / step)
        if a.ends(step, last=step == STEPS).save:
            own = a.work / "own"
            own.mkdir(exist_ok=True)
            (own / "step").write_text(str(step))
            a.commit_folder(step, own)


@pytest.mark.parametrize("train", [in_our_loop, in_a_loop_of_its_own])
def test_a_drain_runs_a_step_that_the_next_attempt_repeats(
    tmp_path: Path, store: FakeObjectStore, train: Callable[[Attempt, int, StopSignal], None]
) -> None:
    run = TrainingRun(tmp_path, store=store, steps=STEPS, program=REPLAYS)
    stop = StopSignal()
    with pytest.raises(Drained), run.joined(stop=stop) as a:
        train(a, 2, stop)
    assert [each.ref.step for each in run.state.checkpoints] == [2]
    assert list(run.steps(1)) == [1, 2, 3]

    last = StopSignal()  # what is left to train is what would be repeated: it is trained to its end
    with run.joined(stop=last) as a:
        train(a, STEPS - 1, last)
        assert a.finish().is_complete
    assert list(run.steps(2)) == [3, 4, 5, 6]
    assert run.steps(2)[3]["loss"] == run.steps(1)[3]["loss"]
    assert run.state.checkpoints[-1].ref.step == STEPS
