"""Long lists of rows that are alike, as of a replay buffer, as columns: a tensor each, not one a row.

A tensor costs a manifest some 480 bytes of JSON, so 24 000 transitions of three arrays each would cost
35 MB at every save.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tracks_dagster.track.errors import CheckpointMismatch, TrainingError
from tracks_dagster.track.records import Json

ROWS_MIN = 64  # of a shorter list each row is saved by itself, so that it reads well
Keep = Callable[[str, torch.Tensor], str]  # takes in a tensor under a path; returns the path

ROW_BYTES_MAX = 65536  # of one row's array: what is larger is worth an entry of its own


def stack(rows: Sequence[Any], path: str, keep: Keep) -> Json | None:
    """Return the rows as columns, with their tensors taken in; None where the rows are not alike.

    Arrays may differ in shape, not in type. Nothing is taken in where it returns None.
    """
    taken: list[tuple[str, torch.Tensor]] = []

    def note(name: str, tensor: torch.Tensor) -> str:
        taken.append((name, tensor))
        return name

    column = _column(rows, path, note)
    if column is not None:
        for name, tensor in taken:
            keep(name, tensor)
    return column


def unstack(column: Json, tensors: dict[str, torch.Tensor]) -> list[Any]:
    """Return the rows of what `stack` returned; each array has memory of its own."""
    (kind, content) = next(iter(column.items()))
    match kind:
        case "arrays":
            return [each.copy() for each in _cut(tensors[content[0]].numpy(), content[1])]
        case "tensors":
            return [each.clone() for each in _cut(tensors[content[0]], content[1])]
        case "scalars":
            return list(tensors[content].numpy())
        case "floats":
            return [float(each) for each in tensors[content].tolist()]
        case "list":
            return list(content)
        case "same":
            value, count = content
            return [value] * count
        case "tuple" | "rows":
            made = {"tuple": tuple, "rows": list}[kind]
            return [made(row) for row in zip(*(unstack(c, tensors) for c in content), strict=True)]
        case "named":
            where, columns = content
            made = named_class(where)._make
            return [made(row) for row in zip(*(unstack(c, tensors) for c in columns), strict=True)]
        case _:
            keys, columns = content
            rows = zip(*(unstack(each, tensors) for each in columns), strict=True)
            return [dict(zip(keys, row, strict=True)) for row in rows]


def named_tuple(value: Any, path: str) -> str:
    """Return the class of a named tuple as `module:name`; raises TrainingError where it has none."""
    where = f"{type(value).__module__}:{type(value).__qualname__}"
    if _class_at(where) is not type(value):
        raise TrainingError(
            f"Cannot save {path}: the named tuple {where} is not found by its name; define it at the "
            "top of a module, or save plain tuples."
        )
    return where


def named_class(where: str) -> Any:
    """Return the class of named tuples that `named_tuple` named; nothing is imported for it."""
    found = _class_at(where)
    if found is None:
        raise CheckpointMismatch(
            f"The checkpoint holds named tuples of {where}, which this script has not; define it as "
            "when it was saved."
        )
    return found


def _class_at(where: str) -> Any:
    module, _, name = where.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    is_one = isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")
    return found if is_one else None


def _column(rows: Sequence[Any], path: str, keep: Keep) -> Json | None:
    kinds = set(map(type, rows))
    kind = kinds.pop()
    if kinds:
        return None
    if kind is np.ndarray:
        return _arrays(rows, path, keep)
    if kind is torch.Tensor:
        return _tensors(rows, path, keep)
    if issubclass(kind, np.generic) and kind is not np.str_ and kind is not np.bytes_:
        return _numpy_scalars(rows, path, keep)
    if kind is float:
        return {"floats": keep(path, torch.tensor(rows, dtype=torch.float64))}
    if kind in (int, bool, str):
        first = rows[0]
        return {"same": [first, len(rows)]} if set(rows) == {first} else {"list": list(rows)}
    if kind is type(None):
        return {"same": [None, len(rows)]}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        columns = _nested(rows, path, keep, "tuple")
        return columns and {"named": [named_tuple(rows[0], path), columns["tuple"]]}
    if kind in (tuple, list):
        return _nested(rows, path, keep, "tuple" if kind is tuple else "rows")
    return _dicts(rows, path, keep) if kind is dict else None


def _arrays(rows: Sequence[Any], path: str, keep: Keep) -> Json | None:
    if len({each.dtype for each in rows}) > 1 or max(each.nbytes for each in rows) > ROW_BYTES_MAX:
        return None
    try:
        joined = torch.from_numpy(np.concatenate([each.reshape(-1) for each in rows]))
    except (TypeError, ValueError):
        return None
    return {"arrays": [keep(path, joined), _shapes(rows)]}


def _tensors(rows: Sequence[Any], path: str, keep: Keep) -> Json | None:
    are_plain = all(
        each.layout is torch.strided and each.device.type == "cpu" and not each.requires_grad
        for each in rows
    )
    if not are_plain or len({each.dtype for each in rows}) > 1:
        return None
    if max(each.nbytes for each in rows) > ROW_BYTES_MAX:
        return None
    joined = torch.cat([each.reshape(-1) for each in rows])
    return {"tensors": [keep(path, joined), _shapes(rows)]}


def _numpy_scalars(rows: Sequence[Any], path: str, keep: Keep) -> Json | None:
    try:
        return {"scalars": keep(path, torch.from_numpy(np.array(rows)))}
    except TypeError:
        return None


def _nested(rows: Sequence[Any], path: str, keep: Keep, tag: str) -> Json | None:
    if len(set(map(len, rows))) > 1 or not rows[0]:
        return None
    columns = [_column(each, f"{path}.{i}", keep) for i, each in enumerate(zip(*rows, strict=True))]
    return None if None in columns else {tag: columns}


def _dicts(rows: Sequence[Any], path: str, keep: Keep) -> Json | None:
    keys = list(rows[0])
    if not keys or any(list(each) != keys for each in rows):
        return None
    if any(type(key) not in (str, int) for key in keys):
        return None
    columns = [_column([row[key] for row in rows], f"{path}.{key}", keep) for key in keys]
    return None if None in columns else {"dicts": [keys, columns]}


def _shapes(rows: Sequence[Any]) -> Json:
    """Return the shape that all have, or the shape of each."""
    shapes = [list(each.shape) for each in rows]
    is_one = all(each == shapes[0] for each in shapes)
    return {"each": shapes[0], "count": len(shapes)} if is_one else {"all": shapes}


def _cut(joined: Any, shapes: Json) -> Any:
    if "each" in shapes:
        return joined.reshape(shapes["count"], *shapes["each"])
    found, begin = [], 0
    for shape in shapes["all"]:
        size = int(np.prod(shape))
        found.append(joined[begin : begin + size].reshape(shape))
        begin += size
    return found
