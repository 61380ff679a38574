"""The tensors that a model takes and returns, alone or in tuples, lists, mappings, dataclasses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tracks_dagster.testing.finding import CannotCheck

ROUNDINGS = 64  # of a value as large as a tensor's largest: less is taken for the same value,
ROUNDING_SHARE_MAX = 0.01  # but no more than this share of it, as 64 of bfloat16 are a half

# What torch.compile, activation checkpointing and FSDP put into a name; DistributedDataParallel's
# `module` is a name that people give too, so it goes at the beginning only.
_WRAPPERS = r"(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\."
WRAPPERS = re.compile(rf"\A(?:module\.|{_WRAPPERS})+|(?<=\.)(?:{_WRAPPERS})+")


def run(model: Callable[..., Any], inputs: Any) -> Any:
    """Call the model with a copy of its inputs: it may write into them (`ReLU(inplace=True)`)."""
    return call(model, fresh(inputs))


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Call the model: a tuple is its arguments, a mapping its keyword arguments, anything else is one,
    a named tuple (`PackedSequence`) too."""
    if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
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


def returned(output: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of what a model returned; raises CannotCheck where there is none."""
    found = tensors(output, "output")
    if not found:
        raise CannotCheck(
            f"The model returned {type(output).__name__}, in which no tensor can be seen. Check a "
            "module that returns tensors: alone, or in a tuple, list, mapping or dataclass."
        )
    return found


def own_name(name: str) -> str:
    """Return the name of a parameter without what wrappers put into it."""
    return WRAPPERS.sub("", name)


def check_paths(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise CannotCheck for a path that an option names and that there is not."""
    paths = list(dict.fromkeys(known))
    for path in given:
        if path not in paths:
            raise CannotCheck(
                f"{option}= names {path!r}, and there is none; there are {', '.join(paths)}."
            )


def state(model: object) -> list[tuple[str, torch.Tensor]]:
    """Return a module's parameters and buffers by name; of a plain function, none."""
    if not isinstance(model, nn.Module):
        return []
    found = [*model.named_parameters(), *model.named_buffers()]
    for name, each in found:
        if is_lazy(each):
            raise CannotCheck(
                f"{name} of a lazy layer has no values yet: call it once before the check."
            )
    return found


def changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of a nested value with every tensor put through `change`."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        items = {key: changed(each, change) for key, each in value.items()}
        if not isinstance(value, MutableMapping) or type(value) is dict:
            return items
        same = copy(value)  # a batch of a tokenizer is read by its attributes
        for key, each in items.items():
            same[key] = each
        return same
    if is_dataclass(value) and not isinstance(value, type):
        other: Any = copy(value)
        for field in fields(value):
            object.__setattr__(other, field.name, changed(getattr(value, field.name), change))
        return other
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(changed(each, change) for each in value))
    if isinstance(value, tuple | list):
        return type(value)(changed(each, change) for each in value)
    return value


def fresh(inputs: Any) -> Any:
    """Return a copy of the inputs, whose gradients are not gradients of the inputs."""
    return changed(inputs, lambda each: each.detach().clone().requires_grad_(each.requires_grad))


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return an ordinary tensor in place of a sparse, quantised or sharded one."""
    if hasattr(tensor, "full_tensor"):  # a DTensor, of which each rank has a part and calls this
        tensor = tensor.full_tensor()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def largest(tensor: torch.Tensor) -> float:
    """Return the largest absolute value that is finite, 0 where there is none."""
    finite = tensor[tensor.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def rounding(tensor: torch.Tensor, size: float = 0.0) -> float:
    """Return a change that rounding alone may make of a tensor, or of values as large as `size`."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    share = min(ROUNDINGS * torch.finfo(tensor.dtype).eps, ROUNDING_SHARE_MAX)
    return share * max(largest(tensor), size)


def module(model: object) -> nn.Module:
    """Return the model; raises CannotCheck for a function, which has no parameters."""
    if isinstance(model, nn.Module):
        return model
    raise CannotCheck(
        f"This check looks at the parameters of an nn.Module, and {type(model).__name__} is not one."
    )


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
    a, b = a.detach(), b.detach()
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    left, right = a.to(wide), b.to(wide)
    apart = (left - right).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    if a.dtype == b.dtype and not (a.is_floating_point() or a.is_complex()):
        is_equal = a == b  # int64 has more digits than float64
    else:
        is_equal = (left == right) | (left.isnan() & right.isnan())
    return apart.clamp_min(torch.finfo(apart.dtype).tiny).masked_fill(is_equal, 0.0)
