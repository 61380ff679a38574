"""What `train.py` saves with: torchtitan's class of that name, made short."""

from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

FOLDER = Path("checkpoints")


class CheckpointManager:
    def __init__(self, states: dict[str, Any]) -> None:
        self.states = states

    def load(self) -> int:
        found = max((int(each.name) for each in FOLDER.glob("[0-9]*")), default=0)
        if found:
            dcp.load(self.states, checkpoint_id=FOLDER / str(found))
        return found

    def save(self, step: int, last_step: bool) -> None:
        if step % 5 == 0 or last_step:
            dcp.save(self.states, checkpoint_id=FOLDER / str(step))
