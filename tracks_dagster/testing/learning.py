"""Checks of the path of gradients: from the loss to the output, from there to every parameter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

import numpy as np
import torch
from torch import nn

from tracks_dagster.testing.finding import CannotCheck, Finding, check, describe
from tracks_dagster.testing.running import one_number, seeded, untouched
from tracks_dagster.testing.values import (
    check_paths,
    dense,
    module,
    own_name,
    returned,
    run,
    shape,
    tensors,
)
from tracks_dagster.track.text.nearest import instead

LOOKS = 3  # a half that is behind a half of zeros gets its first gradient at the second look
NUDGE = 0.01  # of a weight between two looks, at most
MEMORISE_STEPS = 200
MEMORISE_LR = 1e-2  # of Adam
FALLS_TO = 0.1
STILL_FALLS = 0.9  # in the last third, to this share or less
SHOWN_LOSSES = 4
NAMES_MAX = 8  # of parameters, in one message


@check
def check_every_parameter_learns(
    model: nn.Module, inputs: Any, *, frozen: Collection[str] = ()
) -> None:
    """Raise Finding for a parameter that no output reaches with a gradient, or whose gradient is 0.

    frozen: names of parameters that are meant to stay as they are, or patterns (`backbone.*`); one
    of them that does learn is a finding too. Each parameter must have a gradient other than 0 at
    one of three looks, between which the weights move a little: so the second half of a low-rank
    pair that starts with zeros is not a finding, a dead layer is. So is an expert of a mixture to which
    these inputs send nothing: give more of them.

    Whether the loss hears the output is another check: `check_loss_hears_the_output`.
    """
    named = dict(module(model).named_parameters())
    for pattern in frozen:
        if not any(_is_called(name, pattern) for name in named):
            raise CannotCheck(f"frozen=: {_no_parameter(pattern, named)}")
    gradients = _largest_gradients(model, inputs)
    problems: list[str] = []
    causes: dict[str, None] = {}  # in order, each once
    for name, parameter in named.items():
        is_meant = any(_is_called(name, pattern) for pattern in frozen)
        problem, cause = _why_not_learning(parameter, gradients.get(name), is_meant=is_meant)
        if problem:
            problems.append(f"{own_name(name)} {shape(parameter)}: {problem}")
            causes[cause] = None
    if problems:
        raise Finding(
            describe(
                f"{len(problems)} of {len(named)} parameters do not learn as they should:",
                problems,
                "; ".join(causes) + ".",
            )
        )


def _no_parameter(name: str, known: Iterable[str]) -> str:
    names = list(map(own_name, known))
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    listed = f"it has {', '.join(names[:NAMES_MAX])}{more}."
    return f"The model has no parameter {name!r}; {instead(name, names, listed)}"


def _is_called(name: str, pattern: str) -> bool:
    return fnmatch(name, pattern) or fnmatch(own_name(name), pattern)


def _largest_gradients(model: nn.Module, inputs: Any) -> dict[str, float]:
    """Return the largest absolute gradient that each parameter had in all looks, by name."""
    found: dict[str, float] = {}
    with untouched(model), seeded():
        for _ in range(LOOKS):
            model.zero_grad(set_to_none=True)
            output = run(model, inputs)
            returned(output)
            total = one_number(output)
            if total is None:
                break
            total.backward()  # type: ignore[no-untyped-call]
            for name, parameter in model.named_parameters():
                if parameter.grad is None:
                    continue
                gradient = dense(parameter.grad)
                largest = float(gradient.abs().max()) if gradient.numel() else 0.0
                found[name] = float(np.maximum(largest, found.get(name, 0.0)))  # NaN stays NaN
                if 0 < largest < torch.inf:
                    with torch.no_grad():
                        parameter.add_(parameter.grad / largest, alpha=NUDGE)
    return found


def _why_not_learning(
    parameter: nn.Parameter, gradient: float | None, *, is_meant: bool
) -> tuple[str, str]:
    """Return what is wrong with a parameter and its usual cause; two empty texts where nothing is.

    gradient: the largest absolute one; None where there was none. is_meant: to be frozen.
    """
    if is_meant:
        if parameter.requires_grad and gradient:
            return f"named in frozen=, and its gradient is up to {gradient:.2g}", _NOT_FROZEN
        return "", ""
    if not parameter.requires_grad:
        return "requires_grad is False, and frozen= does not name it", _FROZEN
    if gradient is None:
        return "has no gradient", _UNUSED
    if gradient == 0:
        return f"its gradient is 0 at each of {LOOKS} looks", _DEAD
    if not gradient < torch.inf:
        return f"its gradient is {gradient}", _NOT_FINITE
    return "", ""


_FROZEN = "requires_grad_(False) on more than was meant"
_NOT_FROZEN = "requires_grad_(False) that was forgotten, or undone by model.requires_grad_(True)"
_REACHED = "a branch that these inputs do not take (an expert without samples: give more of them)"
_UNUSED = (
    "made in __init__ and not used in forward, cut off by .detach(), .data, no_grad or argmax, or "
    + _REACHED
)
_DEAD = (
    "an activation that is 0 or saturated for every input, a factor of 0, a path that another "
    "overwrites, or " + _REACHED
)
_NOT_FINITE = "see check_finite"


@check
def check_loss_hears_the_output(
    model: nn.Module, loss: Callable[[], Any], *, unheard: Collection[str] = (), batch_dim: int = 0
) -> None:
    """Raise Finding where the loss does not depend on what the model returned, for every sample.

        check_loss_hears_the_output(model, lambda: F.cross_entropy(model(x), y))

    loss: calls the model, as a training step does before its backward pass, and returns the loss.
    Every tensor with a gradient that the model returns must be heard, or be named in unheard by its
    path: `output[1]`, `output['hidden']`; of one call of several, as in the finding,
    `call 2: output`. batch_dim: the dimension of the outputs with the samples.

    Raises CannotCheck where `loss` does not call the model, or no output has a gradient.
    """
    with untouched(model), seeded():
        problems, heading, _ = _unheard(model, loss, unheard, batch_dim)
    if problems:
        raise Finding(describe(heading, problems, _UNHEARD))


_UNHEARD = (
    "output.detach(), .data, .item() or a new torch.tensor(…) on the way to the loss; argmax or "
    "rounding; a loss of one sample only, targets that are all ignored, a margin that is met. What no "
    "loss is meant to hear is named in unheard=."
)


def _unheard(
    model: nn.Module, loss: Callable[[], Any], unheard: Collection[str], batch_dim: int
) -> tuple[list[str], str, bool]:
    """Run the loss and its backward pass; return the outputs that it does not hear, a heading, and
    whether it hears any."""
    with _outputs(module(model)) as calls:
        value = loss()
    if not calls:
        raise CannotCheck(
            "loss() did not call the model (model(x), neither model.forward(x) nor another of its "
            "methods), so there is no output that it could hear."
        )
    found = [
        (path, path if len(calls) == 1 else f"call {number}: {path}", each)
        for number, call in enumerate(calls, start=1)
        for path, each in call
    ]
    check_paths("unheard", unheard, (name for *names, _ in found for name in names))
    outputs = [
        (name, each)
        for path, name, each in found
        if each.requires_grad and not {path, name} & set(unheard) and each is not value
    ]
    if not outputs:
        raise CannotCheck(
            "No output of the model has a gradient, so the loss cannot hear one; "
            "check_every_parameter_learns names what is cut off."
        )
    if not isinstance(value, torch.Tensor):
        if tensors(value, "loss"):
            raise CannotCheck(
                f"loss() returned {type(value).__name__}; return one number, from which backward() "
                "starts: of several losses, their sum."
            )
        words = [f"loss() returned {type(value).__name__} {value!r}"]
        return words, "The loss is not a tensor:", False
    if value.numel() != 1:
        raise CannotCheck(f"loss() returned a tensor {shape(value)}; reduce it to one number.")
    if not value.requires_grad:
        words = [f"loss {value.item():.4g}: requires_grad is False"]
        return words, "The loss has no gradient:", False
    value.backward()  # type: ignore[no-untyped-call]
    problems = [
        f"{path} {problem}" for path, each in outputs if (problem := _deaf(each, batch_dim))
    ]
    heading = f"The loss ({value.item():.4g}) does not hear all that the model returned:"
    return problems, heading, any(each.grad is not None and each.grad.any() for _, each in outputs)


@contextmanager
def _outputs(model: nn.Module) -> Iterator[list[list[tuple[str, torch.Tensor]]]]:
    """Keep the outputs of each call of the model, and their gradients."""
    calls: list[list[tuple[str, torch.Tensor]]] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        found = returned(output)
        for _, each in found:
            if each.requires_grad:
                each.retain_grad()
        calls.append(found)

    handle = model.register_forward_hook(keep)
    try:
        yield calls
    finally:
        handle.remove()


def _deaf(output: torch.Tensor, batch_dim: int) -> str:
    """Return what of an output the loss did not hear, "" where it heard every sample."""
    gradient = output.grad
    if gradient is None:
        return f"{shape(output)}: no path leads from the loss to it"
    if not gradient.isfinite().all():
        return f"{shape(output)}: its gradient is not finite"
    if not gradient.any():
        return f"{shape(output)}: its gradient is 0 everywhere"
    if output.dim() <= batch_dim:
        return ""
    rows = gradient.movedim(batch_dim, 0).flatten(1) if output.dim() > 1 else gradient[:, None]
    silent = (~rows.any(dim=1)).nonzero().flatten().tolist()
    if not silent:
        return ""
    return (
        f"{shape(output)}: its gradient is 0 for {len(silent)} of {len(rows)} samples: {silent[:8]}"
    )


@check
def check_overfits_one_batch(
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    *,
    steps: int = MEMORISE_STEPS,
    lr: float = MEMORISE_LR,
    falls_to: float = FALLS_TO,
) -> None:
    """Raise Finding where the loss of one batch does not fall to a share of its first value.

    loss: calls the model with the same batch each time. falls_to: that share; a loss that cannot
    come near 0 (noise in the targets, label smoothing) needs a larger one. Adam takes at most
    `steps` steps of `lr`, and the weights are put back.

    Raises CannotCheck where the loss does not hear the output, or is not above 0 at first.
    """
    with untouched(model), seeded():
        losses = _memorise(model, loss, steps=steps, lr=lr, falls_to=falls_to)
    if losses and losses[-1] <= falls_to * losses[0]:
        return
    with untouched(model), seeded():
        problems, _, hears = _unheard(model, loss, (), 0)
    if problems and not hears:
        raise CannotCheck(
            f"Nothing can be learned from this loss: {problems[0]}. check_loss_hears_the_output says "
            "more."
        )
    spread = [
        round(index * (len(losses) - 1) / (SHOWN_LOSSES - 1)) for index in range(SHOWN_LOSSES)
    ]
    course = " → ".join(f"{losses[each]:.4g}" for each in spread)
    falls = losses[-1] < STILL_FALLS * losses[spread[-2]]
    raise Finding(
        describe(
            f"One batch was not learned by heart in {steps} steps of Adam at {lr:g}:",
            [
                f"loss {course} (steps {', '.join(str(each + 1) for each in spread)})",
                f"it should come down to {falls_to * losses[0]:.4g}, {falls_to:g} of the first",
            ],
            "targets that do not belong to the inputs, a loss over the wrong axis or with the wrong "
            "sign, softmax before cross_entropy, strong dropout; or lr."
            + (" It was still falling: give more steps=, or another lr=." if falls else ""),
        )
    )


def _memorise(
    model: nn.Module, loss: Callable[[], Any], *, steps: int, lr: float, falls_to: float
) -> list[float]:
    """Train on one batch until its loss has fallen to that share; return the loss before each step.

    None of them where it has no gradient. Raises CannotCheck for a first loss that is not above 0.
    """
    learning = [each for each in module(model).parameters() if each.requires_grad]
    if not learning:
        raise CannotCheck("Every parameter of the model is frozen, so nothing can be learned.")
    optimizer = torch.optim.Adam(learning, lr=lr)
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        if not isinstance(value, torch.Tensor) or not value.requires_grad or value.numel() != 1:
            break
        losses.append(value.item())
        if not 0 < losses[0] < torch.inf:
            raise CannotCheck(f"The first loss is {losses[0]:.4g}: a share of it says nothing.")
        if losses[-1] <= falls_to * losses[0]:
            break
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return losses


@check
def check_tied(model: nn.Module, first: str, second: str) -> None:
    """Raise Finding where two parameters, by their names, are not one tensor.

    Equal values are not enough: two copies part at the first step. Raises CannotCheck for a name
    that the module does not have.
    """
    found = dict(module(model).named_parameters(remove_duplicate=False))
    named = {own_name(name): each for name, each in found.items()} | found
    for name in (first, second):
        if name not in named:
            raise CannotCheck(_no_parameter(name, found))
    a, b = named[first], named[second]
    if a is b:
        return
    if a.data_ptr() == b.data_ptr() != 0 and a.shape == b.shape:
        how = f"{shape(a)}: one storage in two parameters, each with a gradient of its own"
    elif a.shape != b.shape:
        how = f"they have the shapes {shape(a)} and {shape(b)}"
    elif a.device != b.device or a.dtype != b.dtype or a.is_meta:
        how = f"{a.dtype} on {a.device} and {b.dtype} on {b.device}, in two tensors"
    elif torch.equal(a, b):
        how = f"{shape(a)}: equal values in two tensors, which part at the first step"
    else:
        how = f"{shape(a)}: they differ by up to {float((a - b).detach().abs().max()):.2g}"
    raise Finding(
        describe(
            f"{first} and {second} are not tied:",
            [how],
            "an assignment of .data or a clone in place of the parameter itself; an init or a "
            "load_state_dict that made a new one after they were tied.",
        )
    )
