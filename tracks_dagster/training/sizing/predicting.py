"""The memory of steps on fake tensors: of a shape and without data, so of any size on any machine.

torch's `MemTracker` adds up what lives at the same time. It is private to torch, and this is the one
module that knows it: importing it raises ImportError where a version of torch has it no more.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from tracks_dagster.track.records import Json
from tracks_dagster.training.sampling import Batch

KINDS = {
    _MemRefType.PARAM: "weights",
    _MemRefType.BUFFER: "weights",
    _MemRefType.GRAD: "gradients",
    _MemRefType.OPT: "optimizer",
    _MemRefType.ACT: "activations",
    _MemRefType.TEMP: "activations",  # those of the backward pass
    _MemRefType.OTH: "data",
}
_COPIES = frozenset(
    {
        torch.ops.aten._to_copy.default,
        torch.ops.aten.detach.default,
        torch.ops.aten.clone.default,
    }
)


class Predicting:
    """Implements `Gauge`: the steps are of tensors without data. device: of which the peak is read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._tracker = _Tracker()
        self._entered = ExitStack()

    def __enter__(self) -> None:
        for mode in (self._fake, self._tracker, _Scalars()):  # the last is asked first
            self._entered.enter_context(mode)
        self._entered.enter_context(mock.patch.object(torch.utils, "swap_tensors", _take_over))

    def __exit__(self, *error: Any) -> None:
        self._entered.close()

    def real(self) -> AbstractContextManager[None]:
        """Leave the modes for a while."""
        return _disable_current_modes()

    def taken(self, batch: Batch) -> Batch:
        """Return the batch as tensors without data, which are counted."""
        with self.real():
            fake = tree_map_only(torch.Tensor, self._faked, batch)
        tree_map_only(torch.Tensor, self._tracker.track_external, fake)
        return fake

    def _faked(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        return self._fake.from_tensor(tensor, static_shapes=True)

    def found(self) -> Mapping[str, Json]:
        """Return the peak, whole and by kind."""
        by_device = self._tracker.get_tracker_snapshot("peak")
        peak = {each.type: counts for each, counts in by_device.items()}.get(self._device.type, {})
        by_kind = dict.fromkeys(KINDS.values(), 0)
        for kind, name in KINDS.items():
            by_kind[name] += peak.get(kind, 0)
        return {"peak_bytes": sum(by_kind.values()), "by_kind": by_kind}


class _Tracker(MemTracker):  # type: ignore[no-untyped-call]
    """Keeps the whole's peak alone: torch's own keeps each module's too, for one pass only."""

    def __init__(self) -> None:
        super().__init__()
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        if self._mod_tracker.is_bw:  # computed again, for activation checkpointing
            if self._ac_mod is None:
                self._ac_mod, self._in_ac = weakref.ref(module), True
        elif module not in self._known:
            self._known.add(module)
            self._track_module_params_and_buffers(module, install_grad_hooks=True)

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if self._mod_tracker.is_bw and self._ac_mod is not None and self._ac_mod() is module:
            self._ac_mod, self._in_ac = None, False

    def _pre_bw_hook(self, module: nn.Module, args: Any) -> None:
        pass

    def _post_bw_hook(self, module: nn.Module, args: Any) -> None:
        pass


class _Scalars(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers `.item()` of a tensor without data, so that a script may print its loss and check it.

    As if every number were 1: comparisons are made of ones, and a gradient scaler never skips.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_asked = func is torch.ops.aten._local_scalar_dense.default
        if is_asked and isinstance(args[0], FakeTensor):
            return self._value(args[0])
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default:
            self._known[args[1]] = 0.0  # else no optimizer would ever step
        elif func in _COPIES and args[0] in self._known:
            self._known[made] = self._known[args[0]]
        elif isinstance(made, FakeTensor) and made.dtype is torch.bool:
            self._known[made] = self._truth(func, args, kwargs or {})
        return made

    def _value(self, tensor: torch.Tensor) -> Any:
        if tensor in self._known:
            return self._known[tensor]
        if tensor.dtype is torch.bool:
            return False
        return 1.0 if tensor.is_floating_point() else 1

    def _truth(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Return what a comparison, or what is made of some, comes to for ones."""

        def one(tensor: torch.Tensor) -> torch.Tensor:
            return torch.full([1] * tensor.ndim, self._value(tensor), dtype=tensor.dtype)

        with _disable_current_modes():
            try:
                return bool(func(*tree_map_only(torch.Tensor, one, args), **kwargs).all())
            except (RuntimeError, TypeError, IndexError):  # made in another way
                return False


def _take_over(tensor: Any, other: Any) -> None:
    """Let a fake parameter have the content of another, as `module.to(…)` asks.

    torch swaps the two, and refuses where a weak reference is left on one, as fake tensors have.
    """
    tensor.data = other.data
    tensor.fake_device = other.fake_device
