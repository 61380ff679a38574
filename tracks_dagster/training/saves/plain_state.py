"""A state dict as JSON and tensors; and back. No pickle: what a file says can only be data."""

from __future__ import annotations

import base64
import enum
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from tracks_dagster.track.errors import TrainingError
from tracks_dagster.track.records import Json
from tracks_dagster.training.saves.forms import (
    check_class,
    check_savable,
    flatten,
    is_plain,
    rebuild,
)
from tracks_dagster.training.saves.stacking import (
    ROWS_MIN,
    named_class,
    named_tuple,
    stack,
    unstack,
)

Tensors = dict[str, torch.Tensor]


def take_apart(tree: Any, *, name: str, stacks: bool = False) -> tuple[Json, Tensors]:
    """Return (values, tensors) of a state dict; `name` begins each tensor's name.

    stacks: whether long lists of rows that are alike become one tensor a column (`stacking`).

    Numbers go into the manifest as JSON, tensors and numpy arrays beside them under a path-like name.

    Raises TrainingError naming what is neither a tensor, an array, bytes, JSON, nor a container of
    these.
    """
    tensors: Tensors = {}
    return _encode(tree, name, tensors, stacks), tensors


def put_together(values: Json, tensors: Tensors) -> Any:
    """Return the state dict that `take_apart` was given."""
    if not isinstance(values, dict):
        return values
    (tag, content) = next(iter(values.items()))
    return _DECODERS[tag](content, tensors)


def _encode(tree: Any, path: str, tensors: Tensors, stacks: bool = False) -> Json:
    match tree:  # the frequent ones first: training waits for this at every save
        case torch.Tensor():
            if not is_plain(tree):
                check_class(tree, path)  # nobody has one to read into
            return take_tensor(tree, path, tensors)
        case dict():  # keys may be numbers, which JSON would turn into text
            _check_keys(tree, path)
            tag = _dict_tag(tree, path)
            if (
                tag == "dict"
                and stacks
                and (column := _stacked(list(tree.values()), path, tensors))
            ):
                return {"stacked_dict": [list(tree), column]}
            items = [[k, _encode(v, f"{path}.{k}", tensors, stacks)] for k, v in tree.items()]
            return {tag: items}
        case list() | tuple() | deque():
            if hasattr(tree, "_fields"):
                parts = [_encode(v, f"{path}.{i}", tensors, stacks) for i, v in enumerate(tree)]
                return {"named": [named_tuple(tree, path), parts]}
            tag = next(name for name, kind in _SEQUENCES.items() if isinstance(tree, kind))
            limit = tree.maxlen if isinstance(tree, deque) else None
            if stacks and (column := _stacked(list(tree), path, tensors)):
                return {"stacked": [tag, limit, column]}
            items = [_encode(v, f"{path}.{i}", tensors, stacks) for i, v in enumerate(tree)]
            return {tag: [limit, items] if tag == "deque" else items}
        case enum.Enum() | np.str_() | np.bytes_():
            raise _comes_back_otherwise(tree, path)
        case None | bool() | str():
            return tree
        case np.generic():  # before float: numpy's float64 is one
            item = tree.item()
            if isinstance(item, np.generic):  # as of a longdouble, which Python has no number for
                raise _comes_back_otherwise(tree, path)
            return {"number": [tree.dtype.name, _encode(item, path, tensors)]}
        case float() if not math.isfinite(tree):
            return {"float": str(tree)}  # JSON has no infinity; a scheduler's "best so far" may
        case int() | float():
            return tree
        case np.ndarray():
            if isinstance(tree, np.ma.MaskedArray):
                raise _comes_back_otherwise(tree, path)
            return {"array": _named(path, _tensor(tree, path), tensors)}
        case torch.dtype():
            return {"dtype": str(tree).removeprefix("torch.")}
        case torch.device():
            return {"device": str(tree)}
        case bytes():
            return {"bytes": base64.b64encode(tree).decode("ascii")}
        case _:
            raise TrainingError(
                f"Cannot save {path}: a {type(tree).__name__} is neither a tensor nor JSON; "
                "keep it out of the state dict, or turn it into numbers."
            )


def _comes_back_otherwise(value: Any, path: str) -> TrainingError:
    return TrainingError(
        f"Cannot save {path}: a {type(value).__name__} would come back as something else; keep its "
        "value as a number, text or plain arrays."
    )


def take_tensor(tensor: torch.Tensor, path: str, tensors: Tensors) -> Json:
    """Take in a tensor, or what it is made of, under its path; return what finds it again.

    Raises TrainingError, with the cure, for what cannot be saved and restored.
    """
    if is_plain(tensor):
        return {"tensor": _named(path, tensor, tensors)}
    check_savable(tensor, path)
    what, parts = flatten(tensor, path)
    made_of = {name: take_tensor(each, f"{path}.{name}", tensors) for name, each in parts.items()}
    return {"form": [_encode(what, path, tensors), made_of]}


def _stacked(rows: list[Any], path: str, tensors: Tensors) -> Json | None:
    if len(rows) < ROWS_MIN:
        return None
    return stack(rows, path, lambda name, tensor: _named(name, tensor, tensors))


def _named(path: str, tensor: torch.Tensor, tensors: Tensors) -> str:
    """Take in a tensor under its path; return the path."""
    if path in tensors:
        raise TrainingError(f"Cannot save {path}: two tensors of the state have this name.")
    tensors[path] = tensor
    return path


def _tensor(array: np.ndarray[Any, Any], path: str) -> torch.Tensor:
    try:
        return torch.from_numpy(array.copy())  # a read-only one would warn
    except (TypeError, ValueError) as error:
        raise TrainingError(
            f"Cannot save {path}: an array of {array.dtype} has no tensor's type; turn it into numbers."
        ) from error


def _dict_tag(tree: dict[Any, Any], path: str) -> str:
    """Return how a mapping is said. Raises TrainingError for one that makes values when it is asked."""
    if isinstance(tree, defaultdict) and tree.default_factory is not None:
        factory = tree.default_factory
        if factory not in _FACTORIES:
            raise TrainingError(
                f"Cannot save {path}: a defaultdict of {factory!r} would come back without it; save "
                "dict(…) of it, and make the defaultdict again in load_state_dict."
            )
        return f"default_{factory.__name__}"
    if isinstance(tree, Counter):
        return "counter"
    return "ordered" if type(tree) is OrderedDict else "dict"


_FACTORIES = (int, float, list, dict, str, bool)


def _check_keys(tree: dict[Any, Any], path: str) -> None:
    for key in tree:
        if type(key) not in (str, int):
            raise TrainingError(
                f"Cannot save {path}: {key!r} is a {type(key).__name__}, and a state dict's keys must "
                "be text or whole numbers."
            )


def _put_form(content: Json, tensors: Tensors) -> torch.Tensor:
    what, made_of = content
    parts = {name: put_together(each, tensors) for name, each in made_of.items()}
    return rebuild(put_together(what, tensors), parts)


def _put_default(factory: Any, content: Json, tensors: Tensors) -> Any:
    return defaultdict(factory, {k: put_together(v, tensors) for k, v in content})


_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "deque": deque}


def _put_stacked(content: Json, tensors: Tensors) -> Any:
    tag, limit, column = content
    rows = unstack(column, tensors)
    return deque(rows, limit) if tag == "deque" else _SEQUENCES[tag](rows)


_DECODERS: dict[str, Callable[[Json, Tensors], Any]] = {
    "tensor": lambda content, tensors: tensors[content],
    "array": lambda content, tensors: tensors[content].numpy(),
    "number": lambda content, tensors: np.dtype(content[0]).type(put_together(content[1], tensors)),
    "dict": lambda content, tensors: {k: put_together(v, tensors) for k, v in content},
    "list": lambda content, tensors: [put_together(v, tensors) for v in content],
    "bytes": lambda content, tensors: base64.b64decode(content),
    "float": lambda content, tensors: float(content),
    "form": _put_form,
    "stacked": _put_stacked,
    "stacked_dict": lambda content, tensors: dict(
        zip(content[0], unstack(content[1], tensors), strict=True)
    ),
    "counter": lambda content, tensors: Counter({k: put_together(v, tensors) for k, v in content}),
    "ordered": lambda content, tensors: OrderedDict(
        (k, put_together(v, tensors)) for k, v in content
    ),
    "named": lambda content, tensors: named_class(content[0])._make(
        put_together(v, tensors) for v in content[1]
    ),
    **{f"default_{each.__name__}": partial(_put_default, each) for each in _FACTORIES},
    "deque": lambda content, tensors: deque(
        (put_together(v, tensors) for v in content[1]), content[0]
    ),
    "dtype": lambda content, tensors: getattr(torch, content),
    "device": lambda content, tensors: torch.device(content),
    "tuple": lambda content, tensors: tuple(put_together(v, tensors) for v in content),
}
