"""Sees in the loop that all which trains is what checkpoints hold, before a save depends on it.

After the first step all states are there: each is gone through once. An optimizer that steps and is
registered nowhere would lose its state at a resume. What no checkpoint can have is said: numbers and
flags that parts of a module keep as Python attributes, buffers that are not persistent, gradients that
lie between two optimizer steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from tracks_dagster.track.errors import TrainingError
from tracks_dagster.training.saves import random_state
from tracks_dagster.training.saves.forms import is_plain
from tracks_dagster.training.saves.leaves import equal, numbers
from tracks_dagster.training.saves.state_dict import check_state, collect
from tracks_dagster.training.saves.trained import Trained

WARNINGS_MAX = 4  # attributes and buffers at a time
SAVES_WATCHED = 8
NUMBERS_MAX = 2**20  # of a tensor that are looked at
_MODULES_OWN = frozenset(vars(nn.Module()))


@dataclass(slots=True)
class _Seen:
    """first_step: in which it was seen; groups: its numbers then; is_again: seen in a later step;
    is_saved: its state is that of a registered one."""

    first_step: int
    groups: list[dict[str, Any]]
    is_again: bool = False
    is_saved: bool = False


class StateWatch:
    """Watches one rank; every optimizer of the process by torch's own hook.

    One that lives for a single step, as of an inner loop, has nothing to resume.
    """

    def __init__(self, trained: Trained, *, step: int, warn: Callable[[str], None]) -> None:
        """step: the first one that will run; warn: tells people, and the journal."""
        self._warn = warn
        self._built = dict(_unsaved(trained))
        self._saves = 0
        self._warned: set[str] = set()
        # By optimizer: its last step, and its gradient then.
        self._used: dict[int, tuple[int, object]] = {}
        self._is_compiled = False
        self._drawn: object = None  # the generators as the newest save has them
        self._saved: _Marks | None = None  # the state as the newest save that is watched has it
        self._step = step
        self._first = step
        self._has_trained = False
        self._trained = trained
        self._known = {id(each) for each in trained.optimizers.values()}
        self._seen: WeakKeyDictionary[Optimizer, _Seen] = WeakKeyDictionary()
        self._is_any = False  # seen again: what every report asks first
        self._is_away = False
        self._handle: RemovableHandle | None = register_optimizer_step_post_hook(self._stepped)
        self._warn_of_schedules()

    def _warn_of_schedules(self) -> None:
        """Say it where a schedule moves an optimizer's rates and is registered nowhere."""
        given = (self._trained.scheduler, *self._trained.named.values())
        moved = [getattr(each, "optimizer", None) for each in given if each is not None]
        for name, optimizer in self._trained.optimizers.items():
            has_one = any("initial_lr" in group for group in optimizer.param_groups)
            if has_one and not any(each is optimizer for each in moved):
                self._warn(
                    f"A schedule was built over {name}, and none is registered for it: a resume begins "
                    "the schedule again. Register it: a.register(…, scheduler=scheduler)."
                )

    def close(self) -> None:
        """Take the hook away."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    @contextmanager
    def away(self) -> Iterator[None]:
        """Watch nothing meanwhile: an evaluation may train what it likes."""
        self._is_away, before = True, self._is_away
        try:
            yield
        finally:
            self._is_away = before

    def check(self, step: int) -> None:
        """End a step; raise TrainingError naming what a resume would lose: a state that cannot be
        saved, an optimizer that is not registered and has a state, or numbers that change."""
        if not self._has_trained:
            self._has_trained = True
            check_state(self._trained, has_trained=True)
        self._step = step + 1
        if (
            step == self._first or step & (step - 1) == 0
        ):  # seldom: it asks all parts of the modules
            self.look()
            self._warn_of_gradients(step)
        if not self._is_any:
            return
        for optimizer, seen in list(self._seen.items()):
            if seen.is_again and self._is_lost(optimizer, seen):
                count = sum(len(group["params"]) for group in optimizer.param_groups)
                raise TrainingError(
                    f"An optimizer ({type(optimizer).__name__} of {count} parameters) has stepped "
                    f"since step {seen.first_step} and is not registered: no checkpoint would have its "
                    "state. Register it as well, before the loop: a.register(…, NAME=optimizer). One "
                    "that another one wraps is an attribute of that."
                )

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            self._is_compiled = True
            return
        self._used[_key(optimizer)] = self._step, _gradient(optimizer)
        if id(optimizer) in self._known or self._is_away:
            return
        seen = self._seen.get(optimizer)
        if seen is None:
            groups = [numbers(group) for group in optimizer.param_groups]
            self._seen[optimizer] = _Seen(self._step, groups)
        elif self._step > seen.first_step:
            seen.is_again = self._is_any = True

    def saving(self) -> None:
        """Look again as a save begins: at the first ones, then at each that doubles their number."""
        self._saves += 1
        is_watched = self._saves <= SAVES_WATCHED or self._saves & (self._saves - 1) == 0
        if is_watched:
            self.look()
        self._drawn = None if "random" in self._warned else random_state.fingerprint()
        self._saved = _marks(self._trained) if is_watched and "late" not in self._warned else None

    def turn(self, step: int) -> None:
        """Say, once each, what the script changed between the report of `step`, if that was saved, and
        its asking for the next one."""
        drawn, self._drawn = self._drawn, None
        saved, self._saved = self._saved, None
        if drawn is not None and drawn != random_state.fingerprint():
            self._warned.add("random")
            self._warn(
                f"Random numbers were drawn after the report of step {step}, whose checkpoint has "
                "those of before: a resume from there draws others. Draw before a.report, or inside "
                "a.evaluating(), which puts them back."
            )
        changed = saved.changed(_marks(self._trained)) if saved is not None else []
        if changed:
            self._warned.add("late")
            self._warn(
                f"{', '.join(changed)} changed after the report of step {step}, whose checkpoint has "
                "what was before: a resume from there lacks the change. Change it before a.report."
            )

    def look(self) -> None:
        """Say, once each, what has changed since it was built and is in no checkpoint."""
        found = dict(_unsaved(self._trained))
        new = {
            name: each
            for name, each in found.items()
            if name not in self._warned and not _is_same(self._built.get(name), each)
        }
        for name in sorted(new)[:WARNINGS_MAX]:
            self._warned.add(name)
            self._warn(
                f"{name} is {new[name].kind} and has changed since it was built; no checkpoint has it. "
                "Where training depends on it, keep it in a persistent buffer, or set it from the "
                "number of the step in each step."
            )

    def _warn_of_gradients(self, step: int) -> None:
        if "gradients" in self._warned or self._is_compiled:
            return
        for name, optimizer in self._trained.optimizers.items():
            last, used = self._used.get(_key(optimizer), (0, None))
            left = _gradient(optimizer)
            if last == step or left is None or left == used or self._is_skipped(optimizer):
                continue
            self._warned.add("gradients")
            self._warn(
                f"Step {step} ended without a step of {name}, and left gradients. Where they add up "
                "to a later step, a checkpoint between the two loses them: a step is one "
                "optimizer.step(), with the accumulation inside."
            )
            return

    def _is_skipped(self, optimizer: Optimizer) -> bool:
        """Whether a scaler leaves this step out, for a gradient that is not finite."""
        if self._trained.scaler is None:
            return False
        gradients = [
            p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None
        ]
        return not all(bool(each.isfinite().all()) for each in gradients)

    def _is_lost(self, optimizer: Optimizer, seen: _Seen) -> bool:
        if seen.is_saved:
            return False
        own = [each for state in optimizer.state.values() for each in _tensors(state)]
        if own:  # what a registered one wraps may share its state
            saved = {id(tensor) for tensor in collect(self._trained).tensors.values()}
            seen.is_saved = all(id(each) in saved for each in own)
            return not seen.is_saved
        registered = [g for each in self._trained.optimizers.values() for g in each.param_groups]
        if all(any(group is each for each in registered) for group in optimizer.param_groups):
            return False
        return [numbers(group) for group in optimizer.param_groups] != seen.groups


@dataclass(frozen=True, slots=True)
class _Marks:
    """What differs once a part has changed: tensors' versions by flat name, values by part."""

    tensors: dict[str, int]
    values: dict[str, Any]

    def changed(self, now: _Marks) -> list[str]:
        """Return the parts that differ now, by name."""
        tensors = {
            name.partition(".")[0]
            for name, version in now.tensors.items()
            if self.tensors.get(name, version) != version
        }
        values = {name for name, each in now.values.items() if not equal(self.values[name], each)}
        return sorted(tensors | values)


def _marks(trained: Trained) -> _Marks:
    """Mark modules, optimizers, schedulers and scaler. Objects of the script's own may run ahead."""
    known = nn.Module | Optimizer | LRScheduler
    named = {name: each for name, each in trained.named.items() if isinstance(each, known)}
    state = collect(replace(trained, named=named, per_rank={}))
    tensors = {n: t._version for n, t in state.tensors.items() if not t.is_inference()}
    return _Marks(tensors, dict(state.values))


def _key(optimizer: Optimizer) -> int:
    """Return what an optimizer has in common with one that wraps it: its first parameter."""
    first = next((p for group in optimizer.param_groups for p in group["params"]), optimizer)
    return id(first)


def _gradient(optimizer: Optimizer) -> object:
    """Return what differs once a backward pass has added to the first gradient; None without one."""
    given = (p.grad for group in optimizer.param_groups for p in group["params"])
    first = next((each for each in given if each is not None), None)
    return None if first is None else (id(first), first._version)


@dataclass(frozen=True, slots=True)
class _Unsaved:
    """What no state dict has: what it is, and its value, of a tensor a digest."""

    kind: str
    value: Any


def _is_same(built: _Unsaved | None, now: _Unsaved) -> bool:
    return built is not None and equal(built.value, now.value)


def _unsaved(trained: Trained) -> Iterator[tuple[str, _Unsaved]]:
    """Yield by name what parts of the modules, and optimizers, hold and no state dict has: numbers,
    flags, text and tensors that are attributes, and buffers that are not persistent."""
    for member, module in trained.modules.items():
        for path, part in module.named_modules(prefix=member):
            if type(part).get_extra_state is nn.Module.get_extra_state:  # else it says them itself
                yield from _attributes(part, path, _MODULES_OWN)
            for name in part._non_persistent_buffers_set:
                buffer = part._buffers.get(name)
                if buffer is not None and is_plain(buffer) and not buffer.is_meta:
                    what = _Unsaved("a buffer that is not persistent", _digest(buffer))
                    yield f"{path}.{name}", what
    for name, optimizer in trained.optimizers.items():
        yield from _attributes(optimizer, name, _optimizers_own())


def _attributes(holder: object, path: str, own: Collection[str]) -> Iterator[tuple[str, _Unsaved]]:
    for name, value in vars(holder).items():
        if name in own:
            continue
        if isinstance(value, bool | int | float | str | None):
            yield f"{path}.{name}", _Unsaved("an attribute", value)
        elif type(value) is torch.Tensor and is_plain(value) and not value.is_meta:
            yield f"{path}.{name}", _Unsaved("an attribute", _digest(value))


def _digest(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the shape, the sum of the numbers, and their sum weighted by their places."""
    flat = tensor.detach().reshape(-1)[:NUMBERS_MAX].double()
    places = torch.arange(1, len(flat) + 1, dtype=torch.float64, device=flat.device)
    return tuple(tensor.shape), float(flat.nan_to_num().sum()), float(flat.nan_to_num() @ places)


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for each in state.values():
            yield from _tensors(each)
    elif isinstance(state, list | tuple):
        for each in state:
            yield from _tensors(each)


@cache
def _optimizers_own() -> frozenset[str]:
    """Return what torch's own keep beside their state, and schedulers and frameworks hang on them.

    Asked late: the first optimizer of a process loads torch._dynamo, for a second.
    """
    own = vars(torch.optim.SGD([torch.zeros(1)], lr=1.0))
    return frozenset({*own, "step", "_opt_called", "_step_count"})
