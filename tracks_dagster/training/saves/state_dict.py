"""What is trained as one flat state dict of tensors, with everything else as JSON; and back.

Tensors are named as torch.distributed.checkpoint names them (`model.<fqn>`,
`optimizer.state.<fqn>.exp_avg`), so that names do not depend on ranks, wrappers or the order of
parameters; further states begin with the name that they were registered by, and of what every rank
has its own with `<name>.rank-<r>`. Collecting by hand takes a tenth of a millisecond; DCP's own
`get_state_dict` says the same in two, all of which training would wait for (measured; a test holds
the two against each other).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.nn.parameter import is_lazy

from tracks_dagster.track.errors import CheckpointMismatch, TrainingError
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.training.saves.forms import check_savable, is_expanded, is_plain, unexpanded
from tracks_dagster.training.saves.manifest import MEMBERS, Manifest, TensorEntry, clean_name
from tracks_dagster.training.saves.optimizer_state import named_state, restore_optimizer
from tracks_dagster.training.saves.plain_state import (
    Tensors,
    put_together,
    take_apart,
    take_tensor,
)
from tracks_dagster.training.saves.trained import Trained, unwrapped

FORMS = "forms"  # in what a checkpoint says was built: a digest of each module's shapes and types
_LATE = ("scheduler", "scaler")  # put back with the optimizer, which they go with


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDict:
    """tensors: live ones, by flat name, in a fixed order; values: the rest of each member, as JSON;
    own: of each member that every rank has its own of, this rank's values.
    """

    tensors: Tensors
    values: Mapping[str, Json]
    own: Mapping[str, Json] = field(default_factory=dict)


def collect(trained: Trained, *, rank: int = 0) -> StateDict:
    """Return the state as it is now. The tensors are the live ones: stage them before they change.

    Raises TrainingError for a state that JSON and tensors cannot say.
    """
    tensors: Tensors = {}
    values: dict[str, Json] = {}
    for member, module in trained.modules.items():
        values[member], found = module_state(module, member)
        tensors |= found
    parameters = trained.parameters
    states = {
        **{n: named_state(each, parameters) for n, each in trained.optimizers.items()},
        "scheduler": trained.scheduler.state_dict() if trained.scheduler else None,
        "scaler": trained.scaler.state_dict() if trained.scaler else None,
    }
    for member, state in states.items():
        values[member], found = take_apart(state, name=member)
        tensors |= found
    for member, each in trained.states.items():
        values[member], found = take_apart(each.state_dict(), name=member, stacks=True)
        tensors |= found
    own: dict[str, Json] = {}
    for member, each in trained.per_rank.items():
        name = _of_rank(member, rank)
        own[member], found = take_apart(each.state_dict(), name=name, stacks=True)
        tensors |= found
    return StateDict(tensors=tensors, values=values, own=own)


def check_state(trained: Trained, *, has_trained: bool) -> None:
    """Go once through all that a save takes and a resume puts back, without copying any data.

    has_trained: a step has been made, so that what is shaped or made by the first one is there. Raises
    TrainingError naming what cannot be saved and restored, with the cure.
    """
    for member, module in trained.modules.items():
        for name, tensor in _state_of(module).items():
            if has_trained or not is_lazy(tensor):
                check_savable(tensor, f"{member}.{name}")
    tensors: Tensors = {}
    parameters = trained.parameters
    for name, optimizer in trained.optimizers.items():
        tensors |= take_apart(named_state(optimizer, parameters), name=name)[1]
    for name, given in (("scheduler", trained.scheduler), ("scaler", trained.scaler)):
        if given is not None:
            tensors |= take_apart(given.state_dict(), name=name)[1]
    for name, each in (*trained.states.items(), *trained.per_rank.items()):
        # A loader may fork its workers when it is asked, and is asked at the first step.
        if has_trained or not hasattr(each, "__iter__"):
            tensors |= take_apart(each.state_dict(), name=name)[1]
    for name, tensor in tensors.items():
        check_savable(tensor, name)


def module_state(module: nn.Module, member: str) -> tuple[Json, Tensors]:
    """Return parameters and persistent buffers by flat name, in name order, without wrappers' prefixes.

    The values say what tensors that are not plain are made of (`forms`); None where all are plain.
    """
    tensors: Tensors = {}
    forms: dict[str, Json] = {}
    for name, tensor in _state_of(module).items():
        taken = take_tensor(tensor, f"{member}.{name}", tensors)
        if "form" in taken:
            forms[name] = taken
    return forms or None, dict(sorted(tensors.items()))


def _state_of(module: nn.Module) -> Tensors:
    """Return a module's state dict by clean names."""
    state = {clean_name(name): each for name, each in unwrapped(module).state_dict().items()}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise TrainingError(
                f"Cannot save {name}: a module's extra state is a {type(value).__name__}; keep it "
                "in a buffer."
            )
    return state


def targets(trained: Trained, manifest: Manifest, *, rank: int = 0, world_size: int = 1) -> Tensors:
    """Return the tensors that a checkpoint is read into, by flat name.

    The modules' are their own; the others are new ones, sharded as the parameter that they belong
    to, or on the device where the object's own are. Raises CheckpointMismatch naming the tensor and
    both shapes when a module is another one, what only one of both has, and a state of which every
    rank has its own and other ranks saved.
    """
    _check_names(trained, manifest)
    _check_ranks(trained, manifest, world_size)
    found: Tensors = {}
    for member, module in trained.modules.items():
        found |= module_targets(module, manifest, member=member)
    parameters = trained.parameters
    for member in (*trained.optimizers, *_LATE):
        for entry in manifest.members[member].tensors:
            fqn = clean_name(entry.name.removeprefix("state.").rpartition(".")[0])
            found[f"{member}.{entry.name}"] = _empty(entry, parameters.get(fqn))
    for member, each in trained.states.items():
        entries = manifest.members[member].tensors
        own = take_apart(each.state_dict(), name=member, stacks=True)[1] if entries else {}
        for entry in entries:
            name = f"{member}.{entry.name}"
            found[name] = _empty(entry, None).to(own[name].device if name in own else "cpu")
    for member in trained.per_rank:
        for entry in manifest.members[member].tensors:
            name = f"{member}.{entry.name}"
            if name.startswith(f"{_of_rank(member, rank)}."):
                found[name] = _empty(entry, None)
    return found


def module_targets(module: nn.Module, manifest: Manifest, *, member: str = "model") -> Tensors:
    """Return what a module's tensors are read into, by flat name: its own memory, where that can be.

    Sparse and expanded ones are read into new tensors. What has no shape yet gets that of the
    checkpoint. Raises CheckpointMismatch as `targets` does.
    """
    saved = manifest.members[member]
    forms = saved.values or {}
    entries = {f"{member}.{entry.name}": entry for entry in saved.tensors}
    clean = {clean_name(name): name for name in entries}
    _materialize(module, member, {name: entries[clean[name]] for name in clean})
    _check_forms(module, forms, manifest.step, member)
    is_sparse = tuple(
        f"{member}.{name}."
        for name, live in _state_of(module).items()
        if live.layout is not torch.strided
    )
    found = module_state(module, member)[1]
    own = {name: each for name, each in found.items() if not name.startswith(is_sparse)}
    grown = _may_grow(module, manifest, member)
    into: Tensors = {}
    for name in sorted(own.keys() | clean.keys()):
        if name.startswith(is_sparse):  # as many values as there were
            into[clean[name]] = _empty(entries[clean[name]], None)
            continue
        live, entry = own.get(name), entries.get(clean.get(name, ""))
        may_differ = name.removeprefix(f"{member}.") in grown
        if live is not None and entry is not None and may_differ and entry.shape != live.shape:
            into[clean[name]] = _empty(entry, None)
            continue
        _check_form(name, live, entry, manifest.step, of=member)
        assert live is not None
        into[clean[name]] = torch.empty_like(live) if is_expanded(live) else live
    return into


def _may_grow(module: nn.Module, manifest: Manifest, member: str) -> set[str]:
    """Return the buffers that may have another shape in the checkpoint: all, where it was built as
    the module is and so the loop let them grow, else those of parts that load them by themselves."""
    inner = unwrapped(module)
    built = manifest.members["progress"].values.get("built", {}).get(FORMS, {})
    is_built_alike = built.get(member) == forms_digest(module)
    return {
        clean_name(name)
        for name, _ in inner.named_buffers()
        if is_built_alike or _has_load_hooks(inner.get_submodule(name.rpartition(".")[0]))
    }


def forms_digest(module: nn.Module) -> str:
    """Return a digest of the names, shapes and types of a module's state."""
    forms = [
        [name, dtype_name(each), None if is_lazy(each) else list(each.shape)]
        for name, each in sorted(_state_of(module).items())
    ]
    return sha256_hex(canonical_json(forms))[:16]


def _check_forms(module: nn.Module, forms: Mapping[str, Json], step: int, member: str) -> None:
    """Raise CheckpointMismatch naming a tensor that is plain in one of module and checkpoint only."""
    ours = module_state(module, member)[0] or {}
    for name in sorted(ours.keys() ^ forms.keys()):
        who = "the checkpoint" if name in ours else f"the {member}"
        raise CheckpointMismatch(
            f"Tensor {member}.{name} of step {step} is plain in {who} only: one is sparse, or of "
            "another class. The config must build the model that was saved."
        )


def _materialize(module: nn.Module, member: str, entries: Mapping[str, TensorEntry]) -> None:
    """Give what has no shape yet the shape that it had in the checkpoint."""
    inner = unwrapped(module)
    for name, tensor in (*inner.named_parameters(), *inner.named_buffers()):
        entry = entries.get(f"{member}.{clean_name(name)}")
        if is_lazy(tensor) and entry is not None:
            tensor.materialize(entry.shape, dtype=getattr(torch, entry.dtype))


def put_own_back(trained: Trained, manifest: Manifest, tensors: Tensors, *, rank: int = 0) -> None:
    """Put back the states of the script's own names: a loader, a curriculum, an average.

    Raises CheckpointMismatch when one does not fit.
    """
    values = {name: manifest.members[name].values for name in trained.states}
    for name in trained.per_rank:
        values[name] = manifest.members[name].values[rank]
    for name, each in {**trained.states, **trained.per_rank}.items():
        with _fitting(name, manifest.step):
            each.load_state_dict(put_together(values[name], tensors))


def put_back(trained: Trained, manifest: Manifest, tensors: Tensors) -> None:
    """Put what was read into `targets` back: the modules, then what goes with them.

    Raises CheckpointMismatch when it does not fit them.
    """
    named = (*trained.optimizers, *_LATE)
    values = {name: put_together(manifest.members[name].values, tensors) for name in named}
    _check_holders(trained, values, manifest.step)
    for member, module in trained.modules.items():
        forms = manifest.members[member].values
        put_module_back(module, tensors, member=member, forms=forms)
    with _fitting("optimizer, scheduler or scaler", manifest.step):
        parameters = trained.parameters
        built = manifest.members["progress"].values.get("built")
        for name, optimizer in trained.optimizers.items():
            keys = put_together(built["optimizers"][name], {}).keys() if built else None
            restore_optimizer(optimizer, parameters, values[name], built=keys)
        if trained.scheduler is not None:
            trained.scheduler.load_state_dict(values["scheduler"])
        if trained.scaler is not None:
            trained.scaler.load_state_dict(values["scaler"])


@contextmanager
def _fitting(what: str, step: int) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError, IndexError) as error:
        raise CheckpointMismatch(
            f"The {what} of step {step} does not fit this one: {error}."
        ) from error


def _of_rank(member: str, rank: int) -> str:
    return f"{member}.rank-{rank}"


def _check_ranks(trained: Trained, manifest: Manifest, world_size: int) -> None:
    for name in trained.per_rank:
        saved = manifest.members[name].ranks
        if saved != world_size:
            by = "once for all ranks" if saved is None else f"by {saved} ranks"
            raise CheckpointMismatch(
                f"The {name} of step {manifest.step} was saved {by} and this attempt has "
                f"{world_size}: each rank has a state of its own. Resume with as "
                "many ranks, or register a state that fits any number by its name, outside per_rank."
            )


def _check_names(trained: Trained, manifest: Manifest) -> None:
    """Raise CheckpointMismatch when only one of trainer and checkpoint has a further state."""
    ours = {*trained.named, *trained.per_rank}
    theirs = set(manifest.members) - set(MEMBERS)
    for name in sorted(ours ^ theirs):
        who = "this trainer" if name in ours else "the checkpoint"
        raise CheckpointMismatch(
            f"Only {who} of step {manifest.step} has {name}; register what was registered when it "
            "was saved."
        )


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


def put_module_back(
    module: nn.Module, tensors: Tensors, *, member: str = "model", forms: Json = None
) -> None:
    """Put what was read into `module_targets` back; nothing is left to do where they are live."""
    prefix = f"{member}."
    state = {
        clean_name(n).removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)
    }
    live = _state_of(module)
    with torch.no_grad():
        for name, form in (forms or {}).items():
            read = {n: state.pop(n.removeprefix(prefix)) for n in _names_in(form)}
            if live[name].layout is not torch.strided:
                _replace(unwrapped(module), name, put_together(form, read))
        for name in [name for name, tensor in live.items() if is_expanded(tensor)]:
            place = unexpanded(live[name])
            place.copy_(state.pop(name)[tuple(slice(0, size) for size in place.shape)])
    for full, _ in list(unwrapped(module).named_buffers()):
        name, part = clean_name(full), unwrapped(module).get_submodule(full.rpartition(".")[0])
        has_grown = name in state and state[name].shape != live[name].shape
        if has_grown and not _has_load_hooks(part):
            _replace(unwrapped(module), name, state.pop(name))
    is_live = _are_live(unwrapped(module), state)
    if is_live and any(map(_has_load_hooks, unwrapped(module).modules())):
        unwrapped(module).load_state_dict(unwrapped(module).state_dict())  # into itself
    if not is_live:  # a module that makes its state dict at each call
        named = {clean_name(name): name for name in unwrapped(module).state_dict()}
        whole = {named[name]: tensor for name, tensor in state.items()}
        unwrapped(module).load_state_dict(whole, strict=len(whole) == len(named))


def _has_load_hooks(part: nn.Module) -> bool:
    """Tell whether a part does more at a load than take its tensors in."""
    kind = type(part)
    is_own = any(
        getattr(kind, name) is not getattr(nn.Module, name)
        for name in ("load_state_dict", "_load_from_state_dict")
        if not kind.__module__.startswith("torch.nn.")
    )
    return is_own or bool(part._load_state_dict_post_hooks or part._load_state_dict_pre_hooks)


def _names_in(form: Json) -> list[str]:
    """Return the flat names of all that a tensor is made of."""
    if "tensor" in form:
        return [form["tensor"]]
    return [name for part in form["form"][1].values() for name in _names_in(part)]


def _replace(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Put a tensor in the place of a module's parameter or buffer of that name."""
    for full, live in (*module.named_parameters(), *module.named_buffers()):
        if clean_name(full) == name:
            path, _, own = full.rpartition(".")
            if isinstance(live, nn.Parameter):
                live.data = tensor.to(live.device)
            else:
                setattr(module.get_submodule(path), own, tensor.to(live.device))


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
    return [_address(tensor) for tensor in tensors if is_plain(tensor)]


def _address(tensor: torch.Tensor) -> int:
    local: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.data_ptr()


def _check_form(
    name: str, ours: torch.Tensor | None, theirs: TensorEntry | None, step: int, *, of: str
) -> None:
    in_model = "missing" if ours is None else f"{dtype_name(ours)} {list(ours.shape)}"
    stored = "missing" if theirs is None else f"{theirs.dtype} {list(theirs.shape)}"
    if in_model != stored:
        raise CheckpointMismatch(
            f"Tensor {name} of step {step} does not fit the {of}: it is {stored} in the "
            f"checkpoint and {in_model} in the {of}. The config must build the {of} that was "
            "saved."
        )
