"""Running a model for a check: with known random numbers, and leaving it as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from tracks_dagster.testing.values import dense, state, tensors

SEED = 0
WAKING_STD = 0.02  # of what stands in for weights that are all about zero; GPT-2's
ASLEEP = 1e-3  # the largest of such weights; LayerScale starts with 1e-6


@contextmanager
def seeded(seed: int = SEED) -> Iterator[int]:
    """Seed the random numbers of Python, numpy and torch, and put them back afterwards.

    Of torch: those of the CPU and, where CUDA was in use before, of its devices.
    """
    uses_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if uses_cuda else []
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield seed
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if uses_cuda:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def untouched(model: object) -> Iterator[None]:
    """Put a module's parameters, buffers and gradients back afterwards; other attributes are left."""
    if not isinstance(model, nn.Module):
        yield
        return
    _reshard(model)
    saved = [(each, each.detach().clone()) for _, each in state(model)]
    tables = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    gradients = [(each, each.grad) for each in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        _reshard(model)
        for table, before in tables:  # a forward pass may put a new tensor in a buffer's place
            table.update(
                {name: each for name, each in before.items() if table.get(name) is not each}
            )
        with torch.no_grad():
            for each, value in saved:
                _put_back(each, value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _reshard(model: nn.Module) -> None:
    """Let FSDP hold its shards again: the whole weights, which it keeps after a forward pass, lose
    their storage at the next backward pass."""
    if fsdp := sys.modules.get("torch.distributed.fsdp"):  # else nothing is sharded so
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


def _put_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write a value back where it changed: an expanded buffer cannot be written, nor does it change."""
    if tensor.shape != value.shape:  # an observer's, which grows with its first batch
        tensor.resize_(value.shape)
    if not tensor.is_meta and not torch.equal(dense(tensor), dense(value)):
        tensor.copy_(value)


def wake(model: object) -> None:
    """Give weights that are all about zero small random values: behind a zero nothing can be seen.

    Such are a usual start for a last layer, a gate, a LayerScale, or one half of a low-rank pair.
    """
    if isinstance(model, nn.Module):
        with torch.no_grad():
            for each in model.parameters():
                is_number = each.is_floating_point() or each.is_complex()
                if is_number and each.numel() and each.abs().max() < ASLEEP:
                    each.normal_(std=WAKING_STD)


def one_number(output: Any) -> torch.Tensor | None:
    """Return the sum of all outputs, each value with a random weight; None where none has a gradient.

    Its gradient reaches whatever any output depends on. The weights are drawn with the current
    seed.
    """
    total: torch.Tensor | None = None
    for _, each in tensors(output, "output"):
        if each.requires_grad:
            real = torch.view_as_real(each.resolve_conj()) if each.is_complex() else dense(each)
            part = (real * torch.randn(real.shape).to(real)).sum()
            total = part if total is None else total + part
    return total
