"""Checks of a model's values: their shapes, dtypes and devices, and that they are finite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from tracks_dagster.testing.finding import CannotCheck, Finding, check, describe
from tracks_dagster.testing.running import dense, one_number, seeded, untouched
from tracks_dagster.testing.values import run, shape, state, tensors
from tracks_dagster.testing.watching import Watch, calling_line

ANY = "_"  # a dimension of any size


@check
def check_shapes(
    model: Callable[..., Any],
    inputs: Any,
    *,
    takes: Any,
    gives: Any,
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Raise Finding where the model's output does not have the shape that it should have.

        check_shapes(model, tokens, takes="B T", gives="B T V", sizes={"V": 256})

    takes, gives: a dimension a word: a name, which has one size in all of the call, a number, or
    `_` for any size. Where the inputs or the output are tuples, lists or dicts, so are these; "" is
    a single number, None is not looked at. sizes: of names that the inputs do not show.

    Raises CannotCheck where the inputs are not as `takes` says, or two of their names have one
    size: then a swap of the two cannot be seen.
    """
    known = dict(sizes or {})
    for path, value, words in _pairs(inputs, takes, "inputs", CannotCheck):
        if problem := _mismatch(value, words, known):
            raise CannotCheck(f"{path} {problem}; give inputs as `takes` says.")
    shown = {name: size for name, size in known.items() if name not in (sizes or {})}
    for name, size in shown.items():
        if twin := next((each for each in shown if each < name and shown[each] == size), None):
            raise CannotCheck(
                f"{twin} and {name} of the inputs are both {size}, so a swap of the two cannot be "
                "seen: give inputs with another size for each."
            )
    with untouched(model), seeded(), torch.no_grad():
        output = run(model, inputs)
    problems = []
    for path, value, words in _pairs(output, gives, "output", Finding):
        if problem := _mismatch(value, words, known):
            problems.append(f"{path} {problem}")
    if problems:
        raise Finding(
            describe(
                "The output has another shape than it should have:",
                problems,
                "a transpose or reshape over the wrong axes, a squeeze of a dimension that is 1, a "
                "broadcast.",
            )
        )


def _pairs(
    value: Any, words: Any, path: str, error: type[Exception]
) -> list[tuple[str, torch.Tensor, str]]:
    """Return each tensor with what it should look like; raises `error` where the two nest otherwise."""
    if words is None:
        return []
    if isinstance(words, str):
        if not isinstance(value, torch.Tensor):
            raise error(f"{path} is {type(value).__name__}, where a tensor {words!r} should be.")
        return [(path, value, words)]
    if isinstance(value, torch.Tensor):
        raise error(f"{path} is one tensor, where {words!r} should be.")
    names = list(words) if isinstance(words, Mapping) else list(range(len(words)))
    found = []
    for name in names:
        try:
            each = value[name]
        except (KeyError, IndexError, TypeError):
            raise error(f"{path} has no {name!r}: it is {type(value).__name__}.") from None
        found += _pairs(each, words[name], f"{path}[{name!r}]", error)
    return found


def _mismatch(value: torch.Tensor, words: str, known: dict[str, int]) -> str:
    """Return how a tensor differs from its words, "" where it does not; new names go into `known`."""
    dimensions = words.split()
    if len(dimensions) != value.dim():
        return f"has the shape {shape(value)}, where {words!r} has {len(dimensions)} dimensions"
    for index, (word, size) in enumerate(zip(dimensions, value.shape, strict=True)):
        wanted = int(word) if word.isdecimal() else known.setdefault(word, size)
        if word == ANY:
            del known[ANY]
        elif size != wanted:
            is_name = "" if word.isdecimal() else f" ({word})"
            return f"has the shape {shape(value)}: dimension {index}{is_name} should be {wanted}"
    return ""


@check
def check_finite(model: Callable[..., Any], inputs: Any) -> None:
    """Raise Finding for a NaN or an infinity in the inputs, the weights, the outputs or the gradients.

    The first line that made one out of finite numbers is named. The gradients are those of a random
    weighted sum of all outputs; where no output has a gradient they are not looked at.
    """
    for what, given in (("inputs", tensors(inputs, "inputs")), ("weights", state(model))):
        if problems := _not_finite(given):
            cause = {
                "inputs": "missing values, or a division by a standard deviation of 0, in the data.",
                "weights": "a tensor of torch.empty that was never filled, or a step of infinite size.",
            }
            raise Finding(describe(f"The {what} are not finite:", problems, cause[what]))
    with untouched(model), seeded():
        output = run(model, inputs)
        if problems := _not_finite(tensors(output, "output")):
            line = _first_bad_line(model, inputs)
            raise Finding(
                describe(
                    "The output is not finite:",
                    [*problems, *([line] if line else [])],
                    "log of 0, division by 0, a softmax over positions that are all masked, exp of a "
                    "large number.",
                )
            )
        total = one_number(output)
        if total is None or not isinstance(model, torch.nn.Module):
            return
        total.backward()  # type: ignore[no-untyped-call]
        gradients = [
            (f"gradient of {name}", dense(each.grad))
            for name, each in model.named_parameters()
            if each.grad is not None
        ]
        if problems := _not_finite(gradients):
            raise Finding(
                describe(
                    "The output is finite, its gradients are not:",
                    problems,
                    "the square root or norm of 0, or torch.where whose other branch is not finite; "
                    "torch.autograd.detect_anomaly() names the line.",
                )
            )


def _not_finite(named: list[tuple[str, torch.Tensor]]) -> list[str]:
    problems = []
    for name, each in named:
        if each.is_floating_point() or each.is_complex():
            nan, bad = int(each.isnan().sum()), int((~each.isfinite()).sum())
            if bad:
                problems.append(
                    f"{name} {shape(each)}: {nan} NaN and {bad - nan} infinities of {each.numel()}"
                )
    return problems


def _first_bad_line(model: Callable[..., Any], inputs: Any) -> str:
    """Return the line that first made a NaN of what had none; without a NaN, an infinity."""
    lines: dict[str, str] = {}

    def look(name: str, given: tuple[Any, ...], result: Any) -> None:
        for what, is_bad in (("NaN", torch.isnan), ("infinity", torch.isinf)):
            if what not in lines and _has(result, is_bad) and not _has(given, is_bad):
                lines[what] = f"{calling_line()} ({name} made the first {what})"

    with seeded(), torch.no_grad(), Watch(look):
        run(model, inputs)
    return lines.get("NaN") or lines.get("infinity", "")


def _has(value: Any, is_bad: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    return any(
        bool(is_bad(each).any()) for _, each in tensors(value, "") if each.is_floating_point()
    )


@check
def check_dtypes(
    model: Callable[..., Any], inputs: Any, *, at_least: torch.dtype = torch.float32
) -> None:
    """Raise Finding where the model computes in a floating-point type narrower than `at_least`.

    Looked at are inputs, parameters, buffers and every intermediate result, so that a tensor that
    is cast down and up again is found too. at_least: `torch.bfloat16` for a model that is meant to
    run so, under autocast or as a whole. Other types of as many bits count as narrower: float16 is
    not bfloat16.
    """
    problems: dict[str, None] = {}  # in order, each once

    def note(where: str, each: torch.Tensor) -> None:
        if _is_narrower(each.dtype, at_least):
            problems.setdefault(f"{where} {shape(each)} is {_name(each.dtype)}")

    for name, each in (*tensors(inputs, "inputs"), *state(model)):
        note(name, each)

    def look(name: str, given: tuple[Any, ...], result: Any) -> None:
        for _, each in tensors(result, ""):
            before = [one for _, one in tensors(given, "") if one.is_floating_point()]
            if not any(_is_narrower(one.dtype, at_least) for one in before):
                note(f"{calling_line()}: the result of {name}", each)

    with untouched(model), seeded(), torch.no_grad(), Watch(look):
        run(model, inputs)
    if problems:
        raise Finding(
            describe(
                f"Narrower than {_name(at_least)}:",
                list(problems),
                "a .half(), .to(dtype) or torch.autocast left from a trial of mixed precision. Where "
                "it is meant, give at_least=.",
            )
        )


def _is_narrower(dtype: torch.dtype, at_least: torch.dtype) -> bool:
    if not dtype.is_floating_point or dtype == at_least:
        return False
    return torch.finfo(dtype).bits <= torch.finfo(at_least).bits


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@check
def check_on_device(
    model: Callable[..., Any], inputs: Any, *, on_cpu: Collection[str] = ()
) -> None:
    """Raise Finding where model, inputs and what the model makes on its way are not on one device.

        check_on_device(Model().to("meta"), batch(device="meta"))

    Without a GPU, torch's `meta` device (tensors without data) finds the same mistakes: a model
    whose steps depend on values (`.item()`) cannot run on it. on_cpu: what is meant to be on the
    CPU, by its path, `inputs['lengths']`. Single numbers may be anywhere.
    """
    held = state(model)
    given = [(path, each) for path, each in tensors(inputs, "inputs") if path not in on_cpu]
    if not held and not given:
        raise CannotCheck("Neither model nor inputs hold a tensor.")
    device = (held or given)[0][1].device
    problems = [
        f"{name} {shape(each)} is on {each.device}"
        for name, each in (*held, *given)
        if each.device != device and each.dim()
    ]
    if not problems:
        problems = _strays(model, inputs, device, {id(each) for _, each in tensors(inputs, "")})
    if problems:
        raise Finding(
            describe(
                f"Not on {device}, where {'the model' if held else 'the first input'} is:",
                problems,
                "a part of the batch without .to(device), a tensor made in forward without device=, or "
                "a constant kept as an attribute where register_buffer moves it with the model.",
            )
        )


def _strays(
    model: Callable[..., Any], inputs: Any, device: torch.device, given: set[int]
) -> list[str]:
    """Return the first tensor in the forward pass that is on another device."""
    found: list[str] = []

    def look(name: str, arguments: tuple[Any, ...], result: Any) -> None:
        for what, values in (("an argument", arguments), ("the result", result)):
            for _, each in tensors(values, ""):
                if not found and each.device != device and each.dim() and id(each) not in given:
                    found.append(
                        f"{calling_line()}: {what} of {name}, {shape(each)}, is on {each.device}"
                    )

    with untouched(model), seeded(), torch.no_grad(), Watch(look):
        try:
            run(model, inputs)
        except (RuntimeError, NotImplementedError) as error:
            if not found and "device" in str(error):
                found.append(str(error).splitlines()[0])
            if not found:
                raise
    return found
