"""Checks of a model's values: their shapes, dtypes and devices, and that they are finite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import combinations
from typing import Any

import torch

from tracks_dagster.testing.finding import CannotCheck, Finding, check, describe
from tracks_dagster.testing.running import one_number, seeded, untouched
from tracks_dagster.testing.values import (
    call,
    check_paths,
    dense,
    fresh,
    returned,
    run,
    shape,
    state,
    tensors,
)
from tracks_dagster.testing.watching import calling_line, watched

ANY = "_"  # a dimension of any size
MOVES = ("torch.Tensor.cpu",)  # to the CPU, and meant so


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
    `_` for any size. Where the inputs or the output are tuples, lists or dicts, so are these; of a
    dataclass, a dict of its fields. "" is a single number, None is not looked at. sizes: of names
    that the inputs do not show.

    Raises CannotCheck where the inputs are not as `takes` says, or two names of them or of one
    output have one size: then a swap of the two cannot be seen.
    """
    known = dict(sizes or {})
    for path, value, words in _pairs(inputs, takes, "inputs", CannotCheck):
        if problem := _mismatch(value, words, known):
            raise CannotCheck(f"{path} {problem}; give inputs as `takes` says.")
    shown = {name for name in known if name not in (sizes or {})}
    for names in (shown, *(set(words.split()) for words in _texts(gives))):
        for twin, name in combinations(sorted(names & known.keys()), 2):
            if known[twin] == known[name]:
                raise CannotCheck(
                    f"{twin} and {name} are both {known[name]}, so a swap of the two cannot be seen: "
                    "give inputs, or a model, with another size for each."
                )
    with untouched(model), seeded(), torch.no_grad():
        output = run(model, inputs)
    problems = []
    for path, value, words in _pairs(output, gives, "output", _other_shape):
        if problem := _mismatch(value, words, known):
            problems.append(f"{path} {problem}")
    if problems:
        raise _other_shape(*problems)


def _other_shape(*problems: str) -> Finding:
    cause = (
        "a transpose or reshape over the wrong axes, a squeeze of a dimension that is 1, a broadcast, "
        "an output that was added or renamed."
    )
    return Finding(describe("The output has another shape than it should have:", problems, cause))


def _texts(words: Any) -> Iterator[str]:
    if isinstance(words, str):
        yield words
    elif words is not None:
        for each in words.values() if isinstance(words, Mapping) else words:
            yield from _texts(each)


def _pairs(
    value: Any, words: Any, path: str, error: Callable[[str], Exception]
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
    is_by_name = isinstance(words, Mapping)
    names = list(words) if is_by_name else list(range(len(words)))
    if not is_by_name and isinstance(value, tuple | list) and len(value) > len(words):
        raise error(
            f"{path} has {len(value)} parts, where {words!r} names {len(words)}; None stands for one "
            "that is not looked at."
        )
    found = []
    for name in names:
        is_field = is_by_name and not isinstance(value, Mapping)
        try:
            each = getattr(value, str(name)) if is_field else value[name]
        except (AttributeError, KeyError, IndexError, TypeError):
            raise error(f"{path} has no {name!r}: it is {type(value).__name__}.") from None
        where = f"{path}.{name}" if is_field else f"{path}[{name!r}]"
        found += _pairs(each, words[name], where, error)
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
def check_finite(model: Callable[..., Any], inputs: Any, *, infinite: Collection[str] = ()) -> None:
    """Raise Finding for a NaN or an infinity in the inputs, the weights, the outputs or the gradients.

    The first line that made one out of finite numbers is named. The gradients are those of a random
    weighted sum of all outputs; where no output has a gradient they are not looked at.

    An infinity is meant in buffers (a mask, a bound), in an input that is 0 or -inf everywhere (a
    mask), and in the inputs and outputs whose paths are in infinite: `output['logits']`.
    """
    given = tensors(inputs, "inputs")
    meant = [*infinite, *(path for path, each in given if _is_mask(each))]
    buffers = [name for name, each in state(model) if not isinstance(each, torch.nn.Parameter)]
    for what, named, allowed in (("inputs", given, meant), ("weights", state(model), buffers)):
        if problems := _not_finite(named, allowed):
            cause = {
                "inputs": "missing values, or a division by a standard deviation of 0, in the data.",
                "weights": "a tensor of torch.empty that was never filled, or a step of infinite size.",
            }
            raise Finding(describe(f"The {what} are not finite:", problems, cause[what]))
    with untouched(model), seeded():
        output = run(model, inputs)
        found = returned(output)
        check_paths("infinite", infinite, (path for path, _ in (*given, *found)))
        if problems := _not_finite(found, infinite):
            line = _first_bad_line(model, inputs)
            raise Finding(
                describe(
                    "The output is not finite:",
                    [*problems, *([line] if line else [])],
                    "log of 0, division by 0, a softmax over positions that are all masked, exp of a "
                    "large number. Where an infinity is meant (a mask), name its path in infinite=.",
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


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether it is 0 or -inf everywhere: what is added to the scores of an attention."""
    return tensor.is_floating_point() and bool(((tensor == 0) | (tensor == -torch.inf)).all())


def _not_finite(named: list[tuple[str, torch.Tensor]], infinite: Collection[str] = ()) -> list[str]:
    """Return what is not finite; infinite: names of those in which only NaN is wrong."""
    problems = []
    for name, tensor in named:
        each = dense(tensor)
        if each.is_floating_point() or each.is_complex():
            nan, bad = int(each.isnan().sum()), int((~each.isfinite()).sum())
            if nan if name in infinite else bad:
                problems.append(
                    f"{name} {shape(each)}: {nan} NaN and {bad - nan} infinities of {each.numel()}"
                )
    return problems


def _first_bad_line(model: Callable[..., Any], inputs: Any) -> str:
    """Return the line that first made a NaN of what had none; without a NaN, an infinity."""
    lines: dict[str, str] = {}

    def look(name: str, given: tuple[Any, ...], result: Any) -> None:
        made = tensors(result, "")
        # What is written in place had none before: the line that made one would stand here already.
        own = {id(each) for _, each in made}
        before = [(where, each) for where, each in tensors(given, "") if id(each) not in own]
        for what, is_bad in (("NaN", torch.isnan), ("infinity", torch.isinf)):
            if what not in lines and _has(made, is_bad) and not _has(before, is_bad):
                lines[what] = f"{calling_line()} ({name} made the first {what})"

    with seeded(), torch.no_grad(), watched(look):
        run(model, inputs)
    return lines.get("NaN") or lines.get("infinity", "")


def _has(
    named: list[tuple[str, torch.Tensor]], is_bad: Callable[[torch.Tensor], torch.Tensor]
) -> bool:
    return any(
        bool(is_bad(dense(each)).any())
        for _, each in named
        if each.is_floating_point() or each.is_complex()
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

    with untouched(model), seeded(), torch.no_grad(), watched(look):
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
    if dtype.is_complex:
        dtype = dtype.to_real()
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
    whose steps depend on values (`.item()`, `x[mask]`) cannot run on it, and raises CannotCheck.
    on_cpu: what is meant to be on the CPU, by its path, `inputs['lengths']`; what is computed from
    it alone, or from a `.cpu()`, is too. Single numbers may be anywhere.
    """
    own = state(model)
    check_paths("on_cpu", on_cpu, (path for path, _ in tensors(inputs, "inputs")))
    given = [(path, each) for path, each in tensors(inputs, "inputs") if path not in on_cpu]
    if not own and not given:
        raise CannotCheck("Neither model nor inputs hold a tensor.")
    device = (own or given)[0][1].device
    problems = [
        f"{name} {shape(each)} is on {each.device}"
        for name, each in (*own, *given)
        if each.device != device and each.dim()
    ]
    if not problems:
        problems = _strays(model, inputs, device)
    if problems:
        raise Finding(
            describe(
                f"Not on {device}, where {'the model' if own else 'the first input'} is:",
                problems,
                "a part of the batch without .to(device), a tensor made in forward without device=, a "
                "constant kept as an attribute where register_buffer moves it with the model, or "
                "modules in a list that is not an nn.ModuleList.",
            )
        )


def _strays(model: Callable[..., Any], inputs: Any, device: torch.device) -> list[str]:
    """Return the first tensor in the forward pass that is on another device."""
    found: list[str] = []
    inputs = fresh(inputs)
    meant = {id(each): each for _, each in tensors(inputs, "")}  # kept: no other gets its id

    def look(name: str, arguments: tuple[Any, ...], result: Any) -> None:
        taken = [each for _, each in tensors(arguments, "") if each.device != device and each.dim()]
        made = [each for _, each in tensors(result, "") if each.device != device and each.dim()]
        if name in MOVES or (taken and all(id(each) in meant for each in taken)):
            meant.update((id(each), each) for each in made)
        for what, values in (("an argument", taken), ("the result", made)):
            for each in values:
                # Where the call fails, what is meant to be there is there in vain.
                if not found and (id(each) not in meant or result is None):
                    found.append(
                        f"{calling_line()}: {what} of {name}, {shape(each)}, is on {each.device}"
                    )

    with untouched(model), seeded(), torch.no_grad(), watched(look):
        try:
            call(model, inputs)
        except (RuntimeError, NotImplementedError) as error:
            words = f"{error}".partition("\n")[0]
            if found:
                return found
            if "same device" in words:
                return [words]
            if device.type == "meta":
                raise CannotCheck(
                    f"The model does not run on meta, whose tensors have no values ({words}). Check it "
                    "on a real device."
                ) from error
            raise
    return found
