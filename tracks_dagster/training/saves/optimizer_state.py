"""An optimizer's state by the names of its parameters, and back to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from tracks_dagster.track.errors import CheckpointMismatch, TrainingError
from tracks_dagster.track.records import sha256_hex

NAMES_SHOWN_MAX = 5  # of parameters, in a message
Parameters = Mapping[str, torch.Tensor]  # of all registered modules, by name


def parameter_names(optimizer: Optimizer, parameters: Parameters) -> list[str]:
    """Return the name of each of the optimizer's parameters, in the optimizer's order.

    Raises TrainingError for one of no registered module: it would be trained and never saved.
    """
    named = {id(parameter): name for name, parameter in parameters.items()}
    names = []
    for index, parameter in enumerate(_parameters(optimizer)):
        name = named.get(id(parameter))
        if name is None:
            raise TrainingError(
                f"Parameter {index} of the optimizer, of shape {list(parameter.shape)}, is not the "
                "registered model's: it would be trained and never saved. Register every module that "
                "is trained, further ones by a name of their own."
            )
        names.append(name)
    return names


def group_key(names: Sequence[str], index: int) -> str:
    """Return what tells a group from others in any order: a digest of its parameters' names.

    index: of the group, for one without parameters.
    """
    return sha256_hex("\n".join(sorted(names)).encode())[:16] if names else f"empty-{index}"


def named_state(optimizer: Optimizer, parameters: Parameters) -> dict[str, Any]:
    """Return the state dict with names where torch counts. Raises TrainingError.

    torch matches parameters by the order in which an optimizer was given them; names match in
    any order.
    """
    names = parameter_names(optimizer, parameters)
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


def restore_optimizer(
    optimizer: Optimizer, parameters: Parameters, state: Mapping[str, Any]
) -> None:
    """Put what `named_state` returned into an optimizer of the same groups, in any order, to the bit.

    Raises CheckpointMismatch when no group has the names of a saved one.
    """
    names = parameter_names(optimizer, parameters)
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
        members = [names[index] for index in group["params"]]
        if frozenset(members) not in saved:
            raise CheckpointMismatch(
                f"The optimizer of the checkpoint has no group of exactly {_format_names(members)}; "
                "group the parameters as when it was saved."
            )
        groups.append({**saved[frozenset(members)], "params": group["params"]})
    values = {indices[name]: each for name, each in state["state"].items()}
    optimizer.load_state_dict({**state, "state": values, "param_groups": groups})
    own = _parameters(optimizer)
    for index, each in values.items():
        optimizer.state[own[index]] = _exact(optimizer.state[own[index]], each)


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
