"""Checks of what an output depends on: samples of a batch, positions of a sequence.

Inputs are changed and outputs compared. Gradients with respect to the inputs would do for numbers,
and say nothing of tokens, masks and lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from tracks_dagster.testing.finding import CannotCheck, Finding, check, describe
from tracks_dagster.testing.running import seeded, untouched, wake
from tracks_dagster.testing.values import (
    changed,
    dense,
    distance,
    first_tensor,
    returned,
    rounding,
    run,
    shape,
)

SAMPLES_MAX = 8  # that are changed, a run of the model each
POSITIONS_MAX = 16

Output = dict[str, torch.Tensor]  # by path


@check
def check_samples_do_not_mix(model: Callable[..., Any], inputs: Any, *, batch_dim: int = 0) -> None:
    """Raise Finding where the output of one sample changes with another sample of its batch.

    inputs: at least two different samples, in dimension `batch_dim` of each tensor that has them;
    outputs likewise. One sample after the other (eight at most) is replaced by its neighbour.
    Weights that are all about zero get small random values meanwhile, for nothing is seen behind
    them.

    The model runs in its own mode: BatchNorm mixes samples while it trains, and after
    `model.eval()` not. Raises CannotCheck for one sample, equal samples, outputs that change with
    nothing, or that differ between two calls with the same inputs.
    """
    count = _size(first_tensor(inputs), batch_dim)
    if count < 2:
        raise CannotCheck("The batch has one sample; give at least two different ones.")
    with untouched(model), seeded(), torch.no_grad():
        wake(model)
        before = _samples(_run_twice(model, inputs), count, batch_dim)
        problems, hears = [], False
        for index in range(min(count, SAMPLES_MAX)):
            # The one before the last, not the first: samples that are sorted by length stay so.
            other = index + 1 if index + 1 < count else index - 1
            after = _run(model, _replace_sample(inputs, count, batch_dim, index, other))
            for path, old in before.items():
                apart, size = _apart(old, after.get(path), batch_dim), rounding(old)
                hears = hears or bool(apart[index] > 0)
                apart[index] = 0
                if (worst := int(apart.argmax())) != index and apart[worst] > size:
                    problems.append(
                        f"{path}: sample {worst} changes by {float(apart[worst]):.2g} when only sample "
                        f"{index} is replaced ({int((apart > size).sum())} of {count} change)"
                    )
    if problems:
        raise Finding(
            describe(
                "Samples of a batch mix:",
                problems,
                f"BatchNorm in training mode, a mean, norm or softmax over dimension {batch_dim}, "
                "attention with batch_first the wrong way round, a reshape that crosses samples, a "
                f"scale of the whole batch (quantisation); or a tensor whose dimension {batch_dim} is "
                f"{count} and no batch: give another number of samples.",
            )
        )
    if not hears:
        raise CannotCheck(
            "No output changed when its own sample was replaced: are the samples of the batch equal?"
        )


def _replace_sample(inputs: Any, count: int, dim: int, index: int, other: int) -> Any:
    def replace(each: torch.Tensor) -> torch.Tensor:
        if each.dim() <= dim or each.shape[dim] != count:
            return each
        copy = each.clone()
        copy.select(dim, index).copy_(each.select(dim, other))
        return copy

    return changed(inputs, replace)


def _samples(output: Output, count: int, dim: int) -> Output:
    """Return the outputs that have the samples; raises CannotCheck where none has."""
    found = {
        path: each
        for path, each in output.items()
        if each.dim() > dim and each.shape[dim] == count and each.numel()
    }
    if not found:
        shapes = ", ".join(f"{path} {shape(each)}" for path, each in output.items())
        raise CannotCheck(
            f"No output has the batch's {count} samples in dimension {dim} (it returned {shapes}); "
            "batch_dim= says where they are."
        )
    return found


@check
def check_positions(
    model: Callable[..., Any],
    inputs: Any,
    *,
    sees: Literal["causal", "all"] | torch.Tensor = "causal",
    dim: int = 1,
) -> None:
    """Raise Finding where an output sees a position that it should not see, or misses one.

        check_positions(gpt, tokens)  # itself and the ones before it
        itself = torch.eye(T, dtype=torch.bool)
        check_positions(encoder, (x, is_word), sees=is_word[:, None, :] | itself)

    sees: "causal" (of as many positions as the input has), "all", or True where output position i
    sees input position j: (T_out, T_in), or (B, T_out, T_in). The first tensor of the inputs is
    changed at one position after the other, sixteen at most, in all samples. dim: the dimension of
    positions, in it and in the outputs. Token ids are replaced by others that occur in it, numbers
    get noise of their own size.

    Seeing counts from the smallest change on; what should not be seen may change by a few
    roundings.
    """
    tokens = first_tensor(inputs)
    count = _size(tokens, dim)
    probed = _spread(count)
    with untouched(model), seeded(), torch.no_grad():
        wake(model)
        before = _run_twice(model, inputs)
        path, old = _first_with(before, dim)
        allowed = _allowed(sees, tokens, old, dim)
        leaks, blind = [], []
        for position in probed:
            inputs_after = _replace_tensor(inputs, tokens, _change_position(tokens, position, dim))
            new = _run(model, inputs_after)[path]
            moved = distance(old, new).movedim((1 if dim == 0 else 0, dim), (0, 1))
            apart = moved.reshape(*moved.shape[:2], -1).amax(2)  # (B, T_out)
            expected = allowed[:, :, position]
            leaks += _pairs(apart, (apart > rounding(old)) & ~expected, position)
            blind += _pairs(apart, (apart == 0) & expected, position)
    for pairs, heading, cause in ((leaks, _LEAKS, _LEAK_CAUSE), (blind, _BLIND, _BLIND_CAUSE)):
        if pairs:
            raise Finding(describe(heading, _in_words(path, pairs), cause))


_LEAKS = "An output sees positions that it should not see:"
_LEAK_CAUSE = (
    "a causal mask that is off by one (diagonal=), added after the softmax or left out; a softmax over "
    "the wrong axis; bidirectional=True; padding that is not masked."
)
_BLIND = "An output does not see positions that it should see:"
_BLIND_CAUSE = (
    "attention over the wrong axis (heads in place of positions: a transpose is missing), a mask with "
    "the wrong sign, off by one, over the wrong axis. A short reach that is meant (a window) is said "
    "in sees=; a recurrent net forgets: give it fewer."
)

Pair = tuple[int, int, int, float]  # sample, output position, input position, by how much


def _pairs(apart: torch.Tensor, wrong: torch.Tensor, position: int) -> list[Pair]:
    return [
        (sample, out, position, float(apart[sample, out]))
        for sample, out in wrong.nonzero().tolist()
    ]


def _in_words(path: str, pairs: list[Pair]) -> list[str]:
    """Return a line for each output position, of the sample where it is worst."""
    lines = {}
    for out in sorted({pair[1] for pair in pairs}):
        own = [pair for pair in pairs if pair[1] == out]
        sample = max(own, key=lambda pair: pair[3])[0]
        seen = sorted({pair[2] for pair in own if pair[0] == sample})
        change = max(pair[3] for pair in own)
        by = f"changes by {change:.2g}" if change else "does not change"
        lines[out] = f"{path}, sample {sample}, position {out} {by} with input position {seen[:8]}"
    return list(lines.values())


def _allowed(sees: Any, tokens: torch.Tensor, output: torch.Tensor, dim: int) -> torch.Tensor:
    """Return what may be seen as bool (B, T_out, T_in)."""
    samples = output.shape[1 if dim == 0 else 0]
    wanted = (output.shape[dim], tokens.shape[dim])
    if isinstance(sees, torch.Tensor):
        found = sees.bool()
    elif sees == "all":
        found = torch.ones(wanted, dtype=torch.bool)
    elif sees == "causal":
        if wanted[0] != wanted[1]:
            raise CannotCheck(
                f"sees='causal' is of as many output positions as input positions: dimension {dim} of "
                f"the output {shape(output)} and of the first input {shape(tokens)}. Give a tensor "
                f"{wanted}."
            )
        found = torch.ones(wanted, dtype=torch.bool).tril()
    else:
        raise CannotCheck(f"sees={sees!r} is not one of 'causal', 'all' and a tensor of bool.")
    if tuple(found.shape) not in (wanted, (samples, *wanted)):
        raise CannotCheck(
            f"sees= has the shape {shape(found)}; it should be {wanted} or {(samples, *wanted)}."
        )
    return found.to(output.device).expand(samples, *wanted)


def _change_position(tokens: torch.Tensor, position: int, dim: int) -> torch.Tensor:
    """Return the tensor with other values at one position."""
    copy = tokens.clone()
    here = copy.select(dim, position)
    if tokens.is_floating_point() or tokens.is_complex():
        noise = torch.randn(
            here.shape,
            generator=torch.Generator().manual_seed(position),
            dtype=here.dtype if here.is_complex() else None,
        )
        here.add_(noise.to(here) * (tokens.std() + 1))
        return copy
    values = torch.unique(tokens)  # sorted
    if len(values) < 2:
        raise CannotCheck(
            f"All ids of the first tensor of the inputs {shape(tokens)} are the same; give at least "
            "two different ones, in the tensor with the positions, which comes first."
        )
    here.copy_(values[(torch.searchsorted(values, here.contiguous()) + 1) % len(values)])
    return copy


def _replace_tensor(inputs: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    return changed(inputs, lambda each: new if each is old else each)


def _spread(count: int) -> list[int]:
    """Return all positions, or so many, the first and the last among them."""
    if count <= POSITIONS_MAX:
        return list(range(count))
    return [round(index * (count - 1) / (POSITIONS_MAX - 1)) for index in range(POSITIONS_MAX)]


def _first_with(output: Output, dim: int) -> tuple[str, torch.Tensor]:
    for path, each in output.items():
        if each.dim() > max(dim, 1):
            return path, each
    raise CannotCheck(f"No output has samples and, in dimension {dim}, positions.")


def _size(tensor: torch.Tensor, dim: int) -> int:
    if tensor.dim() <= dim:
        raise CannotCheck(f"The first input {shape(tensor)} has no dimension {dim}.")
    return tensor.shape[dim]


def _run(model: Callable[..., Any], inputs: Any) -> Output:
    """Return the outputs: with the same random numbers each time, so that dropout is the same, and the
    same buffers, which spectral norm and observers change."""
    with untouched(model), seeded():
        found = returned(run(model, inputs))
        output = {path: dense(each).clone() for path, each in found}
    if any(bool(each.isnan().any()) for each in output.values()):
        raise CannotCheck("The output has NaN in it, so changes cannot be seen; see check_finite.")
    return output


def _run_twice(model: Callable[..., Any], inputs: Any) -> Output:
    """Return the outputs; raises CannotCheck where a second call gives others."""
    first, second = _run(model, inputs), _run(model, inputs)
    for path, old in first.items():
        apart = float(_apart(old, second.get(path), 0).max()) if old.numel() else 0.0
        if apart > rounding(old):
            raise CannotCheck(
                f"A second call with the same inputs changes {path} {shape(old)} by {apart:.2g}: the "
                "model keeps something from call to call (a hidden state, a cache), or draws from a "
                "generator of its own. Give a function that lets it start over and calls it."
            )
    return first


def _apart(old: torch.Tensor, new: torch.Tensor | None, dim: int) -> torch.Tensor:
    """Return the largest change in each slice along a dimension, as far as both go: an output may be as
    long as its longest sample. Without the other, inf."""
    if new is None or new.dim() != old.dim() or (old.dim() and new.shape[dim] != old.shape[dim]):
        return torch.full((old.shape[dim] if old.dim() else 1,), torch.inf)
    both = tuple(slice(min(sizes)) for sizes in zip(old.shape, new.shape, strict=True))
    apart = distance(old[both], new[both])
    if not apart.numel():
        return apart.new_zeros(old.shape[dim])
    return apart.movedim(dim, 0).flatten(1).amax(1) if old.dim() > 1 else apart.reshape(-1)
