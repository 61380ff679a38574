"""Checks that two ways to the same values agree: paths through a model, readings of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from tracks_dagster.testing.finding import CannotCheck, Finding, check, describe
from tracks_dagster.testing.running import SEED, one_number, seeded, untouched
from tracks_dagster.testing.values import (
    dense,
    distance,
    largest,
    own_name,
    parts,
    rounding,
    run,
    shape,
)

BATCHES = 3
FACTOR_NOISE = 1e-3  # a difference is one factor where this share of it, or less, is left


@check
def check_same(
    path_a: Callable[..., Any],
    path_b: Callable[..., Any],
    inputs: Any = (),
    *,
    rtol: float | None = None,
    atol: float | None = None,
    names: tuple[str, str] = ("a", "b"),
    seeds: tuple[int, int] = (SEED, SEED),
) -> None:
    """Raise Finding where two paths from the same inputs do not lead to the same values.

        check_same(model, torch.compile(model), x)
        check_same(whole_step, accumulated_step, batch, names=("whole", "accumulated"))
        check_same(model.eval(), model, x, seeds=(0, 1))  # nothing random is left on

    A module is compared by its outputs and by the gradients of its parameters, of a random weighted
    sum of the outputs; a function by all the tensors, arrays and numbers that it returns, so a step
    returns its loss and its gradients by name; a gradient that is None counts as 0. Both start from
    the same random numbers, unless `seeds` differ, and modules are left as they were. Dtype and
    device may differ. rtol, atol: as of `torch.testing.assert_close`; without both, values may be
    64 roundings apart (float32: 8e-6) of the largest of their tensor, or of a tensor of usual size:
    a gradient that should be 0 is nothing but rounding.

    Raises CannotCheck where the two do not return values under the same names.
    """
    a, b = (_values(path, inputs, seed) for path, seed in zip((path_a, path_b), seeds, strict=True))
    alone = sorted(name for name in a.keys() ^ b.keys() if a.get(name, b.get(name)) is not None)
    if alone or all(each is None for each in (*a.values(), *b.values())):
        only = alone[:4] or ["nothing at all"]
        raise CannotCheck(
            f"The two paths do not return the same things: only one has {', '.join(only)}. Give "
            "functions that return what is to be equal, under equal names."
        )
    problems, usual = [], _usual_size(a.values())
    for path, left in a.items():
        right = b.get(path)
        if left is None or right is None:
            there, of = (left, names[1]) if right is None else (right, names[0])
            if there is not None and there.any():
                problems.append(f"{path} {shape(there)}: there is none in {of}")
        elif not _are_close(left, right, rtol, atol, usual):
            problems.append(f"{path} {shape(left)}: {_difference(left, right, names)}")
    if problems:
        raise Finding(
            describe(
                f"{len(problems)} of {len(a)} tensors differ between {names[0]} and {names[1]}:",
                problems,
                "a sum where a mean was meant; a shard, a bias or a micro-batch that is summed once "
                "too often; a value that one path drops, reorders or rounds; other dropout.",
            )
        )


def _values(path: Callable[..., Any], inputs: Any, seed: int) -> dict[str, torch.Tensor | None]:
    """Return what a path leads to, by name, on the CPU."""
    with untouched(path), seeded(seed):
        output = run(path, inputs)
        found = dict(parts(output, "output"))
        if isinstance(path, nn.Module):
            with seeded():  # of both paths the same sum
                total = one_number(output)
            if total is not None:
                total.backward()  # type: ignore[no-untyped-call]
            for name, each in path.named_parameters():
                found[f"gradient of {own_name(name)}"] = each.grad
        return {
            name: None if each is None else dense(torch.as_tensor(each)).detach().clone().cpu()
            for name, each in found.items()
            if each is None or _is_numbers(each)
        }


def _is_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, torch.Tensor | bool | int | float | complex)


def _usual_size(values: Iterable[torch.Tensor | None]) -> float:
    """Return the largest value of the tensor in the middle, by that; 0 where all are 0.

    Between accumulated and whole, compiled and eager, one attention and another, all gradients of a
    GPT lay 5 roundings of it apart at most; those of a key's bias, which are 0 but for rounding, ten
    million of their own.
    """
    sizes = sorted(size for each in values if each is not None and (size := largest(each)))
    return sizes[(len(sizes) - 1) // 2] if sizes else 0.0


def _are_close(
    a: torch.Tensor, b: torch.Tensor, rtol: float | None, atol: float | None, usual: float
) -> bool:
    if rtol is None and atol is None:
        if a.shape != b.shape or a.isnan().any() or b.isnan().any():
            return False
        apart = distance(a, b)
        return not apart.numel() or bool(apart.max() <= max(rounding(a, usual), rounding(b, usual)))
    try:  # it takes both or none
        torch.testing.assert_close(
            b, a, rtol=rtol or 0.0, atol=atol or 0.0, check_dtype=False, check_device=False
        )
    except AssertionError:
        return False
    return True


def _difference(a: torch.Tensor, b: torch.Tensor, names: tuple[str, str]) -> str:
    if a.shape != b.shape:
        return f"{names[1]} has the shape {shape(b)}"
    left, right = (
        (torch.view_as_real(each.resolve_conj()) if each.is_complex() else each).double()
        for each in (a, b)
    )
    if left.shape != right.shape:
        return f"{names[0]} is {a.dtype}, {names[1]} {b.dtype}"
    length = float((left * left).sum())
    factor = float((left * right).sum()) / length if length else 0.0
    rest = float((right - factor * left).norm()) / (float((right - left).norm()) or 1.0)
    if rest <= FACTOR_NOISE:
        return f"{names[1]} is {factor:.4g} times {names[0]}"
    apart = distance(a, b)
    at = np.unravel_index(int(apart.argmax()), tuple(a.shape)) if a.dim() else ()
    place = tuple(int(each) for each in at)
    return (
        f"{a[place].item():.6g} and {b[place].item():.6g} at {list(place)}, the largest difference"
    )


@check
def check_deterministic(
    make: Callable[[], Any], *, seed: int = SEED, batches: int = BATCHES
) -> None:
    """Raise Finding where the same seed does not give the same batches, to the bit.

        check_deterministic(lambda: DataLoader(MyData(seed=7), shuffle=True))

    make: makes the data again and returns one batch (a tensor, tuple, list, mapping or dataclass) or
    something to iterate over, of which the first few batches count. It is called twice, each time
    after the generators of Python, numpy and torch were seeded. Both calls are in this process, so
    an order that differs from process to process (of a set of strings) is not found.
    """
    first, second = (_batches(make, seed, batches) for _ in range(2))
    if not first:
        raise CannotCheck("There is no batch in what make() returned.")
    problems = []
    for path in dict.fromkeys((*first, *second)):
        if path not in first or path not in second:
            problems.append(f"{path} is there in one of the two only")
        elif difference := _unequal(first[path], second[path]):
            problems.append(f"{path}: {difference}")
    if problems:
        raise Finding(
            describe(
                f"Two readings with the same seed ({seed}) differ:",
                problems,
                "a generator of its own that nobody seeds (np.random.default_rng(), random.Random()), "
                "the time of day, the order of a set or of os.listdir.",
            )
        )


def _batches(make: Callable[[], Any], seed: int, count: int) -> dict[str, Any]:
    """Return the values of the first batches by their paths."""
    with seeded(seed):
        made = make()
        is_one = isinstance(made, torch.Tensor | np.ndarray | Mapping | tuple | list)
        is_one = is_one or (is_dataclass(made) and not isinstance(made, type | Iterable))
        if not is_one and not isinstance(made, Iterable):
            raise CannotCheck(f"make() returned {type(made).__name__}, which is not a batch.")
        taken = [made] if is_one else list(islice(made, count))
        return {
            path: each
            for number, batch in enumerate(taken, start=1)
            for path, each in parts(batch, f"batch {number}")
        }


def _unequal(a: Any, b: Any) -> str:
    """Return how two values differ, "" where they are the same to the bit; raises CannotCheck for what
    is compared by nothing, or by more than yes or no."""
    if type(a) is not type(b):
        return f"{type(a).__name__} and {type(b).__name__}"
    if isinstance(a, torch.Tensor | np.ndarray):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{_described(a)} and {_described(b)}"
        if isinstance(a, torch.Tensor):
            differ = distance(dense(a), dense(b)) > 0
        else:
            differ = ~((a == b) | ((a != a) & (b != b)))  # NaN is not itself
        count = int(differ.sum())
        return f"{count} of {np.prod(a.shape, dtype=int)} values differ" if count else ""
    try:
        is_equal = bool(a == b) or bool(a != a and b != b)
    except (TypeError, ValueError):
        is_equal = None
    if is_equal is None or (not is_equal and getattr(type(a), "__eq__", None) is object.__eq__):
        raise CannotCheck(
            f"A batch holds {type(a).__name__}, which cannot be compared: let make() return tensors, "
            "arrays, numbers and texts."
        )
    return "" if is_equal else f"{str(a)[:40]!r} and {str(b)[:40]!r}"


def _described(array: Any) -> str:
    return f"({', '.join(map(str, array.shape))}) {array.dtype}"
