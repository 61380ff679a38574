"""What one optimizer did in a step: its learning rate, and how long the gradient was.

The rate is read when the optimizer steps: at the report a schedule has moved it on already. The norm
is of the gradients as the optimizer gets them, so after the script's own clipping; measured only
where that is cheap, and no more once the script reports a norm of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

# The numbers of a gradient that are read for its norm in each step: 0.2 ms of one core, or of a GPU
# that reads a terabyte in a second.
NUMBERS_MAX = {"cpu": 2**20, "cuda": 2**28}


class OptimizerWatch:
    """One rank's watch of one optimizer. measures: whether to take the norm of its gradients."""

    def __init__(self, *, measures: bool) -> None:
        self._measures = measures
        self._optimizer: Optimizer | None = None
        self._handle: RemovableHandle | None = None
        self._rate: Any = None  # a number, or a tensor of one
        self._norm: torch.Tensor | None = None

    def follow(self, optimizer: Optimizer) -> None:
        """Watch `optimizer` from now on, in place of the one before."""
        self.leave()
        inner = getattr(optimizer, "optimizer", optimizer)  # what accelerate wrapped
        if isinstance(inner, Optimizer):
            self._optimizer = inner
            self._handle = inner.register_step_pre_hook(self._before_step)

    @property
    def has_stepped(self) -> bool:
        """Whether the optimizer has stepped since `take`."""
        return self._rate is not None

    def leave(self) -> None:
        """Take the hook away."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._optimizer = None

    def script_measures(self) -> None:
        """Measure no norm any more: the script reports one."""
        self._measures = False

    def take(self) -> dict[str, float]:
        """Return `lr` and `grad_norm` of the step that ends, each where it is known."""
        rate, self._rate = self._rate, None
        norm, self._norm = self._norm, None
        if rate is None and self._optimizer is not None:  # its step is compiled, or was left out
            rate = self._optimizer.param_groups[0]["lr"]
        found = {"lr": rate, "grad_norm": norm}
        return {name: float(value) for name, value in found.items() if value is not None}

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._rate = optimizer.param_groups[0]["lr"]
        if self._measures:
            self._norm = self._measured(optimizer)

    def _measured(self, optimizer: Optimizer) -> torch.Tensor | None:
        """Return the norm of all gradients; None, from now on, where that is not cheap."""
        gradients = [
            parameter.grad
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if not gradients:
            return None
        device = gradients[0].device.type
        numbers = sum(each.numel() for each in gradients)
        # Of a sharded gradient a rank has a part; a sparse one would be made dense.
        is_plain = all(type(each) is torch.Tensor and not each.is_sparse for each in gradients)
        is_scaled = getattr(optimizer, "grad_scale", None) is not None
        is_recorded = device == "cuda" and torch.cuda.is_current_stream_capturing()
        if not is_plain or is_scaled or is_recorded or numbers > NUMBERS_MAX.get(device, 0):
            self._measures = False
            return None
        return torch.nn.utils.get_total_norm(gradients)
