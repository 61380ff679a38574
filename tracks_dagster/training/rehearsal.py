"""One discarded forward and backward, before anything is restored.

DDP sorts its gradient buckets anew after the first backward, and from 3 ranks on another sorting sums
in another order. After a rehearsal every attempt, fresh or resumed, sums in the same one (measured
with gloo on 3 and 4 ranks).
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from tracks_dagster.training.saves import random_state
from tracks_dagster.training.saves.state_dict import Trained


def rehearse(trained: Trained, one_backward: Callable[[], object]) -> None:
    """Call `one_backward` and undo what it did to gradients, buffers, RNG and optimizer state.

    It must not change parameters, as stepping the optimizer would.
    """
    rng = random_state.capture()
    buffers = {name: buffer.clone() for name, buffer in trained.model.named_buffers()}
    optimizer = copy.deepcopy(trained.optimizer.state_dict())
    one_backward()
    trained.model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in trained.model.named_buffers():
            buffer.copy_(buffers[name])
    trained.optimizer.load_state_dict(optimizer)
    random_state.restore(rng)
