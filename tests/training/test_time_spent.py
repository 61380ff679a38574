"""What a launch tells of its time: in every commit, in every step's line and at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.attempts.effects.evidence import read_journal_end
from tracks_dagster.stores.journals import journal_prefix, read_steps
from tracks_dagster.track.bodies import TimeSpent
from tracks_dagster.track.names import AttemptRef


@pytest.fixture
def run(tmp_path: Path, store: FakeObjectStore) -> TrainingRun:
    """A run that saves every second step, in a store in memory."""
    return TrainingRun(tmp_path, store=store, steps=6, every_steps=2)


def test_commits_and_the_journal_tell_the_same_time(
    run: TrainingRun, store: FakeObjectStore
) -> None:
    with run.joined() as a:
        train_linear(a, until=6)
        a.finish()
    attempt = run.state.attempts[0]
    assert attempt.placed is not None
    launch = (AttemptRef(run.state.run_id, 1), attempt.placed.launch_id)
    steps = {line.step: line for line in read_steps(store, *launch)}
    assert run.state.checkpoints
    for commit in run.state.checkpoints:
        assert commit.body.spent == steps[commit.ref.step].spent
    total = steps[6].spent
    assert total is not None
    assert total.steps_s == pytest.approx(sum(s.step_s for s in steps.values()), abs=1e-5)
    assert total.data_s == pytest.approx(sum(s.data_s for s in steps.values()), abs=1e-5)
    end = read_journal_end(store, journal_prefix(*launch, 0))
    assert (end.last_step, end.last_stepped_at) == (6, steps[6].at)
    assert end.spent is not None
    assert end.spent.steps_s == total.steps_s
    assert end.spent.saving_s > total.saving_s > 0.0  # the last save came after the last step
    memory = end.memory
    assert memory is not None
    assert (memory.host_bytes or 0) >= (memory.host_base_bytes or 0) > 0
    assert memory.device_bytes is None  # no GPU here


def test_an_evaluation_in_the_loop_is_distinguished_from_the_steps(
    run: TrainingRun, store: FakeObjectStore
) -> None:
    with run.joined() as a:

        def on_step(step: int, model: object) -> None:
            with a.evaluating():
                pass

        train_linear(a, until=3, on_step=on_step)
    spent = run.state.checkpoints[-1].body.spent
    assert spent is not None
    assert spent.eval_s > 0.0


def test_a_line_of_an_older_journal_tells_nothing(store: FakeObjectStore) -> None:
    lines = b'{"kind":"step","t":"2026-01-31T02:00:00.000000Z","step":4,"cursor_to":9}\n'
    store.put("journal/000000000000.jsonl", lines)
    end = read_journal_end(store, "journal/")
    assert (end.last_step, end.spent) == (4, None)


def test_what_cannot_be_read_as_time_is_left_out(store: FakeObjectStore) -> None:
    lines = b'{"kind":"step","t":"x","step":4,"spent":{"steps_s":"many"}}\n'
    lines += b'{"kind":"spent","t":"x","spent":{"steps_s":2.0,"saving_s":1.0}}\n'
    lines += b'{"kind":"spent","t":"x","spent":{"of_a_newer_version":1.0}}\n'
    store.put("journal/000000000000.jsonl", lines)
    assert read_journal_end(store, "journal/").spent == TimeSpent(steps_s=2.0, saving_s=1.0)
