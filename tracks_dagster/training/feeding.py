"""Where a script's batches come from: a loader over our sampler, any other iterable, or nothing.

Over `a.sampler` the order is ours: nothing has to be saved to continue it. Any other iterable has an
order of its own; it continues where it was only as far as it has a state that a checkpoint keeps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from tracks_dagster.track.errors import CheckpointMismatch, TrainingError
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.safe_text import one_line, visible
from tracks_dagster.training.sampling import Batch, BatchSampler
from tracks_dagster.training.saves.trained import LOADER, Stateful, Trained

OWN_ORDER = "own"  # in a checkpoint's `data`: the order of samples is the script's
BESIDE = "beside"  # there: the positions of further samplers, in the order in which they were made
NOTHING: Any = object()  # what `next` gives behind the last batch; a loader may yield None
PARTS_DEEP_MAX = 4  # of samplers and data sets that wrap one another
STATE_CHARS_MAX = 200  # of what a loader's state says, on a commit


class Feed:
    """One attempt's batches. loader: None where the script fetches its own; samplers: those of ours,
    none where the order is not ours; state: the name that the loader's state is registered by, or None.

    The sampler of `loader` gives the order; others go on beside it, a batch in each step.
    """

    def __init__(
        self, loader: Iterable[Batch] | None, samplers: Sequence[BatchSampler], *, state: str | None
    ) -> None:
        self._fetches_itself = loader is None
        self._loader = itertools.repeat(None) if loader is None else loader
        own = [each for each in samplers if each is getattr(loader, "batch_sampler", None)]
        self._sampler = next(iter((*own, *samplers)), None)
        self._beside = [each for each in samplers if each is not self._sampler]
        self._state = state
        self._batches: Iterator[Batch] = iter(())
        self._passes = 0  # over a finite loader whose order is not ours

    @property
    def seed(self) -> int | None:
        """The seed of the order, where it is ours."""
        return None if self._sampler is None else self._sampler.seed

    def go_on_at(self, saved: Mapping[str, Json], *, step: int) -> None:
        """Take in where a checkpoint of `step` stood.

        Raises CheckpointMismatch when it was written under another order of samples.
        """
        is_own = saved.get("order") == OWN_ORDER
        if is_own != (self._sampler is None):
            ours, own = "the order of a.sampler", "an order of the script's own"
            raise CheckpointMismatch(
                f"Step {step} was saved in {own if is_own else ours} and this attempt has "
                f"{ours if is_own else own}: it would train on other samples. Call a.sampler, or "
                "leave it out, as when the run began."
            )
        if self._sampler is None:
            self._passes = saved["epoch"] or 0
            return
        self._sampler.go_on_at(saved)
        beside = saved.get(BESIDE, [])
        if len(beside) != len(self._beside):
            raise CheckpointMismatch(
                f"Step {step} was saved with {1 + len(beside)} orders of a.sampler, and this attempt "
                f"has {1 + len(self._beside)}; call a.sampler as often as when the run began."
            )
        for each, position in zip(self._beside, beside, strict=True):
            each.go_on_at(position)

    def begin(self, *, after: int, until: int) -> None:
        """Let the next batch be the one of step `after` + 1. Forks the loader's workers."""
        for each in (self._sampler, *self._beside):
            if each is not None:
                each.resume_after(after, until=until)
        for each in self._beside:
            each.keep_pace(after + 1)
        self._batches = self._pass()

    def next(self, step: int) -> Batch:
        """Return the batch of `step`, which is the next one, or NOTHING behind the last.

        A loader in an order of its own that ends is gone through again.
        """
        for each in self._beside:
            each.keep_pace(step)
        batch = next(self._batches, NOTHING)
        if batch is NOTHING and self._sampler is None and not isinstance(self._loader, Iterator):
            self._passes += 1
            self._batches = self._pass()
            batch = next(self._batches, NOTHING)
        return batch

    def position(self, step: int) -> dict[str, Json]:
        """Return all that the samples after `step` depend on; a checkpoint keeps it."""
        if self._sampler is not None:
            position = self._sampler.position(step)
            beside = [each.position(step) for each in self._beside]
            return {**position, BESIDE: beside} if beside else position
        return {
            "order": OWN_ORDER,
            "cursor": None,
            "epoch": None if self._fetches_itself else self._passes,
            "state": self._state,
        }

    def check_position(self, saved: Mapping[str, Json], *, step: int) -> None:
        """Raise CheckpointMismatch when our order continues elsewhere than the checkpoint's."""
        ours = None if self._sampler is None else self.position(step)
        if ours is not None and ours != saved:
            raise CheckpointMismatch(
                f"Step {step} was saved at {saved} and this attempt would continue at {ours}: "
                "it would train on other samples. Data, seed and global batch must stay as they "
                "were, and skip_windows up to that step."
            )

    def cursor(self, step: int) -> int | None:
        """Return how much of our order is consumed when `step` is done; None where it is not ours."""
        return None if self._sampler is None else self._sampler.cursor(step)

    @property
    def samples(self) -> int | None:
        """How many samples a step has over all ranks; None where the order is not ours."""
        return None if self._sampler is None else self._sampler.global_batch

    def indices_sha256(self, step: int) -> str | None:
        """Return the digest of the samples of `step`; None where the order is not ours."""
        return None if self._sampler is None else self._sampler.indices_sha256(step)

    def _pass(self) -> Iterator[Batch]:
        if self._sampler is None:  # what torch's loaders and HF's data sets shuffle a pass by
            for part in (getattr(self._loader, name, None) for name in ("sampler", "dataset")):
                if callable(set_epoch := getattr(part, "set_epoch", None)):
                    set_epoch(self._passes)
        return iter(self._loader)


@contextmanager
def quiet_iterators() -> Iterator[None]:
    """Let no iterator over a loader of ours draw from torch's generator: torch seeds its workers so.

    A script makes one in its loop, once an attempt; a resumed run would draw once more than another.
    """
    make = DataLoader.__iter__

    def quietly(loader: DataLoader[Any]) -> Any:
        if not isinstance(loader.batch_sampler, BatchSampler):
            return make(loader)
        drawn = torch.get_rng_state()
        try:
            return make(loader)
        finally:
            torch.set_rng_state(drawn)

    DataLoader.__iter__ = quietly  # type: ignore[method-assign]
    try:
        yield
    finally:
        DataLoader.__iter__ = make  # type: ignore[method-assign]


def state_of(trained: Trained, loader: object) -> str | None:
    """Return the name that a loader's state is registered by, LOADER where it is not yet, or None.

    Raises TrainingError for a registered part of a loader whose workers fetch ahead: a data set, of
    which each has a copy, or a sampler, which is asked before its samples are used.
    """
    found = None
    parts = _parts_of(loader)
    for name, each in {**trained.named, **trained.per_rank}.items():
        if each is loader:
            return name
        kind = next((kind for kind, part in parts if part is each), None)
        if kind is None or isinstance(loader, Stateful):
            continue
        if workers := getattr(loader, "num_workers", 0) or getattr(loader, "_num_workers", 0):
            why = (
                f"is read by {workers} loader workers, each with a copy of its own, and its state here "
                "never moves"
                if kind == "dataset"
                else f"is asked ahead by {workers} loader workers, so its state is that of later steps"
            )
            raise TrainingError(
                f"{name} {why}. Use num_workers=0, or a loader with a state, such as torchdata's "
                "StatefulDataLoader."
            )
        found = name
    return found or (LOADER if isinstance(loader, Stateful) else None)


def _parts_of(loader: object) -> list[tuple[str, object]]:
    """Return what a loader, or its iterator, takes its samples from, each with what it is."""
    found: list[tuple[str, object]] = []
    for name in ("dataset", "_dataset", "sampler", "batch_sampler", "_index_sampler"):
        part, kind = getattr(loader, name, None), name.strip("_")
        for _ in range(PARTS_DEEP_MAX):
            if part is None:
                break
            found.append(("dataset" if kind == "dataset" else "sampler", part))
            part = getattr(part, "dataset" if kind == "dataset" else "sampler", None)
    return found


def describe_state(values: Json) -> str:
    """Return the numbers of a loader's state in a line: its own word for where it stands."""
    return visible(one_line(", ".join(_numbers(values, ""))))[:STATE_CHARS_MAX]


def _numbers(values: Json, name: str) -> Iterator[str]:
    """Yield name=number of a state that `plain_state.take_apart` returned, by the innermost names."""
    match values:
        case {"dict": pairs}:
            for key, each in pairs:
                yield from _numbers(each, str(key))
        case {"list": parts} | {"tuple": parts}:
            for index, each in enumerate(parts):
                yield from _numbers(each, f"{name}.{index}")
        case {"number": [_, number]}:
            yield from _numbers(number, name)
        case bool():
            return
        case int() | float():
            yield f"{name}={values}"
