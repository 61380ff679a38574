"""The tensors that a model takes and returns, alone or in tuples, lists, mappings, dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from tracks_dagster.testing.finding import CannotCheck


def run(model: Callable[..., Any], inputs: Any) -> Any:
    """Call the model: a tuple is its arguments, a mapping its keyword arguments, else it is the one."""
    if isinstance(inputs, tuple):
        return model(*inputs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(inputs)


def parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what a nested value is made of, each with its path: `inputs['mask']`, `output[0]`."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from parts(each, f"{path}[{key!r}]")
    elif isinstance(value, tuple | list):
        for index, each in enumerate(value):
            yield from parts(each, f"{path}[{index}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from parts(getattr(value, each.name), f"{path}.{each.name}")
    else:
        yield path, value


def tensors(value: Any, path: str) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of a nested value with their paths, in its order."""
    return [(where, each) for where, each in parts(value, path) if isinstance(each, torch.Tensor)]


def state(model: object) -> list[tuple[str, torch.Tensor]]:
    """Return a module's parameters and buffers by name; of a plain function, none."""
    if not isinstance(model, nn.Module):
        return []
    return [*model.named_parameters(), *model.named_buffers()]


def changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of a nested value with every tensor put through `change`."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: changed(each, change) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(changed(each, change) for each in value))
    if isinstance(value, tuple | list):
        return type(value)(changed(each, change) for each in value)
    return value


def first_tensor(inputs: Any) -> torch.Tensor:
    """Return the first tensor of the inputs; raises CannotCheck where there is none."""
    for _, each in tensors(inputs, "inputs"):
        return each
    raise CannotCheck("The inputs hold no tensor; give a tensor, or a tuple or dict with some.")


def shape(tensor: torch.Tensor) -> str:
    """Return a tensor's shape, as (4, 8, 64)."""
    return f"({', '.join(map(str, tensor.shape))})"


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return how far apart two tensors are, element by element: 0 for equal ones, infinities and NaN
    included, inf for NaN against a number. float64."""
    left, right = a.detach().double(), b.detach().double()
    apart = (left - right).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    is_equal = (left == right) | (left.isnan() & right.isnan())
    return apart.masked_fill(is_equal, 0.0)
