"""What is trained as one flat state dict of tensors, with everything else as JSON; and back.

Tensors are named as torch.distributed.checkpoint names them (`model.<fqn>`,
`optimizer.state.<fqn>.exp_avg`), so that names do not depend on ranks, wrappers or the order of
parameters. Collecting by hand takes a tenth of a millisecond; DCP's own `get_state_dict` says the
same in two, all of which training would wait for (measured; a test holds the two against each other).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tracks_dagster.track.errors import CheckpointMismatch, TrainingError
from tracks_dagster.track.records import Json
from tracks_dagster.training.saves.manifest import Manifest, TensorEntry

NAMES_SHOWN_MAX = 5  # of parameters, in a message

Tensors = dict[str, torch.Tensor]
WRAPPERS_MAX = 8  # around one module
_ONE_MODEL = "one torch.nn.Module; several go into one torch.nn.ModuleDict"
_ONE_OPTIMIZER = "one torch.optim.Optimizer; what differs goes into its parameter groups"
_ONE_STATE = "one object with state_dict() and load_state_dict(), or None"


def take_apart(tree: Any, *, name: str) -> tuple[Json, Tensors]:
    """Return (values, tensors) of a state dict; `name` begins each tensor's name.

    Numbers go into the manifest as JSON, tensors beside them under a path-like name. No pickle.

    Raises TrainingError naming what is neither a tensor, nor JSON, nor a container of these.
    """
    tensors: Tensors = {}
    return _encode(tree, name, tensors), tensors


def put_together(values: Json, tensors: Tensors) -> Any:
    """Return the state dict that `take_apart` was given."""
    if not isinstance(values, dict):
        return values
    (tag, content) = next(iter(values.items()))
    return _DECODERS[tag](content, tensors)


def _encode(tree: Any, path: str, tensors: Tensors) -> Json:
    match tree:
        case torch.Tensor():
            if path in tensors:
                raise TrainingError(f"Cannot save {path}: two tensors of the state have this name.")
            tensors[path] = tree
            return {"tensor": path}
        case dict():  # keys may be numbers, which JSON would turn into text
            _check_keys(tree, path)
            return {"dict": [[k, _encode(v, f"{path}.{k}", tensors)] for k, v in tree.items()]}
        case list() | tuple():
            tag = "list" if isinstance(tree, list) else "tuple"
            return {tag: [_encode(v, f"{path}.{i}", tensors) for i, v in enumerate(tree)]}
        case float() if not math.isfinite(tree):
            return {"float": str(tree)}  # JSON has no infinity; a scheduler's "best so far" may
        case None | bool() | int() | float() | str():
            return tree
        case _:
            raise TrainingError(
                f"Cannot save {path}: a {type(tree).__name__} is neither a tensor nor JSON; "
                "keep it out of the state dict, or turn it into numbers."
            )


def _check_keys(tree: dict[Any, Any], path: str) -> None:
    for key in tree:
        if type(key) not in (str, int):
            raise TrainingError(
                f"Cannot save {path}: {key!r} is a {type(key).__name__}, and a state dict's keys must "
                "be text or whole numbers."
            )


_DECODERS: dict[str, Callable[[Json, Tensors], Any]] = {
    "tensor": lambda content, tensors: tensors[content],
    "dict": lambda content, tensors: {k: put_together(v, tensors) for k, v in content},
    "list": lambda content, tensors: [put_together(v, tensors) for v in content],
    "float": lambda content, tensors: float(content),
    "tuple": lambda content, tensors: tuple(put_together(v, tensors) for v in content),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What is trained. The others are of `model`, which DDP may wrap and FSDP2 may shard."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None = None
    scaler: GradScaler | None = None

    def __post_init__(self) -> None:
        """Raise TrainingError for lists and other types, before the first step."""
        _check_one("model", self.model, isinstance(self.model, nn.Module), _ONE_MODEL)
        is_optimizer = isinstance(self.optimizer, Optimizer)
        _check_one("optimizer", self.optimizer, is_optimizer, _ONE_OPTIMIZER)
        for name, given in (("scheduler", self.scheduler), ("scaler", self.scaler)):
            has_state = hasattr(given, "state_dict") and hasattr(given, "load_state_dict")
            _check_one(name, given, given is None or has_state, _ONE_STATE)


def _check_one(name: str, given: object, is_right: bool, what: str) -> None:
    if not is_right:
        raise TrainingError(f"{name} is a {type(given).__name__}; a.register takes {what}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDict:
    """tensors: live ones, by flat name, in a fixed order; values: the rest of each member, as JSON."""

    tensors: Tensors
    values: Mapping[str, Json]


def collect(trained: Trained) -> StateDict:
    """Return the state as it is now. The tensors are the live ones: stage them before they change.

    Raises TrainingError for a state that JSON and tensors cannot say.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model_tensors(trained.model).items()}
    values: dict[str, Json] = {"model": None}
    states = {
        "optimizer": named_state(trained.optimizer, unwrapped(trained.model)),
        "scheduler": trained.scheduler.state_dict() if trained.scheduler else None,
        "scaler": trained.scaler.state_dict() if trained.scaler else None,
    }
    for member, state in states.items():
        values[member], found = take_apart(state, name=member)
        tensors.update(found)
    return StateDict(tensors=tensors, values=values)


def model_tensors(model: nn.Module) -> Tensors:
    """Return parameters and persistent buffers by name, in name order, without DDP's prefix."""
    state = unwrapped(model).state_dict()
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise TrainingError(
                f"Cannot save {name}: a module's extra state is a {type(value).__name__}; keep it "
                "in a buffer."
            )
    return {name: state[name] for name in sorted(state)}


def targets(trained: Trained, manifest: Manifest) -> Tensors:
    """Return the tensors that a checkpoint is read into, by flat name.

    The model's are its own; the others are new ones, sharded as the parameter that they belong to.
    Raises CheckpointMismatch naming the tensor and both shapes when the model is another one.
    """
    found = model_targets(trained.model, manifest)
    parameters = dict(unwrapped(trained.model).named_parameters())
    for member in ("optimizer", "scheduler", "scaler"):
        for entry in manifest.members[member].tensors:
            fqn = entry.name.removeprefix("state.").rpartition(".")[0]
            found[f"{member}.{entry.name}"] = _empty(entry, parameters.get(fqn))
    return found


def model_targets(model: nn.Module, manifest: Manifest) -> Tensors:
    """Return the model's own tensors by flat name; raises CheckpointMismatch as `targets` does."""
    found = {f"model.{name}": tensor for name, tensor in model_tensors(model).items()}
    entries = {f"model.{entry.name}": entry for entry in manifest.members["model"].tensors}
    for name in sorted(found.keys() | entries.keys()):
        _check_form(name, found.get(name), entries.get(name), manifest.step)
    return found


def put_back(trained: Trained, manifest: Manifest, tensors: Tensors) -> None:
    """Put what was read into `targets` back: the model, then what goes with it.

    Raises CheckpointMismatch when it does not fit them.
    """
    values = {m: put_together(manifest.members[m].values, tensors) for m in _WITH_VALUES}
    _check_holders(trained, values, manifest.step)
    put_model_back(trained.model, tensors)
    model = unwrapped(trained.model)
    try:
        restore_optimizer(trained.optimizer, model, values["optimizer"])
        if trained.scheduler is not None:
            trained.scheduler.load_state_dict(values["scheduler"])
        if trained.scaler is not None:
            trained.scaler.load_state_dict(values["scaler"])
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointMismatch(
            f"The optimizer, scheduler or scaler of step {manifest.step} does not fit this one: "
            f"{error}."
        ) from error


def _check_holders(trained: Trained, values: Mapping[str, Any], step: int) -> None:
    """Raise CheckpointMismatch when only one of trainer and checkpoint has a scheduler or scaler.

    The state of a scaler that is off is empty.
    """
    scaler = trained.scaler.state_dict() if trained.scaler is not None else None
    for member, ours in {"scheduler": trained.scheduler, "scaler": scaler}.items():
        theirs = values[member]
        if (ours is None) != (theirs is None):
            who = "this trainer" if theirs is None else "the checkpoint"
            raise CheckpointMismatch(
                f"Only {who} of step {step} has a {member}; register what was registered when it was "
                "saved."
            )
    if scaler is not None and bool(scaler) != bool(values["scaler"]):
        raise CheckpointMismatch(
            f"The scaler of step {step} was {'on' if values['scaler'] else 'off'} and this one is "
            f"{'on' if scaler else 'off'}; build it as when it was saved."
        )


def put_model_back(model: nn.Module, tensors: Tensors) -> None:
    """Put what was read into `model_targets` back; nothing is left to do where they are live."""
    prefix = "model."
    state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    if not _are_live(unwrapped(model), state):  # a module that makes its state dict anew
        unwrapped(model).load_state_dict(state)


_WITH_VALUES = ("optimizer", "scheduler", "scaler")


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


def dtype_name(tensor: torch.Tensor) -> str:
    """Return torch's name of its dtype without "torch."."""
    return str(tensor.dtype).removeprefix("torch.")


def _empty(entry: TensorEntry, parameter: torch.Tensor | None) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, entry.dtype)
    if isinstance(parameter, DTensor) and tuple(parameter.shape) == entry.shape:
        sharded: torch.Tensor = empty_dtensor(
            entry.shape,
            dtype=dtype,
            device_mesh=parameter.device_mesh,
            placements=parameter.placements,
        )
        return sharded
    if parameter is not None and tuple(parameter.shape) == entry.shape:
        # In its memory format: some steps read both by one stride.
        return torch.empty_like(parameter, dtype=dtype, device="cpu", requires_grad=False)
    return torch.empty(entry.shape, dtype=dtype)


def _are_live(model: nn.Module, state: Tensors) -> bool:
    """Tell whether every tensor of a state dict is the module's own memory."""
    own = {*_addresses(model.parameters()), *_addresses(model.buffers())}
    return all(_address(tensor) in own for tensor in state.values())


def _addresses(tensors: Any) -> list[int]:
    return [_address(tensor) for tensor in tensors]


def _address(tensor: torch.Tensor) -> int:
    local: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.data_ptr()


def _check_form(
    name: str, ours: torch.Tensor | None, theirs: TensorEntry | None, step: int
) -> None:
    in_model = "missing" if ours is None else f"{dtype_name(ours)} {list(ours.shape)}"
    stored = "missing" if theirs is None else f"{theirs.dtype} {list(theirs.shape)}"
    if in_model != stored:
        raise CheckpointMismatch(
            f"Tensor {name} of step {step} does not fit the model: it is {stored} in the "
            f"checkpoint and {in_model} in the model. The config must build the model that was "
            "saved."
        )


def parameter_names(optimizer: Optimizer, model: nn.Module) -> list[str]:
    """Return the name of each of the optimizer's parameters, in the optimizer's order.

    Raises TrainingError for one that is not the model's: it would be trained and never saved.
    """
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    names = []
    for index, parameter in enumerate(_parameters(optimizer)):
        name = named.get(id(parameter))
        if name is None:
            raise TrainingError(
                f"Parameter {index} of the optimizer, of shape {list(parameter.shape)}, is not the "
                "registered model's: it would be trained and never saved. Register one module that "
                "holds all that is trained."
            )
        names.append(name)
    return names


def named_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state dict with names where torch counts. Raises TrainingError.

    torch matches parameters by the order in which an optimizer was given them; names match in
    any order.
    """
    names = parameter_names(optimizer, model)
    state = optimizer.state_dict()
    for key in state["state"]:
        if not isinstance(key, int):
            raise TrainingError(
                f"Cannot save the optimizer: its state has the key {key!r}, which is no parameter; "
                "keep it in a parameter group."
            )
    return {
        **state,
        "state": {names[index]: values for index, values in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[index] for index in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def restore_optimizer(optimizer: Optimizer, model: nn.Module, state: Mapping[str, Any]) -> None:
    """Put what `named_state` returned into an optimizer of the same groups, in any order, to the bit.

    Raises CheckpointMismatch when no group has the names of a saved one.
    """
    names = parameter_names(optimizer, model)
    indices = {name: index for index, name in enumerate(names)}
    unknown = sorted(set(state["state"]) - set(indices))
    if unknown:
        raise CheckpointMismatch(
            f"The optimizer of the checkpoint has state of {_format_names(unknown)}, which "
            "this one does not train."
        )
    saved = {frozenset(group["params"]): group for group in state["param_groups"]}
    groups = []
    for group in optimizer.state_dict()["param_groups"]:
        own = [names[index] for index in group["params"]]
        if frozenset(own) not in saved:
            raise CheckpointMismatch(
                f"The optimizer of the checkpoint has no group of exactly {_format_names(own)}; "
                "group the parameters as when it was saved."
            )
        groups.append({**saved[frozenset(own)], "params": group["params"]})
    values = {indices[name]: each for name, each in state["state"].items()}
    optimizer.load_state_dict({**state, "state": values, "param_groups": groups})
    parameters = _parameters(optimizer)
    for index, each in values.items():
        loaded = optimizer.state[parameters[index]]
        optimizer.state[parameters[index]] = _exact(loaded, each)


def _exact(loaded: Any, saved: Any) -> Any:
    """Return `loaded` with the saved tensors where torch cast them to the parameter's dtype."""
    if isinstance(saved, torch.Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(saved, dict):
        return {key: _exact(loaded[key], value) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        return type(saved)(_exact(a, b) for a, b in zip(loaded, saved, strict=True))
    return loaded


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _format_names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more
