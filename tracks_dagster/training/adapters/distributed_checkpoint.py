"""Torch's distributed checkpoints in an attempt, for torchtitan and scripts that call `dcp.save`.

    checkpoints = follow(a, {"model": model_state, "optimizer": optimizer_state})
    for step in range(checkpoints.load() + 1, steps + 1):
        ...
        checkpoints.save(step, loss=loss, last_step=step == steps)

It has what torchtitan's loop asks of its CheckpointManager, and takes its place before training:

    trainer.checkpointer = follow(a, trainer.checkpointer.states)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.stateful import Stateful

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.saves import random_state

OTHER_RANKS = (
    "Random numbers are restored on as many ranks as saved them; on another number every rank keeps "
    "those that the script seeded."
)


def follow(a: Attempt, states: Mapping[str, Stateful | None]) -> Checkpoints:
    """Return what loads and saves `states`, each of which has state_dict and load_state_dict.

    An optimizer's are those that `torch.distributed.checkpoint.state_dict` makes: its own cannot be
    loaded before its first step. A state that is None is left out. Random numbers are added, of each
    rank. A model is timed where a state is one or has it as `model`; of another say `a.arm(model)`.
    """
    return Checkpoints(a, states)


class Checkpoints:
    """The checkpoints of one attempt: written by DCP, stored by the attempt."""

    def __init__(self, a: Attempt, states: Mapping[str, Stateful | None]) -> None:
        self._attempt = a
        self._states: dict[str, Any] = {
            name: state for name, state in states.items() if state is not None
        }
        for state in self._states.values():
            # torchtitan keeps the parts of its model in a list.
            parts = state if isinstance(state, nn.Module) else getattr(state, "model", None)
            for part in parts if isinstance(parts, list) else [parts]:
                if isinstance(part, nn.Module):
                    a.arm(part)

    def load(self, step: int = -1) -> int:
        """Restore what the attempt resumes from; return its step, 0 for a fresh start.

        Raises InvalidInput for a step of the script's own choice.
        """
        if step != -1:
            raise InvalidInput(
                f"Step {step} is to be loaded, and the attempt says what is resumed from: leave it "
                "out. To train from another checkpoint, branch: tracks run --from RUN@STEP."
            )
        found = self._attempt.folder(inexact=(OTHER_RANKS,))
        if found is None:
            return 0
        is_alone = not dist.is_initialized()
        state_dict_loader.load(self._states, checkpoint_id=found, no_dist=is_alone)
        own = parse_json((found / "place.json").read_text(), bytes_max=MANIFEST_BYTES_MAX)
        if len(own["random"]) == self._attempt.world_size:
            random_state.restore(own["random"][self._attempt.rank])
        return int(own["step"])

    def save(
        self, step: int, last_step: bool = False, *, loss: float | torch.Tensor | None = None
    ) -> bool:
        """End a step; write and commit a checkpoint where the attempt wants one.

        loss: None where it is not known, or was reported. Returns whether one was committed. Raises as
        `a.report` and `a.commit_folder` do.
        """
        if loss is not None:
            self._attempt.report(step, loss=loss)  # raises for NaN: nothing is saved of it
        if not self._attempt.ends(step, last=last_step or None).save:
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

    def maybe_wait_for_staging(self) -> None:
        """Return: a checkpoint is durable when `save` returns."""

    def close(self) -> None:
        """Return: nothing is left open."""
