"""Takes a state dict apart into JSON and named tensors, and puts it together again, exactly.

Optimizers and schedulers nest dicts, lists and tuples around tensors and numbers. The numbers go
into the manifest as JSON, tensors beside them under a path-like name. No pickle: what JSON cannot
say is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tracks_dagster.track.errors import TrainingError
from tracks_dagster.track.records import Json

Tensors = dict[str, torch.Tensor]


def take_apart(tree: Any, *, name: str) -> tuple[Json, Tensors]:
    """Return (values, tensors) of a state dict; `name` begins each tensor's name.

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
