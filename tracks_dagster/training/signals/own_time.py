"""How long a rank's own forward passes take, by hooks on its models: `own_s` of a step's line.

A step's time holds the waits for other ranks: it is the same on all of a gang, no matter who is slow. A
forward pass exchanges nothing, so its time is this rank's alone. Counted are calls of the outermost
model in training mode, by the thread that trains, from a step's data to its report. Not counted:
evaluations, what activation checkpointing computes again in backward, and the waits for weights and
buffers of other ranks inside a pass (FSDP2, DDP). On a GPU two events in its stream mark each pass;
they are read at the report, when the loss is known: nothing waits for the device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident
from typing import Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

STRETCHES_MAX = 4096  # of a step that are kept on a GPU, two events each; of more nothing is known
DRAG_S_MAX = 60.0  # for which a drill stretches one pass


class OwnTime:
    """The time of one rank's forward passes.

    factor: a drill's; each pass takes that many times as long. dragged_s: what the passes of this step
    took by the host's clock, under a drill.
    """

    def __init__(self, device: torch.device) -> None:
        self.factor = 1.0
        self.dragged_s = 0.0
        self._is_cuda = device.type == "cuda"
        self._watch: Stopwatch = DeviceStopwatch() if self._is_cuda else HostStopwatch()
        self._handles: list[RemovableHandle] = []
        self._models: dict[int, nn.Module] = {}
        self._unseen: set[int] = set()  # of these, which have not run yet
        self._thread: int | None = None  # the one that trains a step now
        self._inside: nn.Module | None = None  # the outermost model that runs
        self._depth = 0  # how often it has called itself
        self._passes = 0  # of this step
        self._entered_s = 0.0
        self._is_blind = False  # a pass waits for other ranks where no hook sees it

    def arm(self, model: nn.Module) -> None:
        """Count the passes of `model` from now on. Under DDP those of the module inside."""
        if isinstance(model, DistributedDataParallel):
            model = model.module
        if id(model) in self._models or isinstance(model, torch.jit.ScriptModule):
            return  # a script module takes no hooks
        self._models[id(model)] = model
        self._unseen.add(id(model))
        leave = model.register_forward_hook(_Hook(self._leave), always_call=True)
        self._handles += [model.register_forward_pre_hook(_Hook(self._enter)), leave]

    @property
    def has_run(self) -> bool:
        """Whether a model ran in this step."""
        return self._passes > 0

    def disarm(self) -> None:
        """Take every hook away."""
        self._thread = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._models.clear()

    def begin(self) -> None:
        """Begin a step: passes of the calling thread count."""
        self._thread = get_ident()
        self._inside = None  # what ended it may have passed by every hook
        self._passes = 0
        self.dragged_s = 0.0
        self._watch.take()

    def end(self) -> float | None:
        """End the step; return the seconds of its passes, None where there was none."""
        self._thread = None
        seconds = self._watch.take() if self._passes and not self._is_blind else None
        return None if seconds is None else round(seconds, 6)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count no pass meanwhile."""
        thread, self._thread = self._thread, None
        try:
            yield
        finally:
            self._thread = thread

    def _enter(self, model: nn.Module) -> None:
        if self._thread != get_ident():
            return
        if self._inside is not None:
            self._depth += int(self._inside is model)
            return
        if not model.training or torch._C._current_graph_task_id() != -1:  # -1: not in backward
            return
        if id(model) in self._unseen:  # by now it is wrapped and sharded as it will be
            self._unseen.discard(id(model))
            self._hook_exchanges(model)
        self._inside, self._depth = model, 0
        self._passes += 1
        self._entered_s = time.perf_counter()
        self._watch.start()

    def _leave(self, model: nn.Module) -> None:
        if self._inside is not model or self._thread != get_ident():
            return
        if self._depth:
            self._depth -= 1
            return
        if self.factor > 1.0:
            self._drag()
        self._watch.stop()
        self._inside = None

    def _hook_exchanges(self, model: nn.Module) -> None:
        """Leave out what modules inside `model` wait for other ranks before their own passes."""
        # Who shards has imported it; to import it here would cost every script half a second.
        fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
        for name, module in model.named_modules():
            if isinstance(module, DistributedDataParallel):
                waits, runs = module, module.module
            elif isinstance(module, fsdp) and module is not model:
                waits = runs = module
            else:
                continue
            # What torch.compile wraps is called _orig_mod. In compiled code no hook is called.
            is_compiled = any(each._compiled_call_impl is not None for each in (waits, runs))
            if is_compiled or "_orig_mod" in name.split("."):
                self._is_blind = True
                return
            pause = waits.register_forward_pre_hook(_Hook(self._pause), prepend=True)
            self._handles += [pause, runs.register_forward_pre_hook(_Hook(self._go_on))]

    def _pause(self, module: nn.Module) -> None:
        if self._inside is not None and self._thread == get_ident():
            self._watch.stop()

    def _go_on(self, module: nn.Module) -> None:
        if self._inside is not None and self._thread == get_ident():
            self._watch.start()

    def _drag(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()
        took_s = time.perf_counter() - self._entered_s
        time.sleep(min((self.factor - 1.0) * took_s, DRAG_S_MAX))
        self.dragged_s += time.perf_counter() - self._entered_s


class _Hook:
    """A hook that stays with its module: in a copy, deep or pickled, one is left that does nothing.

    What torch.compile traces has none either: a call out of it would break the graph.
    """

    def __init__(self, action: Callable[[nn.Module], None]) -> None:
        self._action = action

    def __call__(self, module: nn.Module, *passed: object) -> None:
        if not torch.compiler.is_compiling():
            self._action(module)

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (nullcontext, "__exit__")  # takes anything, and needs nothing of ours


class Stopwatch(Protocol):
    """Adds up stretches of time."""

    def start(self) -> None:
        """Begin a stretch; one that has begun goes on."""

    def stop(self) -> None:
        """End the stretch, where one has begun."""

    def take(self) -> float | None:
        """Return the seconds of all stretches and start over; None: not known."""


class HostStopwatch:
    """By the clock of this machine."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._sum_s = 0.0

    def start(self) -> None:
        """Begin a stretch."""
        if self._began_s is None:
            self._began_s = time.perf_counter()

    def stop(self) -> None:
        """End the stretch."""
        if self._began_s is not None:
            self._sum_s += time.perf_counter() - self._began_s
            self._began_s = None

    def take(self) -> float | None:
        """Return the sum."""
        sum_s, self._sum_s, self._began_s = self._sum_s, 0.0, None
        return sum_s


class DeviceStopwatch:
    """By events in the stream of a GPU, which are used again in every step."""

    def __init__(self) -> None:
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._count = 0  # stretches that have ended
        self._runs = False
        self._is_lost = False

    def start(self) -> None:
        """Begin a stretch. In a CUDA graph there is none: it is recorded once and played often."""
        if self._runs:
            return
        if self._count == STRETCHES_MAX or torch.cuda.is_current_stream_capturing():
            self._is_lost = True
            return
        if self._count == len(self._events):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self._events.append((begin, end))
        self._events[self._count][0].record()
        self._runs = True

    def stop(self) -> None:
        """End the stretch."""
        if self._runs:
            self._events[self._count][1].record()
            self._count += 1
            self._runs = False

    def take(self) -> float | None:
        """Return the sum; None while the device has not come to the end of all stretches."""
        events, is_lost = self._events[: self._count], self._is_lost
        self._count, self._runs, self._is_lost = 0, False, False
        if is_lost or not all(end.query() for _, end in events):  # type: ignore[no-untyped-call]
            return None
        try:
            return float(sum(begin.elapsed_time(end) for begin, end in events)) / 1e3
        except RuntimeError:  # the script changed the device within a pass
            return None
