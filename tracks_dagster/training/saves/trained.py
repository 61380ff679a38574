"""What a script trains, by name: what it registered, checked before the first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tracks_dagster.track.errors import TrainingError
from tracks_dagster.training.saves.manifest import MEMBERS, clean_name

WRAPPERS_MAX = 8  # around one module
NAME_CHARS_MAX = 64
NAMED_MAX = 64  # states that one script registers; each is a part of every manifest
LOADER = "loader"  # the name of a loader that has a state and was not registered by one

_BY_NAME = "each further one goes under a name of its own, as in a.register(…, discriminator=…)"
_ONE_MODEL = f"one torch.nn.Module; {_BY_NAME}"
_ONE_OPTIMIZER = f"one torch.optim.Optimizer; {_BY_NAME}"
_ONE_STATE = "one object with state_dict() and load_state_dict(), or None"
_ANY_STATE = "a torch.nn.Module, an Optimizer, or an object with state_dict() and load_state_dict()"


@runtime_checkable
class Stateful(Protocol):
    """Whatever can say its state and take it back."""

    def state_dict(self) -> Any:
        """Return all that its next step depends on, as tensors, arrays, numbers and text."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Go on as the object that said `state`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What is trained. `model`, which DDP may wrap and FSDP2 may shard, is what is exported.

    named: further modules, optimizers and states, each one for all ranks; per_rank: states of which
    every rank has its own.
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None = None
    scaler: GradScaler | None = None
    named: Mapping[str, Stateful] = field(default_factory=dict)
    per_rank: Mapping[str, Stateful] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise TrainingError for lists, other types and names that cannot be."""
        _check_one("model", self.model, isinstance(self.model, nn.Module), _ONE_MODEL)
        is_optimizer = isinstance(self.optimizer, Optimizer)
        _check_one("optimizer", self.optimizer, is_optimizer, _ONE_OPTIMIZER)
        for name, given in (("scheduler", self.scheduler), ("scaler", self.scaler)):
            _check_one(name, given, given is None or isinstance(given, Stateful), _ONE_STATE)
        for name, each in (*self.named.items(), *self.per_rank.items()):
            _check_one(name, each, isinstance(each, Stateful), _ANY_STATE)
        for name, each in self.per_rank.items():
            is_shared = isinstance(each, nn.Module | Optimizer)
            _check_one(name, each, not is_shared, f"{_ONE_STATE} in per_rank; all ranks share it")
        self._check_names()

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Every module by name, without the wrappers of DDP and torch.compile; `model` first."""
        named = {n: each for n, each in self.named.items() if isinstance(each, nn.Module)}
        return {name: unwrapped(each) for name, each in {"model": self.model, **named}.items()}

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """Every optimizer by name."""
        named = {n: each for n, each in self.named.items() if isinstance(each, Optimizer)}
        return {"optimizer": self.optimizer, **named}

    @property
    def states(self) -> dict[str, Stateful]:
        """What else was named: neither module nor optimizer, one for all ranks."""
        return {
            name: each
            for name, each in self.named.items()
            if not isinstance(each, nn.Module | Optimizer)
        }

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each member that has a name of the script's own, as a manifest says it."""
        named = {
            name: "module"
            if isinstance(each, nn.Module)
            else "optimizer"
            if isinstance(each, Optimizer)
            else "state"
            for name, each in self.named.items()
        }
        return {**named, **dict.fromkeys(self.per_rank, "state")}

    @property
    def schedulers(self) -> Iterator[LRScheduler]:
        """Every scheduler of a learning rate."""
        given = (self.scheduler, *self.named.values())
        return (each for each in given if isinstance(each, LRScheduler))

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Every parameter by name: of `model` its own, of other modules behind the module's name.

        One that two modules share has the first of its names.
        """
        found: dict[str, torch.Tensor] = dict(named_parameters(unwrapped(self.model)))
        known = {id(parameter) for parameter in found.values()} if self.named else set()
        for member, module in self.modules.items():
            if member != "model":
                new = [(n, p) for n, p in named_parameters(module) if id(p) not in known]
                found |= {f"{member}.{name}": parameter for name, parameter in new}
                known |= {id(parameter) for _, parameter in new}
        return found

    def _check_names(self) -> None:
        names = [*self.named, *self.per_rank]
        if len(names) > NAMED_MAX:
            raise TrainingError(
                f"{len(names)} states were registered by name and the limit is {NAMED_MAX}; put some "
                "into one object with a state_dict of its own."
            )
        begins = {name.partition(".")[0] for name, _ in unwrapped(self.model).named_parameters()}
        for name in names:
            if not name.isidentifier() or len(name) > NAME_CHARS_MAX or name in MEMBERS:
                raise TrainingError(
                    f"Cannot register {name!r}: use a name of up to {NAME_CHARS_MAX} letters, digits "
                    f"and underscores, and none of {', '.join(MEMBERS)}."
                )
            if name in begins or names.count(name) > 1:
                whose = "of the model's own parts" if name in begins else "in per_rank too"
                raise TrainingError(f"Cannot register {name!r}: it is a name {whose}; use another.")


def _check_one(name: str, given: object, is_right: bool, what: str) -> None:
    if not is_right:
        raise TrainingError(f"{name} is a {type(given).__name__}; a.register takes {what}.")


def named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield a module's parameters by the names that checkpoints have."""
    for name, parameter in module.named_parameters():
        yield clean_name(name), parameter


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of DDP and torch.compile, or the module itself."""
    for _ in range(WRAPPERS_MAX):
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif (compiled := model._modules.get("_orig_mod")) is not None:
            model = compiled
        else:
            break
    return model
