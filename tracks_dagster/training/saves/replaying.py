"""A schedule of torch's at a restored position, replayed with what it is built with now.

Nothing of the script moves: a copy steps a stand-in of its optimizer. Before that is believed, the same
copy is played with what was built then, and has to come to what was saved.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, MultiplicativeLR, ReduceLROnPlateau

from tracks_dagster.track.records import Json
from tracks_dagster.training.saves.leaves import (
    changed_leaves,
    numbers,
    put_number,
    simple,
    with_leaves,
)
from tracks_dagster.training.saves.optimizer_state import group_key
from tracks_dagster.training.saves.plain_state import put_together, take_apart
from tracks_dagster.training.saves.trained import Trained

POSITIONS_MAX = 1_000_000  # of a schedule that is replayed; some ten seconds of one core


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A schedule at the restored position. groups: the optimizer's numbers there, by group."""

    optimizer: str
    state: Json
    groups: Sequence[Mapping[str, Any]]


def detached(scheduler: Any, trained: Trained) -> tuple[LRScheduler, str] | None:
    """Return a copy of a schedule over a stand-in of its optimizer, and that optimizer's name.

    None for what cannot be replayed: it follows a metric, is not torch's, or cannot be copied.
    """
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        return None
    names = [name for name, each in trained.optimizers.items() if each is scheduler.optimizer]
    if not names:
        return None
    try:
        return _copied(scheduler, scheduler.optimizer), names[0]
    except Exception:  # noqa: BLE001 - a scheduler of the script's own may hold anything
        return None


def _copied(scheduler: LRScheduler, optimizer: Any) -> LRScheduler:
    """Return a copy that moves a stand-in with the groups of `optimizer`."""
    groups = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    stand_in = SimpleNamespace(
        param_groups=groups, defaults=optimizer.defaults, step=optimizer.step, _opt_called=True
    )
    shared = {id(each): each for each in _weak_references(scheduler)}
    copied = copy.deepcopy(scheduler, {id(scheduler.optimizer): stand_in, **shared})
    if hasattr(copied, "_init_scale_fn"):  # CyclicLR refers to a method of the original
        copied._init_scale_fn()
    return copied


def _weak_references(scheduler: Any) -> Iterator[object]:
    """Yield what cannot be copied."""
    yield from (each for each in vars(scheduler).values() if isinstance(each, weakref.ref))
    for nested in getattr(scheduler, "_schedulers", []):
        yield from _weak_references(nested)


def replay(
    schedule: tuple[LRScheduler, str],
    then: Mapping[str, Any],
    now: Mapping[str, Any],
    saved: Mapping[str, Json],
    *,
    name: str,
) -> Replayed | None:
    """Return the schedule as a run with what is built now would have it at the saved position.

    None where that is not known: played with what was built then, it does not come to what was saved,
    for it depends on more than the number of its steps.
    """
    try:
        return _replayed(schedule, then, now, saved, name=name)
    except Exception:  # noqa: BLE001 - torch's and the script's own; then nothing is replayed
        return None


def _replayed(
    schedule: tuple[LRScheduler, str],
    then: Mapping[str, Any],
    now: Mapping[str, Any],
    saved: Mapping[str, Json],
    *,
    name: str,
) -> Replayed | None:
    fresh, optimizer = schedule
    if not _has_no_tensor(saved[name]):
        return None
    state, saved_rates = put_together(saved[name], {}), _saved_rates(saved[optimizer])
    count = _position(state) - _position(fresh.state_dict())
    if not 0 <= count <= POSITIONS_MAX:
        return None
    built, keys = then["schedulers"][name], list(now["optimizers"][optimizer])
    rates = [saved_rates[key] for key in keys]
    if built["factors"] != now["schedulers"][name]["factors"]:  # what it was played with is gone
        is_product = isinstance(fresh, MultiplicativeLR)
        is_right = not is_product and _is_untouched(state, built["state"], rates)
    else:
        old = _copied(fresh, fresh.optimizer)
        old.load_state_dict(copy.deepcopy(_merged(old.state_dict(), built["state"])))
        groups = [then["optimizers"][optimizer][key] for key in keys]
        for group, each in zip(old.optimizer.param_groups, groups, strict=True):
            for key, value in each.items():
                put_number(group, key, value)
        _play(old, count)
        is_right = _is_as_saved(old, state, rates)
    if not is_right:
        return None
    new = _copied(fresh, fresh.optimizer)
    _play(new, count)
    played, tensors = take_apart(new.state_dict(), name=name)
    found = [numbers(group) for group in new.optimizer.param_groups]
    return None if tensors else Replayed(optimizer=optimizer, state=played, groups=found)


def _saved_rates(values: Json) -> dict[str, Any]:
    """Return the rate of each of a saved optimizer's groups, by the group's digest."""
    found: dict[str, Any] = {}
    for group in next(each for key, each in values["dict"] if key == "param_groups")["list"]:
        fields = dict(group["dict"])
        names = sorted(fields["params"]["list"])
        found[group_key(names, len(found))] = fields["lr"]
    return found


def _play(scheduler: LRScheduler, count: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            scheduler.step()


def _position(state: Mapping[str, Any]) -> int:
    if "last_epoch" in state:
        return int(state["last_epoch"])
    return _position(state["_schedulers"][0])


def _is_as_saved(scheduler: Any, state: Mapping[str, Any], rates: Sequence[Any]) -> bool:
    is_alike = not changed_leaves(simple(scheduler.state_dict()), simple(state))
    return is_alike and [group["lr"] for group in scheduler.optimizer.param_groups] == rates


def _is_untouched(state: Any, then: Mapping[str, Any], rates: Sequence[Any]) -> bool:
    """Tell whether the saved rates are those that a schedule by functions of the step had set itself,
    from the rates that it was built with."""
    if "_schedulers" in state or "base_lrs" not in state:
        return False
    return bool(state["base_lrs"] == then["base_lrs"] and state["_last_lr"] == rates)


def _has_no_tensor(values: Json) -> bool:
    """Tell whether a state is numbers and text alone."""
    if isinstance(values, dict):
        return "tensor" not in values and all(_has_no_tensor(v) for v in values.values())
    return not isinstance(values, list) or all(_has_no_tensor(each) for each in values)


def _merged(state: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the numbers of another one, which lacks what JSON cannot say."""
    merged: dict[str, Any] = with_leaves(state, changed_leaves(simple(state), other))
    return merged
