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
from tracks_dagster.testing.values import changed, distance, first_tensor, run, shape, tensors

SAMPLES_MAX = 8  # that are changed, a run of the model each
POSITIONS_MAX = 16
ROUNDINGS = 64  # of a value as large as the output's largest: less is taken for the same value,
ROUNDING_SHARE_MAX = 0.01  # but no more than this share of it, as 64 of bfloat16 are a half

Output = list[tuple[str, torch.Tensor]]


@check
def check_samples_do_not_mix(model: Callable[..., Any], inputs: Any) -> None:
    """Raise Finding where the output of one sample changes with another sample of its batch.

    inputs: at least two different samples, in dimension 0 of each tensor that has them; outputs
    likewise. One sample after the other (eight at most) is replaced by the next one. Weights that
    are all zero get small random values meanwhile, for nothing is seen behind them.

    The model runs in its own mode: BatchNorm mixes samples while it trains, and after
    `model.eval()` not. Raises CannotCheck for one sample, equal samples, or outputs that change
    with nothing.
    """
    count = _size(first_tensor(inputs), 0)
    if count < 2:
        raise CannotCheck("The batch has one sample; give at least two different ones.")
    with untouched(model), seeded(), torch.no_grad():
        wake(model)
        before = _samples(_run(model, inputs), count)
        problems, hears = [], False
        for index in range(min(count, SAMPLES_MAX)):
            other = (index + 1) % count
            after = _samples(_run(model, _replace_sample(inputs, count, index, other)), count)
            for (path, old), (_, new) in zip(before, after, strict=True):
                apart, size = _apart(old, new, 0), _rounding(old)
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
                "BatchNorm in training mode, a mean, norm or softmax over dimension 0, attention with "
                "batch_first the wrong way round, a reshape that crosses samples.",
            )
        )
    if not hears:
        raise CannotCheck(
            "No output changed when its own sample was replaced: are the samples of the batch equal?"
        )


def _replace_sample(inputs: Any, count: int, index: int, other: int) -> Any:
    def replace(each: torch.Tensor) -> torch.Tensor:
        if each.dim() == 0 or each.shape[0] != count:
            return each
        copy = each.clone()
        copy[index] = each[other]
        return copy

    return changed(inputs, replace)


def _samples(output: Output, count: int) -> Output:
    """Return the outputs with the samples in dimension 0; raises CannotCheck where there is none."""
    found = [(path, each) for path, each in output if each.dim() and each.shape[0] == count]
    if not found:
        shapes = ", ".join(f"{path} {shape(each)}" for path, each in output) or "no tensor"
        raise CannotCheck(
            f"No output has the batch's {count} samples in dimension 0 (it returned {shapes})."
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

    sees: "causal", "all", or True where output position i sees input position j: (T_out, T_in), or
    (B, T_out, T_in). The first tensor of the inputs is changed at one position after the other,
    sixteen at most, in all samples. dim: the dimension of positions, in it and in the outputs.
    Token ids are replaced by others that occur in it, numbers get noise of their own size.

    Seeing counts from the smallest change on; what should not be seen may change by a few
    roundings.
    """
    tokens = first_tensor(inputs)
    count = _size(tokens, dim)
    probed = _spread(count)
    with untouched(model), seeded(), torch.no_grad():
        wake(model)
        before = _run(model, inputs)
        path, old = _first_with(before, dim)
        allowed = _allowed(sees, tokens, old, dim)
        leaks, blind = [], []
        for position in probed:
            inputs_after = _replace_tensor(inputs, tokens, _change_position(tokens, position, dim))
            new = dict(_run(model, inputs_after))[path]
            moved = distance(old, new).movedim((1 if dim == 0 else 0, dim), (0, 1))
            apart = moved.reshape(*moved.shape[:2], -1).amax(2)  # (B, T_out)
            expected = allowed[:, :, position]
            leaks += _pairs(apart, (apart > _rounding(old)) & ~expected, position)
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
    "the wrong sign, off by one, or broadcast over the wrong axis."
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
        found = torch.ones(wanted, dtype=torch.bool).tril()
    else:
        raise CannotCheck(f"sees={sees!r} is none of 'causal', 'all' and a tensor of bool.")
    if tuple(found.shape) not in (wanted, (samples, *wanted)):
        raise CannotCheck(
            f"sees= has the shape {shape(found)}; it should be {wanted} or {(samples, *wanted)}."
        )
    return found.to(output.device).expand(samples, *wanted)


def _change_position(tokens: torch.Tensor, position: int, dim: int) -> torch.Tensor:
    """Return the tensor with other values at one position."""
    copy = tokens.clone()
    here = copy.select(dim, position)
    if tokens.is_floating_point():
        noise = torch.randn(here.shape, generator=torch.Generator().manual_seed(position))
        here.add_(noise.to(here) * (tokens.std() + 1))
        return copy
    values = torch.unique(tokens)  # sorted
    if len(values) < 2:
        raise CannotCheck("All ids of the inputs are the same; give at least two different ones.")
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
    for path, each in output:
        if each.dim() > max(dim, 1):
            return path, each
    raise CannotCheck(f"No output has samples and, in dimension {dim}, positions.")


def _size(tensor: torch.Tensor, dim: int) -> int:
    if tensor.dim() <= dim:
        raise CannotCheck(f"The first input {shape(tensor)} has no dimension {dim}.")
    return tensor.shape[dim]


def _run(model: Callable[..., Any], inputs: Any) -> Output:
    """Return the outputs; the same random numbers each time, so that dropout is the same."""
    with seeded():
        output = tensors(run(model, inputs), "output")
    if any(bool(each.isnan().any()) for _, each in output):
        raise CannotCheck("The output has NaN in it, so changes cannot be seen; see check_finite.")
    return output


def _apart(old: torch.Tensor, new: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the largest change in each slice along a dimension."""
    return distance(old, new).movedim(dim, 0).reshape(old.shape[dim], -1).amax(1)


def _rounding(output: torch.Tensor) -> float:
    """Return a change that rounding alone may make."""
    if not output.is_floating_point():
        return 0.0
    finite = output[output.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return min(ROUNDINGS * torch.finfo(output.dtype).eps, ROUNDING_SHARE_MAX) * largest
