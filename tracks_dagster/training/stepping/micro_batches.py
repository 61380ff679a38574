"""Cuts a rank's share of a batch into micro-batches, on the rank's device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tracks_dagster.track.errors import TrainingError

Batch = Any  # a tensor, or a tuple, list or dict of batches


def split(batch: Batch, *, micro_batch: int, device: torch.device) -> Iterator[Batch]:
    """Yield `batch` in consecutive slices of `micro_batch` along dimension 0.

    Raises TrainingError when a part is no tensor, the tensors differ in length, or the micro-batch
    does not divide it: unequal slices would weigh samples unequally.
    """
    lengths = set(_lengths(batch))
    if len(lengths) != 1:
        raise TrainingError(f"The tensors of a batch differ in length: {sorted(lengths)}.")
    (length,) = lengths
    if length % micro_batch:
        raise TrainingError(
            f"A share of {length} samples cannot be cut into micro-batches of {micro_batch}; "
            f"use a divisor of {length}."
        )
    for first in range(0, length, micro_batch):
        yield _slice(batch, first, first + micro_batch, device)


def _lengths(batch: Batch) -> Iterator[int]:
    match batch:
        case torch.Tensor():
            yield len(batch)
        case tuple() | list():
            for part in batch:
                yield from _lengths(part)
        case dict():
            for part in batch.values():
                yield from _lengths(part)
        case _:
            raise TrainingError(
                f"A batch holds a {type(batch).__name__}; split takes tensors, and tuples, lists "
                "and dicts of tensors."
            )


def _slice(batch: Batch, first: int, last: int, device: torch.device) -> Batch:
    if isinstance(batch, torch.Tensor):
        return batch[first:last].to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: _slice(part, first, last, device) for name, part in batch.items()}
    return type(batch)(_slice(part, first, last, device) for part in batch)
