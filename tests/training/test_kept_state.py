"""What a resume keeps beside weights: the scaler, the best value, newest losses, every rank's RNG."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tracks_dagster.track.bodies import Drill, RetentionRule
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.step_log import RECENT_MAX, Best, TrainingProgress

HIGHEST_SCORE = RetentionRule(metric="score", direction="max")


def score_steps(a: Attempt, scores: dict[int, float], *, until: int) -> Iterator[int]:
    """Train with a GradScaler that grows every second step, reporting these scores."""
    torch.manual_seed(5)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    a.register(model=model, optimizer=optimizer, scaler=scaler)
    sampler = a.sampler(100, seed=5)
    x = torch.linspace(-1, 1, 100).unsqueeze(1)
    for step, batch in a.steps(DataLoader(TensorDataset(x), batch_sampler=sampler), until=until):
        if step == 4 and until > 3:
            assert scaler.get_scale() == 16.0
            assert scaler.state_dict()["_growth_tracker"] == 1
        optimizer.zero_grad()
        loss = (model(batch[0]) - 1).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        a.report(step, loss=loss, score=scores[step])
        yield step


@pytest.fixture
def run(tmp_path: Path, store: FakeObjectStore) -> TrainingRun:
    """A run that keeps the highest score, in a store in memory."""
    return TrainingRun(tmp_path, store=store, steps=6, every_steps=3, retention=HIGHEST_SCORE)


def test_scaler_best_and_newest_losses_survive_a_resume(run: TrainingRun) -> None:
    scores = {1: 0.1, 2: 0.7, 3: 0.5, 4: 0.7, 5: 0.6, 6: 0.9}
    with run.joined() as a:
        assert a.best is None
        list(score_steps(a, scores, until=3))
        assert a.best == Best(value=0.7, step=2)
    losses = {step: line["loss"] for step, line in run.steps(1).items()}
    with run.joined() as a:
        bests = [a.best for _ in score_steps(a, scores, until=6)]
    kept_best = Best(value=0.7, step=2)  # an equal value, as of step 4, is not a better one
    assert bests == [kept_best, kept_best, Best(value=0.9, step=6)]
    losses |= {step: line["loss"] for step, line in run.steps(2).items()}
    kept = run.manifest_of(run.final()).members["progress"].values
    assert kept["best"] == {"value": 0.9, "step": 6}
    assert kept["recent"] == [[step, losses[step]] for step in range(1, 7)]


def test_the_epoch_is_kept_with_the_cursor(run: TrainingRun) -> None:
    with run.joined() as a:
        list(score_steps(a, dict.fromkeys(range(1, 4), 0.0), until=3))
    data = run.manifest_of(run.final()).members["data"].values
    assert (data["cursor"], data["epoch"]) == (36, 0)
    with run.joined() as a:
        list(score_steps(a, dict.fromkeys(range(1, 10), 0.0), until=9))
    data = run.manifest_of(run.final()).members["data"].values
    assert (data["cursor"], data["epoch"]) == (108, 1)
    commits = [(c.body.epoch, c.body.pass_samples) for c in run.state.checkpoints]
    assert commits == [(0, 100), (0, 100), (1, 100)]


metrics = st.lists(st.sampled_from([0.0, 0.5, 1.0, float("nan")]), max_size=12)


@given(before=metrics, after=metrics, direction=st.sampled_from(["min", "max"]))
def test_progress_goes_on_as_if_it_had_not_been_stored(
    before: list[float], after: list[float], direction: str
) -> None:
    whole, first, second = (TrainingProgress("score", direction) for _ in range(3))
    for step, score in enumerate(before + after, start=1):
        whole.take(step, {"loss": float(step), "score": score})
    for step, score in enumerate(before, start=1):
        first.take(step, {"loss": float(step), "score": score})
    second.restore(json.loads(json.dumps(first.to_json(len(before)))))
    for step, score in enumerate(after, start=len(before) + 1):
        second.take(step, {"loss": float(step), "score": score})
    last = len(before + after)
    assert second.to_json(last) == whole.to_json(last)


def test_only_the_newest_losses_are_kept() -> None:
    progress = TrainingProgress("loss", "min")
    for step in range(1, RECENT_MAX + 10):
        progress.take(step, {"loss": 1.0})
    assert [step for step, _ in progress.recent] == [*range(10, RECENT_MAX + 10)]


def test_the_best_of_another_metric_does_not_count() -> None:
    progress, other = TrainingProgress("loss", "min"), TrainingProgress("score", "max")
    progress.take(1, {"loss": 0.5})
    other.restore(progress.to_json(1))
    assert other.best is None


DRAWS = """
    import json, os, random
    from pathlib import Path
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from tracks_dagster.training import attempt
    from tracks_dagster.training.saves import random_state

    with attempt.join() as a:
        random_state.seed_all(3, rank=a.rank)
        model = torch.nn.Linear(1, 1)
        a.register(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        sampler = a.sampler(100, seed=1)
        loader = DataLoader(TensorDataset(torch.ones(100, 1)), batch_sampler=sampler)
        name = f"draws-{os.environ['TRACKS_ATTEMPT_ID']}-{a.rank}.jsonl"
        with (Path(os.environ["TRACKS_WORK"]).parent / name).open("w", buffering=1) as file:
            for step, batch in a.steps(loader, until=12):
                drawn = {
                    "python": [random.random(), random.gauss(0, 1)],
                    "numpy": [np.random.random(), np.random.normal()],
                    "torch": torch.randn(3).tolist(),
                }
                print(json.dumps([step, drawn]), file=file)
                a.report(step, loss=1.0)
"""


def draws(run: TrainingRun, attempt_id: int, rank: int) -> dict[int, dict[str, list[float]]]:
    """Return what a rank drew in every step of an attempt."""
    path = run.folder / f"draws-{attempt_id}-{rank}.jsonl"
    return dict(json.loads(line) for line in path.read_text().splitlines())


def test_every_rank_goes_on_with_its_own_random_numbers_of_every_library(tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(textwrap.dedent(DRAWS))
    drills = (Drill(kind="preempt", step=8, grace_s=0.0),)
    asked = {"ranks": 3, "steps": 12, "every_steps": 5, "script": script}
    calm = TrainingRun(tmp_path / "calm", **asked)
    killed = TrainingRun(tmp_path / "killed", **asked, drills=drills)
    for run in (calm, killed):
        run.train_to_the_end()
    assert [attempt.resumed_step for attempt in killed.state.attempts] == [0, 5]
    for rank in range(3):
        expected = draws(calm, 1, rank)
        assert draws(killed, 2, rank) == {step: expected[step] for step in range(6, 13)}
    for library in ("python", "numpy", "torch"):
        assert len({str(draws(killed, 2, rank)[6][library]) for rank in range(3)}) == 3
