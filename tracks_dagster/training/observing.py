"""Looks on while a script trains, for `tracks conform`, and writes down what each step depends on.

Installed where `ENV_OBSERVE` is set: by `join`, and for a Python command that joins by files by being
started as `python -m tracks_dagster.training.observing SCRIPT …`. Nothing that the script computes is
changed, unless a fault is asked for. Each line of `rank-N.jsonl` is one thing that was seen: digests
of inputs, random numbers and states, never the values. `review.conformance` judges them.

What is seen is torch's own: modules, optimizers, loaders, scalers. A script that keeps an average or a
schedule in a way of its own is judged by its losses, learning rates and checkpoints alone.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.optim.swa_utils import AveragedModel
from torch.utils import data

from tracks_dagster.track import names
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.training.sampling import BatchSampler

ELEMENTS_MAX = 65_536  # of one tensor that are looked at, evenly spread over it
BATCH_TENSORS_MAX = 4  # of one that a loader gave
ROWS_MAX = 64  # of one batch that are distinguished
ATTRIBUTES_MAX = 10_000  # of all parts of a module
ATTRIBUTE_CHARACTERS_MAX = 60  # of the value of one
FILES_MAX = 1000  # written by one rank, that are named
TENSORS_MAX = 10_000  # of one save
DEPTH_MAX = 8  # of the mappings and lists that hold them
DIGEST_BYTES = 8
TAKEN_S_MAX = 30.0  # until the parent has read and committed
POLL_S = 0.02


@contextmanager
def observed(
    running: Callable[[], int], *, before_step: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Look on while the body runs; nothing where ENV_OBSERVE is not set.

    running: returns the step that the script is in, 0 before the first. before_step: called as one
    begins.
    """
    asked = os.environ.get(names.ENV_OBSERVE)
    if asked is None:
        yield
        return
    with Observer(parse_json(asked), running, before_step).installed():
        yield


class Observer:
    """What one process sees of itself.

    asked: `folder` (where to write), `leave_out` (prefixes of paths whose writers do not matter),
    and where a fault is wanted `fail_step` (that or the next one that is seen fails, once, with
    `fail_words`) or `nan_step` (from which on the weights are NaN).
    """

    def __init__(
        self,
        asked: Mapping[str, Json],
        running: Callable[[], int],
        before_step: Callable[[], object],
    ) -> None:
        self._asked = asked
        self._running = running
        self._before_step = before_step
        self._rank = int(os.environ.get("RANK", "0"))
        folder = Path(asked["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        self._leave_out = (str(folder), "/dev/", "/proc/", "/sys/", *asked["leave_out"])
        self._file = (folder / f"rank-{self._rank}.jsonl").open("a", buffering=1, encoding="utf-8")
        self._inside = threading.local()  # a module's call, of which others are parts
        self._first: nn.Module | None = None  # what the script calls first in a step
        self._step = 0  # of the newest forward
        self._optimizers: list[Optimizer] = []
        self._scaler: GradScaler | None = None
        self._files: set[str] = set()
        self._started_in = f"{Path.cwd()}{os.sep}"
        self._loaders: dict[
            object, list[int]
        ] = {}  # iterators made, batches given: by data set, order
        self._attributes: dict[str, str] = {}  # as they were noted last
        self._has_failed = False  # by the fault that was asked for
        self._is_on = True

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Look on for as long as the body runs."""
        with ExitStack() as undone:
            undone.callback(self._stop)
            for handle in (
                register_optimizer_step_pre_hook(self._before_update),
                register_optimizer_step_post_hook(self._after_update),
            ):
                undone.callback(handle.remove)
            for owner, name, seen in (
                (nn.Module, "__call__", self._forward),
                (data.DataLoader, "__iter__", self._iterator),
                (GradScaler, "step", self._scaled),
                (AveragedModel, "update_parameters", self._averaged),
                (torch, "save", self._saved),
            ):
                undone.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, _around(owner, name, seen))
            sys.addaudithook(self._audit)  # cannot be taken away: `_is_on` ends it
            yield

    def _stop(self) -> None:
        self._is_on = False

    def _write(self, what: str, **fields: Json) -> None:
        line = {"what": what, "step": self._running(), **fields}
        self._file.write(json.dumps(line) + "\n")

    def _forward(self, call: Callable[..., Any], module: nn.Module, *args: Any, **kw: Any) -> Any:
        """Note what the script feeds its first module, and the random numbers that it begins with."""
        if getattr(self._inside, "depth", 0) or not (module.training and torch.is_grad_enabled()):
            return call(module, *args, **kw)
        self._begin_forward(module, list(_tensors((args, kw))))
        self._inside.depth = 1
        try:
            return call(module, *args, **kw)
        finally:
            self._inside.depth = 0

    def _begin_forward(self, module: nn.Module, inputs: list[torch.Tensor]) -> None:
        step = self._running()
        if step > self._step:
            self._before_step()
            self._step, self._first = step, module
            self._play(step, module)
            self._write("random", state=_random_numbers())
            unsaved = digest(_buffers(module, persistent=False))
            self._write("state", state={"buffers": digest(_buffers(module)), "unsaved": unsaved})
            self._write_attributes(module)
        if module is self._first and inputs:
            rows = (
                [digest([row])[0][:DIGEST_BYTES] for row in inputs[0][:ROWS_MAX]]
                if inputs[0].dim()
                else []
            )
            self._write("input", digest=digest(inputs)[0], rows=rows)

    def _write_attributes(self, module: nn.Module) -> None:
        """Note the numbers, flags and texts that parts of the module keep in Python, and which of its
        parameters are trained: those that are not as they were noted last."""
        now = dict(islice(_attributes(module), ATTRIBUTES_MAX))
        changed = {n: text for n, text in now.items() if self._attributes.get(n) != text}
        self._attributes = now
        self._write("attributes", attributes=changed)

    def _play(self, step: int, module: nn.Module) -> None:
        """Play the fault that was asked for."""
        fail_step = self._asked.get("fail_step")
        if fail_step is not None and step >= fail_step and not self._has_failed:
            self._has_failed = True
            self._write("played")
            raise RuntimeError(self._asked["fail_words"])
        nan_step = self._asked.get("nan_step")
        if nan_step is not None and step >= nan_step:
            self._write("played")
            with torch.no_grad():
                for each in module.parameters():
                    each.fill_(math.nan)

    def _before_update(self, optimizer: Optimizer, args: Any, kw: Any) -> None:
        number = self._number(optimizer)
        groups = optimizer.param_groups
        state: dict[str, Json] = {
            f"weights{number}": digest(_parameters(optimizer)),
            f"optimizer{number}": digest(_states(optimizer)),
        }
        if self._scaler is not None:
            state["scaler"] = _text_digest(self._scaler.state_dict())
        self._write("state", state=state, lr=[float(group["lr"]) for group in groups])

    def _after_update(self, optimizer: Optimizer, args: Any, kw: Any) -> None:
        name = f"trained{self._number(optimizer)}"
        self._write("state", state={name: digest(_parameters(optimizer))})

    def _number(self, optimizer: Optimizer) -> str:
        """Return what tells this optimizer from the first one, in a name."""
        found = [i for i, each in enumerate(self._optimizers) if each is optimizer]
        if not found:
            self._optimizers.append(optimizer)
        number = found[0] if found else len(self._optimizers) - 1
        return f"-{number + 1}" if number else ""

    def _scaled(self, call: Callable[..., Any], scaler: GradScaler, *args: Any, **kw: Any) -> Any:
        self._scaler = scaler
        return call(scaler, *args, **kw)

    def _averaged(self, call: Callable[..., Any], model: AveragedModel, *args: Any) -> Any:
        found = call(model, *args)
        self._write("state", state={"averaged": digest(model.parameters())})
        return found

    def _iterator(self, call: Callable[..., Any], loader: data.DataLoader[Any]) -> Any:
        """Count the iterators over the loaders of a data set, and what they gave."""
        order = type(loader.batch_sampler).__name__, type(loader.sampler).__name__
        kind = (id(loader.dataset), loader.batch_size, *order)  # one that is made again is alike
        counts = self._loaders.setdefault(kind, [0, 0])
        counts[0] += 1
        number = list(self._loaders).index(kind)
        length = _steps_of_epoch(loader)

        def gave(batch: Any) -> None:
            counts[1] += 1
            each = [digest([part])[0] for part in islice(_tensors(batch), BATCH_TENSORS_MAX)]
            self._write(
                "batch", loader=number, made=counts[0], given=counts[1], length=length, digests=each
            )

        return _Batches(call(loader), gave)

    def _saved(self, call: Callable[..., Any], state: object, file: Any, *a: Any, **kw: Any) -> Any:
        """Note the tensors of a state: what is nobody's in torch, such as an average, is in there."""
        into = ""
        if isinstance(file, str | os.PathLike):  # torch writes it without Python's `open`
            self._wrote(os.fspath(file))
            into = f"{Path(file).name}: "
        found = islice(_named_tensors(state), TENSORS_MAX)
        self._write("saved", tensors={f"{into}{name}": digest([each])[0] for name, each in found})
        return call(state, file, *a, **kw)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_on:
            return
        if event == "open" and isinstance(args[0], str | bytes) and _writes(args[2]):
            self._wrote(os.fsdecode(args[0]))
        elif event == "os.rename":
            self._wrote(os.fsdecode(args[1]))

    def _wrote(self, path: str) -> None:
        path = os.path.abspath(path)  # noqa: PTH100  # no link is followed
        if path in self._files or len(self._files) >= FILES_MAX:
            return
        if path.startswith(self._leave_out) or "/__pycache__/" in path or path.endswith(".lock"):
            return
        self._files.add(path)
        self._write("file", path=path.removeprefix(self._started_in))


def _steps_of_epoch(loader: data.DataLoader[Any]) -> int | None:
    """Return how many batches of a loader are an epoch; None where nobody knows."""
    sampler = loader.batch_sampler
    if isinstance(sampler, BatchSampler):  # its own length is what is left of the run
        return -(-sampler.dataset_length // sampler.global_batch)
    try:
        return len(loader)
    except TypeError:
        return None


class _Batches:
    """A loader's iterator; tells `gave` of each batch."""

    def __init__(self, batches: Any, gave: Callable[[Any], None]) -> None:
        self._batches = batches
        self._gave = gave

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._gave(batch)
        return batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _around(owner: object, name: str, seen: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that hands the original, and what it is called with, to `seen`."""
    call = getattr(owner, name)

    def method(*args: Any, **kw: Any) -> Any:
        return seen(call, *args, **kw)

    return method


def digest(tensors: Iterable[torch.Tensor]) -> tuple[str, float]:
    """Return a digest of the bytes of some tensors, and the sum of their absolute values.

    Of a large one ELEMENTS_MAX elements count. The sum is for who compares within a tolerance.
    """
    sha, total = blake3(), 0.0
    for each in tensors:
        local = each.to_local() if hasattr(each, "to_local") else each  # of a sharded one
        flat = local.detach().reshape(-1)
        if flat.numel() > ELEMENTS_MAX:
            flat = flat[:: -(-flat.numel() // ELEMENTS_MAX)]
        flat = flat.cpu().contiguous()
        sha.update(flat.view(torch.uint8).numpy().tobytes())
        if flat.is_floating_point():
            total += float(flat.double().abs().sum())
    return sha.hexdigest(length=DIGEST_BYTES), total if math.isfinite(total) else -1.0


def _text_digest(value: object) -> tuple[str, float]:
    return blake3(repr(value).encode()).hexdigest(length=DIGEST_BYTES), 0.0


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in what a module is called with."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _buffers(module: nn.Module, *, persistent: bool = True) -> Iterator[torch.Tensor]:
    """Yield those that its state dict has, or the others. Of these many, such as a mask, are made
    again, some of them in the first forward pass."""
    for part in module.modules():
        for name, buffer in part._buffers.items():
            is_kept = name not in part._non_persistent_buffers_set
            if buffer is not None and is_kept == persistent and buffer.layout is torch.strided:
                yield buffer


def _attributes(module: nn.Module) -> Iterator[tuple[str, str]]:
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, bool | int | float | str) and name not in _MODULES_OWN:
                yield f"{path}.{name}".strip("."), repr(value)[:ATTRIBUTE_CHARACTERS_MAX]
    for name, parameter in module.named_parameters():
        yield f"{name}.requires_grad", str(parameter.requires_grad)


_MODULES_OWN = frozenset(vars(nn.Module())) - {"training"}


def _named_tensors(
    state: object, name: str = "", depth: int = DEPTH_MAX
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the dense tensors in what a script saves, by keys and positions joined with dots."""
    if isinstance(state, nn.Module):
        state = state.state_dict()
    if isinstance(state, torch.Tensor):
        if state.layout is torch.strided:
            yield name, state
    elif depth:
        if isinstance(state, list | tuple):
            state = dict(enumerate(state))
        for key, each in state.items() if isinstance(state, Mapping) else ():
            yield from _named_tensors(each, f"{name}.{key}" if name else str(key), depth - 1)


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _states(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield all that an optimizer keeps of its parameters, in their order."""
    for parameter in _parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        for name in sorted(state):
            value = state[name]
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, int | float):
                yield torch.tensor(float(value))


def _random_numbers() -> dict[str, Json]:
    """Return the state of each generator that a step may draw from."""
    found = {
        "torch": digest([torch.get_rng_state()]),
        "numpy": _text_digest(pickle.dumps(np.random.get_state())),
        "python": _text_digest(random.getstate()),
    }
    if torch.cuda.is_available():
        found["cuda"] = digest([torch.cuda.get_rng_state()])
    return {name: list(each) for name, each in found.items()}


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def running_step(metrics: Path, resumed: int) -> int:
    """Return the step that a command is in: the one after the last that it has reported."""
    for line in reversed(_text(metrics).split("\n")[:-1]):
        with suppress(ValueError, TypeError, KeyError):
            return int(parse_json(line)["step"]) + 1
    return resumed + 1


def wait_until_taken(metrics: Path, checkpoints: Path) -> None:
    """Wait until the parent has read all metrics, and committed what was published: a short run would
    be over before it is interrupted, and have nothing to resume from."""
    taken = metrics.with_name(names.TAKEN)
    give_up_at = time.monotonic() + TAKEN_S_MAX
    while time.monotonic() < give_up_at:
        is_read = not metrics.exists() or int(_text(taken) or 0) >= metrics.stat().st_size
        if is_read and not any(checkpoints.glob("step-*")):
            return
        time.sleep(POLL_S)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def main(words: list[str]) -> None:
    """Run a Python command, `SCRIPT …` or `-m MODULE …`, as its interpreter would, and look on."""
    metrics, published = (Path(os.environ[x]) for x in (names.ENV_METRICS, names.ENV_CHECKPOINTS))
    resumed = int(os.environ[names.ENV_RESUME_STEP])
    with observed(
        lambda: running_step(metrics, resumed),
        before_step=lambda: wait_until_taken(metrics, published),
    ):
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
