"""Torch's distributed checkpoints in an attempt, for torchtitan and whoever calls `dcp.save` himself.

    checkpoints = follow(a, {"model": model_state, "optimizer": optimizer_state})
    for step in range(checkpoints.load() + 1, steps + 1):
        ...
        checkpoints.save(step, loss=loss, last_step=step == steps)

`load` and `save` stand where those of torchtitan's CheckpointManager do.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.stateful import Stateful

from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.saves import random_state

OTHER_RANKS = (
    "Random numbers are restored on as many ranks as saved them; on another number every rank keeps "
    "those that the script seeded."
)


def follow(a: Attempt, states: Mapping[str, Stateful]) -> Checkpoints:
    """Return what loads and saves `states`, each of which has state_dict and load_state_dict.

    An optimizer's are those that `torch.distributed.checkpoint.state_dict` makes: its own cannot be
    loaded before its first step. Random numbers are added, of each rank.
    """
    return Checkpoints(a, states)


class Checkpoints:
    """The checkpoints of one attempt: written by DCP, stored by the attempt."""

    def __init__(self, a: Attempt, states: Mapping[str, Stateful]) -> None:
        self._attempt = a
        self._states: dict[str, Any] = dict(states)

    def load(self) -> int:
        """Restore what the attempt resumes from; return its step, 0 for a fresh start."""
        found = self._attempt.folder(inexact=(OTHER_RANKS,))
        if found is None:
            return 0
        is_alone = not dist.is_initialized()
        state_dict_loader.load(self._states, checkpoint_id=found, no_dist=is_alone)
        own = json.loads((found / "place.json").read_text())
        if len(own["random"]) == self._attempt.world_size:
            random_state.restore(own["random"][self._attempt.rank])
        step: int = own["step"]
        return step

    def save(self, step: int, *, loss: float | torch.Tensor, last_step: bool = False) -> bool:
        """End a step with its loss; write and commit a checkpoint where the attempt wants one.

        Returns whether one was committed. Raises as `a.report` and `a.commit_folder` do.
        """
        self._attempt.report(step, loss=loss)  # raises for NaN: nothing is saved of it
        if not self._attempt.ends(step, last=last_step).save:
            return False
        folder = self._attempt.work / "dcp" / f"step-{step}"
        is_alone = not dist.is_initialized()
        state_dict_saver.save(self._states, checkpoint_id=folder, no_dist=is_alone)
        random = self._attempt.gather(random_state.capture())
        if self._attempt.rank == 0:
            own = {"step": step, "random": random}
            (folder / "place.json").write_text(json.dumps(own))
        is_committed = self._attempt.commit_folder(step, folder)
        shutil.rmtree(folder, ignore_errors=True)  # the attempt has it; other ranks remove it, too
        return is_committed
