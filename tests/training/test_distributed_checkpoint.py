"""Torch's distributed checkpoints, in the place of torchtitan's CheckpointManager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.training.adapters.distributed_checkpoint import follow
from tracks_dagster.training.attempt import Attempt


class Loop:
    """A trainer in torchtitan's shape: it is one of its own states, and learns its step by that."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.step = 0
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.losses: dict[int, float] = {}

    def train(self, a: Attempt, *, until: int) -> None:
        checkpointer = follow(a, {"train_state": self, "weights": Weights(self), "data": None})
        checkpointer.load(step=-1)
        while self.step < until:
            self.step += 1
            loss = self.model(torch.randn(4, 4)).square().mean()
            loss.backward()
            checkpointer.maybe_wait_for_staging()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses[self.step] = loss.item()
            checkpointer.save(self.step, last_step=self.step == 6)
        checkpointer.close()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


class Weights:
    def __init__(self, loop: Loop) -> None:
        self.parts = (loop.model, loop.optimizer)

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(*self.parts)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(*self.parts, model_state_dict=model, optim_state_dict=optimizer)


@pytest.mark.filterwarnings("ignore")  # torch's, of a state dict without a process group
def test_a_loop_like_torchtitans_resumes_to_the_bit(tmp_path: Path, store: FakeObjectStore) -> None:
    run = TrainingRun(tmp_path, store=store, steps=6, every_steps=2)
    cut, resumed = Loop(), Loop()
    with run.joined() as a:
        cut.train(a, until=5)
    with run.joined() as a:
        resumed.train(a, until=6)
        assert a.finish().is_complete
    assert list(resumed.losses) == [5, 6]
    assert resumed.losses[5] == cut.losses[5]
    assert [each.ref.step for each in run.state.checkpoints] == [2, 4, 6]
    for line in (*run.steps(1).values(), *run.steps(2).values()):
        assert 0.0 < line["own_s"] < line["step_s"]  # the model was found in a state


def test_the_attempt_says_what_is_resumed_from(tmp_path: Path, store: FakeObjectStore) -> None:
    run = TrainingRun(tmp_path, store=store, steps=6)
    with run.joined() as a, pytest.raises(InvalidInput, match="branch: tracks run --from"):
        follow(a, {}).load(step=40)
