"""Checks that two ways to the same values agree: paths through a model, readings of the data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from tracks_dagster.testing.finding import CannotCheck, Finding, check, describe
from tracks_dagster.testing.running import SEED, dense, one_number, seeded, untouched
from tracks_dagster.testing.values import distance, parts, run, shape, tensors

BATCHES = 3
# What torch.compile and DistributedDataParallel put before a name, in either order.
WRAPPERS = re.compile(r"\A(?:_orig_mod\.|module\.)+")
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
) -> None:
    """Raise Finding where two paths from the same inputs do not lead to the same values.

        check_same(model, torch.compile(model), x)
        check_same(whole_step, accumulated_step, batch, names=("whole", "accumulated"))

    A module is compared by its outputs and by the gradients of its parameters, of a random weighted
    sum of the outputs; a function by all the tensors that it returns, so a step returns its loss
    and its gradients by name. Both start from the same random numbers, and modules are left as they
    were. rtol, atol: as of `torch.testing.assert_close`; without both, its defaults for the dtype
    hold. Dtype and device may differ.

    Raises CannotCheck where the two do not return tensors under the same names.
    """
    a, b = _values(path_a, inputs), _values(path_b, inputs)
    if a.keys() != b.keys() or not a:
        only = sorted(a.keys() ^ b.keys())[:4] or ["nothing at all"]
        raise CannotCheck(
            f"The two paths do not return the same things: only one has {', '.join(only)}. Give "
            "functions that return what is to be equal, under equal names."
        )
    if rtol is not None or atol is not None:  # assert_close takes both or none
        rtol, atol = rtol or 0.0, atol or 0.0
    problems = []
    for path, left in a.items():
        try:
            torch.testing.assert_close(
                b[path], left, rtol=rtol, atol=atol, check_dtype=False, check_device=False
            )
        except AssertionError:
            problems.append(f"{path} {shape(left)}: {_difference(left, b[path], names)}")
    if problems:
        raise Finding(
            describe(
                f"{len(problems)} of {len(a)} tensors differ between {names[0]} and {names[1]}:",
                problems,
                "a sum where a mean was meant; a shard, a bias or a micro-batch that is summed once "
                "too often; a value that one path drops, reorders or rounds; other dropout.",
            )
        )


def _values(path: Callable[..., Any], inputs: Any) -> dict[str, torch.Tensor]:
    """Return what a path leads to, by name, on the CPU."""
    with untouched(path), seeded():
        output = run(path, inputs)
        found = dict(tensors(output, "output"))
        total = one_number(output) if isinstance(path, nn.Module) else None
        if total is not None and isinstance(path, nn.Module):
            total.backward()  # type: ignore[no-untyped-call]
            for name, each in path.named_parameters():
                if each.grad is not None:
                    found[f"gradient of {WRAPPERS.sub('', name)}"] = dense(each.grad)
        return {name: each.detach().clone().cpu() for name, each in found.items()}


def _difference(a: torch.Tensor, b: torch.Tensor, names: tuple[str, str]) -> str:
    if a.shape != b.shape:
        return f"{names[1]} has the shape {shape(b)}"
    left, right = a.double(), b.double()
    length = float((left * left).sum())
    factor = float((left * right).sum()) / length if length else 0.0
    rest = float((right - factor * left).norm()) / (float((right - left).norm()) or 1.0)
    if rest <= FACTOR_NOISE:
        return f"{names[1]} is {factor:.4g} times {names[0]}"
    apart = distance(a, b)
    at = np.unravel_index(int(apart.argmax()), tuple(a.shape)) if a.dim() else ()
    place = tuple(int(each) for each in at)
    return (
        f"{float(a[place]):.6g} and {float(b[place]):.6g} at {list(place)}, the largest difference"
    )


@check
def check_deterministic(
    make: Callable[[], Any], *, seed: int = SEED, batches: int = BATCHES
) -> None:
    """Raise Finding where the same seed does not give the same batches, to the bit.

        check_deterministic(lambda: DataLoader(MyData(seed=7), shuffle=True))

    make: makes the data anew and returns one batch (a tensor, tuple, list or mapping) or something
    to iterate over, of which the first few batches count. It is called twice, each time after the
    generators of Python, numpy and torch were seeded. Both calls are in this process, so an order
    that differs from process to process (of a set of strings) is not found.
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
        if not is_one and not isinstance(made, Iterable):
            raise CannotCheck(f"make() returned {type(made).__name__}, which is no batch.")
        taken = [made] if is_one else list(islice(made, count))
        return {
            path: each
            for number, batch in enumerate(taken, start=1)
            for path, each in parts(batch, f"batch {number}")
        }


def _unequal(a: Any, b: Any) -> str:
    """Return how two values differ, "" where they are the same to the bit."""
    if isinstance(a, torch.Tensor | np.ndarray) and isinstance(b, torch.Tensor | np.ndarray):
        left, right = torch.as_tensor(a), torch.as_tensor(b)
        if left.shape != right.shape or left.dtype != right.dtype:
            return f"{shape(left)} {left.dtype} and {shape(right)} {right.dtype}"
        count = int((distance(left, right) > 0).sum())
        return f"{count} of {left.numel()} values differ" if count else ""
    return "" if a == b else f"{str(a)[:40]!r} and {str(b)[:40]!r}"
