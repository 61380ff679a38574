"""An optimizer's state by the names of its parameters, and back to the bit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from tracks_dagster.track.errors import CheckpointMismatch, TrainingError
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.training.saves.manifest import clean_name

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
                "is trained, further ones by a name of their own, and a bare parameter as "
                "NAME=nn.ParameterList([parameter])."
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
                f"Cannot save the optimizer: its state has the key {key!r}, which is not a parameter; "
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
    optimizer: Optimizer,
    parameters: Parameters,
    state: Mapping[str, Any],
    *,
    built: Collection[str] | None = None,
) -> None:
    """Put what `named_state` returned into an optimizer of the same groups, in any order, to the bit.

    built: the keys of the groups that the saved optimizer was built with; others were added in the
    loop, and are added here. None: not known. Raises CheckpointMismatch when a group has the names of
    no saved one, and when a saved one is lacking.
    """
    state = _with_clean_names(state)
    _add_groups(optimizer, parameters, state["param_groups"], built)
    names = parameter_names(optimizer, parameters)
    indices = {name: index for index, name in enumerate(names)}
    unknown = sorted(set(state["state"]) - set(indices))
    if unknown:
        raise CheckpointMismatch(
            f"The optimizer of the checkpoint has state of {_format_names(unknown)}, which "
            "this one does not train."
        )
    saved = _by_key(state["param_groups"])
    groups = []
    for index, group in enumerate(optimizer.state_dict()["param_groups"]):
        members = [names[each] for each in group["params"]]
        key = group_key(members, index)
        if key not in saved:
            raise CheckpointMismatch(
                f"The optimizer of the checkpoint has no group of exactly {_format_names(members)}; "
                "group the parameters as when it was saved."
            )
        groups.append({**saved[key], "params": group["params"]})
    values = {indices[name]: each for name, each in state["state"].items()}
    optimizer.load_state_dict({**state, "state": values, "param_groups": groups})
    own = _parameters(optimizer)
    for index, each in values.items():
        optimizer.state[own[index]] = _exact(optimizer.state[own[index]], each)


def _add_groups(
    optimizer: Optimizer,
    parameters: Parameters,
    saved: Sequence[Mapping[str, Any]],
    built: Collection[str] | None,
) -> None:
    """Add the groups that were added in the loop, whose `add_param_group` is not run again."""
    names = parameter_names(optimizer, parameters)
    members = iter(names)
    own = {
        group_key([next(members) for _ in group["params"]], index)
        for index, group in enumerate(optimizer.param_groups)
    }
    for key, group in _by_key(saved).items():
        if key in own or set(group["params"]) & set(names):
            continue  # one that is cut otherwise is named when its own group is looked for
        if built is None or key in built or not set(group["params"]) <= set(parameters):
            what = _format_names(group["params"]) if group["params"] else "no parameters"
            raise CheckpointMismatch(
                f"The optimizer of the checkpoint has a group of exactly {what}, which this one "
                "lacks; group the parameters as when it was saved."
            )
        tensors = [parameters[name] for name in group["params"]]
        numbers = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        named = group.get("param_names")
        optimizer.add_param_group(
            {"params": list(zip(named, tensors, strict=True)) if named else tensors, **numbers}
        )


def _with_clean_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved state with today's names: older ones had the wrappers of compiled blocks."""
    return {
        **state,
        "state": {clean_name(name): each for name, each in state["state"].items()},
        "param_groups": [
            {**group, "params": [clean_name(name) for name in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def _by_key(groups: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {group_key(group["params"], index): group for index, group in enumerate(groups)}


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
