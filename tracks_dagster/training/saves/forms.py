"""Tensors that are not a plain block of numbers: what they are made of, and made again of it.

Sparse ones are indices and values; a wrapper subclass, as of 8-bit optimizers, is what its own
`__tensor_flatten__` gives. Quantized and nested ones, and those without data, are refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tracks_dagster.track.errors import CheckpointMismatch, TrainingError

Parts = dict[str, torch.Tensor]
_ORDINARY = (torch.Tensor, torch.nn.Parameter)
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is saved as it is; a sharded one is. Asked of each at every save."""
    if type(tensor) in _ORDINARY:
        return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)
    if isinstance(tensor, DTensor):
        return True
    is_special = is_lazy(tensor) or is_traceable_wrapper_subclass(tensor)
    return tensor.layout is torch.strided and not (is_special or tensor.is_nested)


def check_savable(tensor: torch.Tensor, name: str) -> None:
    """Raise TrainingError, with the cure, for what cannot be saved and restored."""
    if is_lazy(tensor):
        why = (
            "it has no shape yet, for no batch has gone through its module; use it, or leave it out"
        )
    elif tensor.is_quantized:
        why = "it is quantized; keep its int_repr(), scale and zero point in buffers of their own"
    elif tensor.is_nested:
        why = "it is nested; keep its values() and offsets() in buffers of their own"
    elif tensor.is_meta:
        why = "it has no data, for it is on the device meta; make it before a.register"
    else:
        return
    raise TrainingError(f"Cannot save {name}: {why}.")


def is_expanded(tensor: torch.Tensor) -> bool:
    """Tell whether one element stands for several, as after `expand`."""
    if isinstance(tensor, DTensor) or not is_plain(tensor):
        return False
    return any(
        n > 1 and stride == 0 for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def unexpanded(tensor: torch.Tensor) -> torch.Tensor:
    """Return the view of a tensor that has each element of its memory once."""
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def flatten(tensor: torch.Tensor, name: str) -> tuple[dict[str, Any], Parts]:
    """Return what a tensor that is not plain is (numbers, text, dtypes), and its parts by name."""
    if tensor.layout is torch.sparse_coo:
        what = {"layout": "coo", "size": list(tensor.shape), "coalesced": tensor.is_coalesced()}
        return what, {"indices": tensor._indices(), "values": tensor._values()}
    if tensor.layout in _COMPRESSED:
        what = {"layout": str(tensor.layout).rpartition("_")[2], "size": list(tensor.shape)}
        names = _COMPRESSED[tensor.layout]
        parts = {name: getattr(tensor, name)() for name in names}
        return what, {**parts, "values": tensor.values()}
    if not hasattr(tensor, "__tensor_flatten__"):
        raise TrainingError(f"Cannot save {name}: its layout {tensor.layout} is not known.")
    kind = type(tensor)
    attributes, context = tensor.__tensor_flatten__()
    what = {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "context": context,
        "size": list(tensor.shape),
        "stride": list(tensor.stride()),
    }
    return what, {each: getattr(tensor, each) for each in attributes}


def check_class(tensor: torch.Tensor, name: str) -> None:
    """Raise TrainingError for a class that `rebuild` would not find by its name."""
    kind = type(tensor)
    where = f"{kind.__module__}:{kind.__qualname__}"
    if hasattr(tensor, "__tensor_flatten__") and _class_of(where) is not kind:
        raise TrainingError(
            f"Cannot save {name}: its class {where} is not found by its name; define it at the top of "
            "a module."
        )


def rebuild(what: Mapping[str, Any], parts: Parts) -> torch.Tensor:
    """Return the tensor that `flatten` was given. Raises CheckpointMismatch for an unknown class.

    The class is looked up among what the script has imported; nothing is imported for it.
    """
    size = what["size"]
    if what.get("layout") == "coo":
        indices, values = parts["indices"], parts["values"]
        return torch.sparse_coo_tensor(
            indices, values, size, is_coalesced=what["coalesced"], check_invariants=False
        )
    if "layout" in what:
        layout = getattr(torch, f"sparse_{what['layout']}")
        compressed, plain = _COMPRESSED[layout]
        return torch.sparse_compressed_tensor(
            parts[compressed],
            parts[plain],
            parts["values"],
            size,
            layout=layout,
            check_invariants=False,
        )
    kind = _class_of(what["class"])
    if kind is None:
        raise CheckpointMismatch(
            f"The checkpoint holds a tensor of the class {what['class']}, which this script has not "
            "imported; import it before a.steps(…)."
        )
    made: torch.Tensor = kind.__tensor_unflatten__(parts, what["context"], size, what["stride"])
    return made


def _class_of(where: str) -> Any:
    """Return a tensor's class by `module:name`, or None."""
    module, _, name = where.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    is_one = isinstance(found, type) and issubclass(found, torch.Tensor)
    return found if is_one and hasattr(found, "__tensor_unflatten__") else None
