"""Where two states of numbers differ, as paths into their dicts and lists; and how to put one right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tracks_dagster.track.records import Json
from tracks_dagster.training.saves.plain_state import take_apart

RATE_LISTS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr")  # what a schedule has, by group
MISSING = object()

Path = tuple[str | int, ...]
Leaves = dict[Path, tuple[Any, Any]]  # what stood there, what stands there now


def changed_leaves(then: Any, now: Any, path: Path = ()) -> Leaves:
    """Return where two trees of dicts and lists differ; what only `then` has is left out."""
    if (
        isinstance(then, dict)
        and isinstance(now, dict)
        and (len(path) < 2 or then.keys() == now.keys())
    ):
        pairs = [(key, then.get(key, MISSING), each) for key, each in now.items()]
    elif isinstance(then, list | tuple) and isinstance(now, list | tuple) and len(then) == len(now):
        pairs = [(i, a, b) for i, (a, b) in enumerate(zip(then, now, strict=True))]
    else:
        return {} if equal(then, now) else {path: (then, now)}
    return {
        at: pair for key, a, b in pairs for at, pair in changed_leaves(a, b, (*path, key)).items()
    }


def equal(a: Any, b: Any) -> bool:
    """Tell whether two numbers are equal, as two NaN are."""
    are_nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    return bool(a == b) or are_nan


def with_leaves(tree: Any, leaves: Leaves) -> Any:
    """Return a tree with what stands now at each path; a rate keeps what a schedule made of it."""
    if not leaves:
        return tree
    if isinstance(tree, dict | list | tuple):
        by_key: dict[str | int, Leaves] = {}
        for path, pair in leaves.items():
            if path:
                by_key.setdefault(path[0], {})[path[1:]] = pair
        if isinstance(tree, dict):
            own = {k: _at(k, v, by_key.pop(k, {})) for k, v in tree.items()}
            return own | {k: each[()][1] for k, each in by_key.items() if () in each}
        return type(tree)(with_leaves(each, by_key.get(i, {})) for i, each in enumerate(tree))
    return leaves[()][1]


def _at(key: Any, value: Any, leaves: Leaves) -> Any:
    if key in RATE_LISTS and isinstance(value, list):
        pairs = {path[0]: pair for path, pair in leaves.items() if len(path) == 1}
        return [scaled(each, *pairs[i]) if i in pairs else each for i, each in enumerate(value)]
    if () in leaves:
        return leaves[()][1]
    return with_leaves(value, leaves)


def scaled(restored: Any, then: Any, now: Any) -> Any:
    """Return a restored rate as much higher or lower as it is built now."""
    if not all(isinstance(each, int | float) for each in (then, now)):
        return now
    if restored == then or not then:
        return now
    return restored * (now / then)


def put_number(group: dict[str, Any], key: str, value: Any) -> None:
    """Set a group's number; one that is a tensor stays the tensor that it is."""
    old = group.get(key)
    if isinstance(old, torch.Tensor):
        with torch.no_grad():
            old.fill_(value)
    else:
        group[key] = tuple(value) if isinstance(old, tuple) else value


def plain(tree: Any) -> Json:
    """Return a state as JSON; what no JSON can say is left out."""
    return take_apart(simple(tree), name="built")[0]


def simple(tree: Any) -> Any:
    """Return a state as dicts and lists of numbers and text; a tensor of one as a number, else None."""
    if isinstance(tree, Mapping):
        return {k: simple(v) for k, v in tree.items() if isinstance(k, str | int)}
    if isinstance(tree, list | tuple):
        return [simple(each) for each in tree]
    if isinstance(tree, torch.Tensor):
        return float(tree) if tree.numel() == 1 else None
    return tree if isinstance(tree, bool | int | float | str | type(None)) else None


def numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a group is None, numbers, flags, text, or lists of these."""
    found = {key: simple(value) for key, value in group.items() if key != "params"}
    return {k: value for k, value in found.items() if value is not None or group[k] is None}
