"""What a script built its optimizers and schedules with, and what a changed one makes of a resume.

A checkpoint brings back numbers that the script once took from its config: weight decay, betas, the
length of a schedule. So each checkpoint keeps what they were when they were built, too. Where the
script builds something else now, the new value holds: a schedule is replayed up to the restored
position, other rates are multiplied by the ratio, all else is set. Each change is a sentence for the
receipt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tracks_dagster.track.errors import CheckpointMismatch
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.training.saves.leaves import (
    MISSING,
    RATE_LISTS,
    Leaves,
    Path,
    changed_leaves,
    equal,
    numbers,
    plain,
    put_number,
    scaled,
    with_leaves,
)
from tracks_dagster.training.saves.manifest import clean_name
from tracks_dagster.training.saves.optimizer_state import group_key, parameter_names
from tracks_dagster.training.saves.plain_state import put_together
from tracks_dagster.training.saves.replaying import Replayed, detached, replay
from tracks_dagster.training.saves.state_dict import FORMS, forms_digest
from tracks_dagster.training.saves.trained import Trained, named_parameters

# Where a schedule's own functions are asked: each of the first positions, then each half per cent.
FACTORS_AT = (*range(2048), *(int(2048 * 1.005**power) for power in range(1, 1800)))
RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # what a group holds in the unit of its rate
CHANGES_MAX = 24  # sentences of one receipt
CHANGE_CHARS_MAX = 200
IN_USE_BYTES_MAX = 4096  # of a record of 16 KiB
GROUPS_SHOWN_MAX = 8
_WITH_A_STATE = ("amsgrad", "centered")  # what keeps a state from its first step on
_RMSPROPS = ("RMSprop", "momentum")  # that of SGD begins whenever it is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a script built, taken before anything is restored.

    values: as a checkpoint keeps it; schedules: copies to replay, by name, each with the name of its
    optimizer.
    """

    values: Mapping[str, Json]
    schedules: Mapping[str, tuple[LRScheduler, str]]


def take_built(trained: Trained) -> Built:
    """Return what optimizers, schedulers and the scaler say before the first step."""
    groups = {name: _groups(each, trained) for name, each in trained.optimizers.items()}
    schedulers = dict(_schedulers(trained))
    values: dict[str, Json] = {
        "optimizers": {name: plain(each) for name, each in groups.items()},
        "schedulers": {
            name: {"state": plain(each.state_dict()), "factors": plain(_factors(each))}
            for name, each in schedulers.items()
        },
        "scalers": {name: plain(each.state_dict()) for name, each in _scalers(trained)},
        "states": {name: plain(numbers(each.state_dict())) for name, each in _others(trained)},
        "classes": {
            n: type(e).__name__ for n, e in (*trained.optimizers.items(), *schedulers.items())
        },
        "frozen": _digests(frozen_names(trained)),
        "modes": _digests(evaluating_parts(trained)),
        FORMS: {member: forms_digest(module) for member, module in trained.modules.items()},
    }
    copies = {name: detached(each, trained) for name, each in schedulers.items()}
    return Built(values=values, schedules={n: each for n, each in copies.items() if each})


def frozen_names(trained: Trained) -> dict[str, list[str]]:
    """Return the parameters of each module that are not trained, by name."""
    return {
        member: sorted(name for name, each in named_parameters(module) if not each.requires_grad)
        for member, module in trained.modules.items()
    }


def evaluating_parts(trained: Trained) -> dict[str, list[str]]:
    """Return the parts of each module that are in evaluation mode, by name."""
    return {
        member: sorted(
            clean_name(name) for name, part in module.named_modules() if not part.training
        )
        for member, module in trained.modules.items()
    }


def _digests(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {member: sha256_hex("\n".join(each).encode()) for member, each in names.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a resume has to change after the restore. sentences: what it changes, for people."""

    sentences: tuple[str, ...]
    then: Mapping[str, Any]
    now: Mapping[str, Any]
    replayed: Mapping[str, Replayed]  # by the schedule's name
    # By module, as they were saved, where they are not built otherwise.
    frozen: Mapping[str, Sequence[str]]
    modes: Mapping[str, Sequence[str]]


def find_changes(
    built: Built,
    then: Mapping[str, Json],
    saved: Mapping[str, Json],
    *,
    progress: Mapping[str, Json],
) -> Changes:
    """Compare what is built now with what the checkpoint's attempt had built; changes nothing.

    then: `Built.values` of that attempt; saved: the values of the checkpoint's members; progress:
    `frozen` and `modes`, as `frozen_names` and `evaluating_parts` said at the save. Raises
    CheckpointMismatch for an optimizer or a schedule of another class.
    """
    before, now = _decoded(then), _decoded(built.values)
    _check_classes(before, now)
    replayed: dict[str, Replayed] = {}
    sentences: list[str] = []
    for name in before["schedulers"].keys() & now["schedulers"].keys():
        differs = changed_leaves(before["schedulers"][name], now["schedulers"][name])
        optimizer = built.schedules[name][1] if name in built.schedules else ""
        if not differs and not _rates_differ(before, now, optimizer):
            continue
        found = None
        if name in built.schedules and name in saved and optimizer in saved:
            found = replay(built.schedules[name], before, now, saved, name=name)
        if found is not None:
            replayed[name] = found
        how = "replayed to where it was" if found else "from now on; its past is not replayed"
        shown = {p[1:]: pair for p, pair in differs.items() if p[0] == "state" and _is_shown(p)}
        sentences += [f"{name}: {line}, {how}" for line in _lines(shown)]
        if not shown and any(not set(path) & set(RATE_LISTS) for path in differs):
            sentences.append(f"{name}: it is built otherwise, {how}")
    for name, groups in now["optimizers"].items():
        differs = changed_leaves(before["optimizers"].get(name, groups), groups)
        sentences += _of_groups(name, _first_rates(differs), list(groups))
    for name in now["scalers"]:
        sentences += [f"{name}: {line}" for line in _lines(_of_scaler(before, now, name))]
    for name, values in now["states"].items():
        differs = changed_leaves(before["states"].get(name, values), values)
        why = "is not used: what the checkpoint has of it holds"
        sentences += [f"{name}: {line} {why}" for line in _lines(differs)]
    same = {m for m, each in now["frozen"].items() if before["frozen"].get(m) == each}
    modes = {m for m, each in now["modes"].items() if before["modes"].get(m) == each}
    sentences += [
        f"{member}: other parameters are frozen than when the checkpoint's attempt began"
        for member in sorted(now["frozen"].keys() - same)
        if member in before["frozen"]
    ]
    return Changes(
        sentences=tuple(each[:CHANGE_CHARS_MAX] for each in sentences[:CHANGES_MAX]),
        then=before,
        now=now,
        replayed=replayed,
        frozen={m: names for m, names in progress.get("frozen", {}).items() if m in same},
        modes={m: names for m, names in progress.get("modes", {}).items() if m in modes},
    )


def _check_classes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name, kind in now["classes"].items():
        was = before["classes"].get(name, kind)
        if was != kind and {was, kind} != {"Adam", "AdamW"}:  # which have one state
            raise CheckpointMismatch(
                f"{name} is a {kind} and the checkpoint is of a {was}: its state is another one. "
                f"Build a {was}, or start a run of its own from the weights."
            )
    for name, groups in now["optimizers"].items():
        for path, (then, value) in changed_leaves(
            before["optimizers"].get(name, groups), groups
        ).items():
            is_on = not then and value and then is not MISSING
            if is_on and (path[1] in _WITH_A_STATE or (now["classes"][name], path[1]) == _RMSPROPS):
                raise CheckpointMismatch(
                    f"{name}: {path[1]} {then!r} → {value!r} needs a state that the checkpoint lacks. "
                    "Leave it as it was, or start a run of its own from the weights."
                )


def apply_changes(trained: Trained, changes: Changes) -> None:
    """Bring what was restored to what is built now; nothing is touched where both are equal."""
    then, now = changes.then, changes.now
    schedulers = dict(_schedulers(trained))
    for name, each in schedulers.items():
        if name in changes.replayed:
            each.load_state_dict(put_together(changes.replayed[name].state, {}))
        elif name in then["schedulers"]:
            _set_leaves(each, changed_leaves(then["schedulers"][name], now["schedulers"][name]))
    by_optimizer = {each.optimizer: each.groups for each in changes.replayed.values()}
    for name, optimizer in trained.optimizers.items():
        before = then["optimizers"].get(name, {})
        if before != now["optimizers"][name] or name in by_optimizer:
            _set_groups(optimizer, trained, before, now["optimizers"][name], by_optimizer.get(name))
    for name, scaler in _scalers(trained):
        if differs := _of_scaler(then, now, name):
            scaler.load_state_dict(with_leaves(scaler.state_dict(), differs))
    for member, names in changes.frozen.items():
        frozen = set(names)
        for name, parameter in named_parameters(trained.modules[member]):
            if parameter.requires_grad == (name in frozen):
                parameter.requires_grad_(name not in frozen)
    for member, names in changes.modes.items():
        for name, part in trained.modules[member].named_modules():
            part.training = clean_name(name) not in names


def unused_numbers(trained: Trained, built: Built) -> tuple[str, ...]:
    """Return what stays as an older version's checkpoint has it, and is built otherwise now."""
    now = _decoded(built.values)["optimizers"]
    sentences = []
    for name, optimizer in trained.optimizers.items():
        differs = changed_leaves(_groups(optimizer, trained), now[name])
        shown = {path[1:]: pair for path, pair in differs.items() if path[1] not in RATES}
        why = "is not used: the checkpoint is of an older version, and its value holds"
        sentences += [f"{name}: {line} {why}" for line in _lines(shown)]
    return tuple(each[:CHANGE_CHARS_MAX] for each in sentences[:CHANGES_MAX])


def in_use(trained: Trained) -> dict[str, Json]:
    """Return the numbers that the first step begins with: of optimizers, schedulers and the scaler.

    Groups of equal numbers are one, with how many `parameters` they have.
    """
    found: dict[str, Json] = {}
    for name, optimizer in trained.optimizers.items():
        groups: dict[bytes, dict[str, Json]] = {}
        for group in optimizer.param_groups:
            shown = _finite({k: v for k, v in numbers(group).items() if v is not None})
            shown = groups.setdefault(canonical_json(shown), shown)
            shown["parameters"] = shown.get("parameters", 0) + len(group["params"])
        found[name] = list(groups.values())[:GROUPS_SHOWN_MAX]
    for name, each in _schedulers(trained):
        state = {k: v for k, v in each.state_dict().items() if not k.startswith("_")}
        simple = {k: v for k, v in numbers(state).items() if type(v) in (int, float, str)}
        found[name] = {"kind": type(each).__name__, **_finite(simple)}
    while len(canonical_json(found)) > IN_USE_BYTES_MAX:  # ends: each turn takes the last away
        found.popitem()
    return found


# --- what is built ---------------------------------------------------------------------------------


def _schedulers(trained: Trained) -> Iterator[tuple[str, Any]]:
    """Yield what moves rates, by name: `scheduler`, whatever it is, and further ones of torch's."""
    if trained.scheduler is not None:
        yield "scheduler", trained.scheduler
    for name, each in trained.named.items():
        if isinstance(each, LRScheduler):
            yield name, each


def _scalers(trained: Trained) -> Iterator[tuple[str, Any]]:
    """Yield the scalers of gradients by name."""
    if trained.scaler is not None:
        yield "scaler", trained.scaler
    for name, each in trained.states.items():
        if isinstance(each, GradScaler):
            yield name, each


def _others(trained: Trained) -> Iterator[tuple[str, Any]]:
    """Yield the states of the script's own that say it in a mapping; a loader may fork when asked."""
    for name, each in trained.states.items():
        is_known = isinstance(each, LRScheduler | GradScaler) or hasattr(each, "__iter__")
        if not is_known and isinstance(each.state_dict(), Mapping):
            yield name, each


def _groups(optimizer: Optimizer, trained: Trained) -> dict[str, dict[str, Any]]:
    """Return each group's numbers, by a digest of its parameters' names."""
    keys = group_keys(optimizer, trained)
    return {key: numbers(group) for key, group in zip(keys, optimizer.param_groups, strict=True)}


def group_keys(optimizer: Optimizer, trained: Trained) -> list[str]:
    """Return what names each group: a digest of its parameters' names, a count where it has none."""
    names = iter(parameter_names(optimizer, trained.parameters))
    keys: list[str] = []
    for group in optimizer.param_groups:
        members = [next(names) for _ in group["params"]]
        keys.append(group_key(members, len(keys)))
    return keys


def _finite(found: Mapping[str, Any]) -> dict[str, Json]:
    """Return numbers as JSON can say them: infinities and NaN as text."""
    return {
        key: str(v) if isinstance(v, float) and not math.isfinite(v) else v
        for key, v in found.items()
    }


def _decoded(values: Mapping[str, Json]) -> dict[str, Any]:
    """Return `Built.values` as Python's own values."""
    return {
        "optimizers": {n: put_together(each, {}) for n, each in values["optimizers"].items()},
        "schedulers": {
            name: {key: put_together(each, {}) for key, each in parts.items()}
            for name, parts in values["schedulers"].items()
        },
        "scalers": {n: put_together(each, {}) for n, each in values["scalers"].items()},
        "states": {n: put_together(each, {}) for n, each in values["states"].items()},
        "classes": dict(values["classes"]),
        "frozen": dict(values["frozen"]),
        "modes": dict(values["modes"]),
    }


def _factors(scheduler: Any) -> list[str | None]:
    """Return a digest of what each of the schedule's functions says: they are in no state dict."""
    nested = getattr(scheduler, "_schedulers", [])
    own = getattr(scheduler, "lr_lambdas", [])
    digests = {id(each): _values_of(each) for each in own}
    return [digests[id(each)] for each in own] + [
        each for part in nested for each in _factors(part)
    ]


def _values_of(function: Callable[[int], float]) -> str | None:
    try:
        found = [float(function(position)) for position in FACTORS_AT]
    except Exception:  # noqa: BLE001 - the script's own function, asked where it may not know
        return None
    return sha256_hex(repr(found).encode())[:16]


# --- what is changed -------------------------------------------------------------------------------


def _rates_differ(then: Mapping[str, Any], now: Mapping[str, Any], optimizer: str) -> bool:
    before, after = then["optimizers"].get(optimizer), now["optimizers"].get(optimizer)
    return before is not None and before != after


def _set_leaves(scheduler: Any, differs: Leaves) -> None:
    """Put changed numbers into a restored schedule; rates are multiplied by their ratio."""
    leaves = {path[1:]: pair for path, pair in differs.items() if path[0] == "state"}
    if leaves:
        scheduler.load_state_dict(with_leaves(scheduler.state_dict(), leaves))


def _set_groups(
    optimizer: Optimizer,
    trained: Trained,
    then: Mapping[str, Mapping[str, Any]],
    now: Mapping[str, Mapping[str, Any]],
    replayed: Sequence[Mapping[str, Any]] | None,
) -> None:
    keys = group_keys(optimizer, trained)
    for index, (key, group) in enumerate(zip(keys, optimizer.param_groups, strict=True)):
        before, after = then.get(key), now.get(key)
        if before is None or after is None:
            continue
        played = replayed[index] if replayed is not None and index < len(replayed) else {}
        for name, value in after.items():
            if name in played and (name in RATES or played[name] != value):
                put_number(group, name, played[name])  # the schedule's
            elif name not in before or equal(before[name], value):
                continue
            elif name in RATES:
                base = "initial_lr" if name == "lr" and "initial_lr" in before else name
                put_number(group, name, scaled(group[name], before[base], after[base]))
            else:
                put_number(group, name, value)


def _of_groups(name: str, differs: Leaves, keys: Sequence[str]) -> list[str]:
    """Return the changed numbers of groups; of several, with the group's number, equal ones once."""
    lines: dict[str, list[int]] = {}
    for path, pair in differs.items():
        (line,) = _lines({path[1:]: pair})
        lines.setdefault(line, []).append(keys.index(str(path[0])))
    if len(keys) == 1:
        return [f"{name}: {line}" for line in lines]
    return [f"{name}, group {', '.join(map(str, at))}: {line}" for line, at in lines.items()]


def _of_scaler(then: Mapping[str, Any], now: Mapping[str, Any], name: str) -> Leaves:
    """Return what a scaler is built with otherwise; where its scale begins is no more of concern."""
    differs = changed_leaves(then["scalers"].get(name, now["scalers"][name]), now["scalers"][name])
    return {path: pair for path, pair in differs.items() if path[:1] != ("scale",)}


def _lines(leaves: Leaves) -> list[str]:
    """Return a line for each change: `weight_decay 0.0 → 0.5`."""
    return _unique(
        f"{'.'.join(map(str, path))} {_shown(then)} → {_shown(now)}"
        for path, (then, now) in leaves.items()
    )


def _first_rates(differs: Leaves) -> Leaves:
    """Return the changed numbers of groups, of a group's rates the first alone."""
    rates: dict[str | int, str] = {}
    # A group that the checkpoint lacks has no number to compare; the restore refuses it by name.
    numbers = {path: pair for path, pair in differs.items() if len(path) > 1}
    for rate in RATES:
        for path in numbers:
            if path[1] == rate:
                rates.setdefault(path[0], rate)
    return {
        path: pair
        for path, pair in numbers.items()
        if path[1] not in RATES or rates[path[0]] == path[1]
    }


def _is_shown(path: Path) -> bool:
    """Whether people read of it: rates are shown with the optimizer, private parts follow others."""
    private = (each for each in path if isinstance(each, str) and each.startswith("_"))
    return not set(path) & set(RATE_LISTS) and set(private) <= {"_schedulers", "_milestones"}


def _shown(value: Any) -> str:
    return "none" if value is MISSING else f"{value:g}" if isinstance(value, float) else repr(value)


def _unique(lines: Iterator[str] | Sequence[str]) -> list[str]:
    return list(dict.fromkeys(lines))
