"""A state dict as JSON and tensors; and back. No pickle: what a file says can only be data."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tracks_dagster.track.errors import TrainingError
from tracks_dagster.track.records import Json

Tensors = dict[str, torch.Tensor]


def take_apart(tree: Any, *, name: str) -> tuple[Json, Tensors]:
    """Return (values, tensors) of a state dict; `name` begins each tensor's name.

    Numbers go into the manifest as JSON, tensors and numpy arrays beside them under a path-like name.

    Raises TrainingError naming what is neither a tensor, an array, bytes, JSON, nor a container of
    these.
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
    match tree:  # the frequent ones first: training waits for this at every save
        case torch.Tensor():
            return {"tensor": _named(path, tree, tensors)}
        case dict():  # keys may be numbers, which JSON would turn into text
            _check_keys(tree, path)
            return {"dict": [[k, _encode(v, f"{path}.{k}", tensors)] for k, v in tree.items()]}
        case list() | tuple():
            tag = "list" if isinstance(tree, list) else "tuple"
            return {tag: [_encode(v, f"{path}.{i}", tensors) for i, v in enumerate(tree)]}
        case None | bool() | str():
            return tree
        case np.generic():  # before float: numpy's float64 is one
            return {"number": [tree.dtype.name, _encode(tree.item(), path, tensors)]}
        case float() if not math.isfinite(tree):
            return {"float": str(tree)}  # JSON has no infinity; a scheduler's "best so far" may
        case int() | float():
            return tree
        case np.ndarray():
            return {"array": _named(path, _tensor(tree, path), tensors)}
        case bytes():
            return {"bytes": base64.b64encode(tree).decode("ascii")}
        case _:
            raise TrainingError(
                f"Cannot save {path}: a {type(tree).__name__} is neither a tensor nor JSON; "
                "keep it out of the state dict, or turn it into numbers."
            )


def _named(path: str, tensor: torch.Tensor, tensors: Tensors) -> str:
    """Take in a tensor under its path; return the path."""
    if path in tensors:
        raise TrainingError(f"Cannot save {path}: two tensors of the state have this name.")
    tensors[path] = tensor
    return path


def _tensor(array: np.ndarray[Any, Any], path: str) -> torch.Tensor:
    try:
        return torch.from_numpy(array.copy())  # a read-only one would warn
    except TypeError as error:
        raise TrainingError(
            f"Cannot save {path}: an array of {array.dtype} has no tensor's type; turn it into numbers."
        ) from error


def _check_keys(tree: dict[Any, Any], path: str) -> None:
    for key in tree:
        if type(key) not in (str, int):
            raise TrainingError(
                f"Cannot save {path}: {key!r} is a {type(key).__name__}, and a state dict's keys must "
                "be text or whole numbers."
            )


_DECODERS: dict[str, Callable[[Json, Tensors], Any]] = {
    "tensor": lambda content, tensors: tensors[content],
    "array": lambda content, tensors: tensors[content].numpy(),
    "number": lambda content, tensors: np.dtype(content[0]).type(put_together(content[1], tensors)),
    "dict": lambda content, tensors: {k: put_together(v, tensors) for k, v in content},
    "list": lambda content, tensors: [put_together(v, tensors) for v in content],
    "bytes": lambda content, tensors: base64.b64decode(content),
    "float": lambda content, tensors: float(content),
    "tuple": lambda content, tensors: tuple(put_together(v, tensors) for v in content),
}
