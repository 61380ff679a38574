"""States of which every rank has its own, and states that are one for all: real ranks, cut in two."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.training.gangs import TrainingRun
from tracks_dagster.track.bodies import Drill

SCRIPT = """
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from tracks_dagster.training import attempt

    class Walk:  # a loader with a state: every rank walks by its own stride
        def __init__(self, stride):
            self.at, self.stride = torch.zeros(1), stride
        def __iter__(self):
            while True:
                self.at = self.at + self.stride
                yield self.at
        def state_dict(self):
            return {"at": self.at, "stride": self.stride}
        def load_state_dict(self, state):
            assert state["stride"] == self.stride, "the state of another rank"
            self.at = state["at"]

    class Level:  # one for all ranks, as it should be
        value = 0
        def state_dict(self):
            return {"value": self.value}
        def load_state_dict(self, state):
            self.value = state["value"]

    with attempt.join() as a:
        torch.manual_seed(5)
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        level = Level()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        a.register(model=model, optimizer=optimizer, scheduler=scheduler, level=level)
        for step, x in a.steps(Walk(1 + a.rank), until=a.config["steps"]):
            optimizer.zero_grad()
            loss = (model(x) - level.value).square().mean()
            loss.backward()
            optimizer.step()
            level.value = step + (a.rank if a.config["seed"] == 99 else 0)
            scheduler.step(step * a.rank if a.config["seed"] == 98 else 1.0)
            if a.config["seed"] == 97:
                optimizer.param_groups[0]["weight_decay"] = 0.1 * a.rank
            a.report(step, loss=loss)
"""


def run_of(folder: Path, *, drills: tuple[Drill, ...] = (), **config: int) -> TrainingRun:
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    asked = {"ranks": 2, "steps": 8, "every_steps": 3, "script": script}
    return TrainingRun(folder, **asked, drills=drills, **config)


def test_every_rank_continues_from_its_own_state(tmp_path: Path) -> None:
    calm = run_of(tmp_path / "calm")
    killed = run_of(tmp_path / "killed", drills=(Drill(kind="preempt", step=5, grace_s=0.0),))
    calm.train_to_the_end()
    killed.train_to_the_end()
    assert [attempt.resumed_step for attempt in killed.state.attempts] == [0, 3]
    losses = {step: line["loss"] for step, line in calm.steps(1).items()}
    again = {step: line["loss"] for step, line in killed.steps(2).items()}
    assert again == {step: losses[step] for step in range(4, 9)}
    member = killed.manifest_of(killed.final()).members["loader"]
    assert (member.ranks, [entry.name for entry in member.tensors]) == (
        2,
        ["rank-0.at", "rank-1.at"],
    )
    killed.ranks = 1
    assert killed.train().exit_codes == [1]
    (word,) = killed.last_words(3)
    assert word.reason == "config_error"
    assert "The loader of step 8 was saved by 2 ranks and this attempt has 1:" in word.message


@pytest.mark.parametrize(
    ("seed", "name"), [(99, "level"), (98, "scheduler"), (97, "optimizer")], ids=str
)
def test_a_state_of_all_ranks_that_differs_ends_the_attempt_by_name(
    tmp_path: Path, seed: int, name: str
) -> None:
    run = run_of(tmp_path / "broken", seed=seed)
    assert set(run.train().exit_codes) == {1}
    assert run.state.checkpoints == ()
    words = {word.message for word in run.last_words(1)}
    assert words
    assert all(f"The {name} of rank 1 is not that of rank 0" in word for word in words), words
