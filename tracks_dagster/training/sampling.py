"""Which samples a step trains on: a function of (seed, step, skip windows, order), of nothing else.

The epochs' permutations, one after the other, form an endless stream of sample indices, cut into
blocks of the global batch B: block b (1-based) is the positions [(b-1)·B, b·B). Step s takes block s,
or, behind `skip_windows`, the s-th block that these leave (`track.samples`); rank r takes its r-th
contiguous slice. So the order does not depend on world size, micro-batch, loader workers or how far a
loader prefetched, and the cursor after step s is the end of its block: nothing has to be saved to
resume. Blocks are left out where the stream has them, over the end of an epoch as well: what is
skipped is not made up for in that epoch. Of an epoch only the places are computed that are read, so
memory and the time until the first batch do not depend on its length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tracks_dagster.track.errors import InvalidInput, TrainingError
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.samples import SampleOrder, block_of, find_order, skipped_blocks

Batch = Any  # a tensor, or a tuple, list or dict of batches
PART = 4096  # places of an epoch that are computed at once: 32 KiB, and steps between share them
PARTS_KEPT = 4  # what the loader reads ahead, the step that is reported, and the next of each
Indices = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
# Half of them change the left half, half the right. With 16, all orders of 3 to 6 samples are equally
# frequent as far as 40 000 keys can tell (chi-squared within 2 deviations); with 12, those of 6 samples
# are not (11 deviations), with 8 those of 5 neither (56).
ROUNDS = 16
_HALF_BITS = np.uint64(32)


class SampleIndex(int):
    """An index into the dataset that also knows its epoch, for `sample_rng`."""

    epoch: int

    def __new__(cls, index: int, epoch: int) -> SampleIndex:
        """Return `index`, seen in `epoch` (0-based)."""
        sample = super().__new__(cls, index)
        sample.epoch = epoch
        return sample

    def __reduce__(self) -> tuple[type[SampleIndex], tuple[int, int]]:
        """Travel to loader workers with the epoch."""
        return SampleIndex, (int(self), self.epoch)


class BatchSampler:
    """The `batch_sampler` of a DataLoader: each item is one rank's share of one step.

    Iterating begins after the step that `resume_after` was last given and goes on to `until`. Of one
    beside the loop's own (`keep_pace`), an iterator begins with the running step, and gives one batch
    in each step from there on.
    """

    def __init__(
        self,
        dataset_length: int,
        *,
        seed: int,
        global_batch: int,
        rank: int,
        world_size: int,
        skip_windows: Json = None,
        order: str = SampleOrder.FEISTEL,
    ) -> None:
        """Raise InvalidInput for an empty dataset, a batch that the ranks cannot divide, or windows
        that are not valid (`skip_windows`: as in the config, None for none).

        order: of a run that begins; `go_on_at` takes the one of a checkpoint.
        """
        if dataset_length < 1:
            raise InvalidInput("The dataset has no samples; there is nothing to train on.")
        if global_batch < 1 or global_batch % world_size:
            raise InvalidInput(
                f"A global batch of {global_batch} cannot be divided among {world_size} ranks; "
                f"use a multiple of {world_size}."
            )
        self.dataset_length = dataset_length
        self.seed = seed
        self.global_batch = global_batch
        self._skipped = skipped_blocks(skip_windows)
        self._share = global_batch // world_size
        self._rank = rank
        self._after_step = 0
        self._until: int | None = None  # not begun
        self._running: int | None = None  # of one beside the loop's own: the step that runs
        self._order = find_order(order)
        # Two epochs: near a boundary the loader reads ahead in the next one.
        self._sorted = lru_cache(maxsize=2)(partial(sorted_permutation, dataset_length, seed=seed))
        self._part = lru_cache(maxsize=PARTS_KEPT)(self._computed)

    def go_on_at(self, position: Mapping[str, Json]) -> None:
        """Take the order of samples from a checkpoint's `position`; one that names none is older than
        the choice. Raises InvalidInput for an order of a newer version."""
        self._order = find_order(position.get("order", SampleOrder.SORTED))

    def resume_after(self, step: int, *, until: int) -> None:
        """Let the next iteration yield the steps `step` + 1 … `until`."""
        self._after_step = step
        self._until = until

    def keep_pace(self, step: int) -> None:
        """Say that `step` runs; of one whose loader the loop does not go through."""
        self._running = step

    def __len__(self) -> int:
        """Return how many steps an iteration yields."""
        return max(0, (self._until or 0) - self._after_step)

    def __iter__(self) -> Iterator[list[SampleIndex]]:
        """Yield this rank's samples of each step, in order.

        Raises TrainingError before `a.steps` has begun, and, where the loop does not go through it,
        when it is asked for another number of batches than one in each step.
        """
        if self._until is None:
            raise TrainingError(
                "A loader over a.sampler(…) was asked for a batch before a.steps(…) began: where it "
                "has to begin is not known yet. Make its iterator inside the loop."
            )
        began = asked = self._running
        for step in range(max(self._after_step + 1, began or 0), self._until + 1):
            asked = self._checked_pace(began, asked)
            first = self._first(step) + self._rank * self._share
            indices = self._at(first, self._share)
            yield [
                SampleIndex(index, (first + place) // self.dataset_length)
                for place, index in enumerate(indices.tolist())
            ]

    def _checked_pace(self, began: int | None, asked: int | None) -> int | None:
        """Return the running step; raise TrainingError where an iterator skips one, or asks twice.

        began, asked: the step in which it was made, and was asked last. In the first one workers fetch
        ahead.
        """
        running = self._running
        if running is None or asked is None or running in (began, asked + 1):
            return running
        how = "twice in" if running == asked else f"in step {asked} and not again before"
        raise TrainingError(
            f"A loader over a.sampler(…) beside that of a.steps(…) was asked {how} step {running}; "
            "what it gives follows from the number of the step. Take one batch in each step, make its "
            "iterator again in a step that needs it, or register a loader with a state of its own."
        )

    def cursor(self, step: int) -> int:
        """Return how much of the stream all ranks have consumed or passed over when `step` is done.

        A window after `step` does not move it: what a checkpoint says is true with that window too.
        """
        return self._first(step) + self.global_batch if step > 0 else 0

    def epoch(self, step: int) -> int:
        """Return the epoch (0-based) that the cursor stands in when `step` is done."""
        return self.cursor(step) // self.dataset_length

    def position(self, step: int) -> dict[str, Json]:
        """Return all that the samples after `step` depend on; a checkpoint keeps it.

        The first order is not named: checkpoints that were written before there were two have none.
        """
        named = {} if self._order is SampleOrder.SORTED else {"order": self._order.value}
        return {
            **named,
            "cursor": self.cursor(step),
            "epoch": self.epoch(step),
            "seed": self.seed,
            "dataset_length": self.dataset_length,
            "global_batch": self.global_batch,
        }

    def global_indices(self, step: int) -> Indices:
        """Return the samples of all ranks in `step`, in order. (B,)"""
        return self._at(self._first(step), self.global_batch)

    def indices_sha256(self, step: int) -> str:
        """Return the digest of `global_indices(step)` as little-endian int64."""
        return sha256_hex(self.global_indices(step).astype("<i8", copy=False).tobytes())

    def _first(self, step: int) -> int:
        """Return the stream's position at which the block of `step` begins."""
        return (block_of(step, self._skipped) - 1) * self.global_batch

    def _at(self, position: int, count: int) -> Indices:
        """Return `count` indices of the stream from `position` on."""
        parts: list[Indices] = []
        while count > 0:  # ends: each turn takes at least one
            epoch, offset = divmod(position, self.dataset_length)
            if self._order is SampleOrder.SORTED:
                part = self._sorted(epoch=epoch)[offset : offset + count]
            else:
                begin, within = offset - offset % PART, offset % PART
                part = self._part(epoch, begin)[within : within + count]
            parts.append(part)
            position += len(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _computed(self, epoch: int, begin: int) -> Indices:
        """Return the samples at up to PART places of an epoch from `begin` on."""
        permutation = FeistelPermutation(self.dataset_length, seed=self.seed, epoch=epoch)
        part = permutation.at(begin, min(PART, self.dataset_length - begin))
        part.flags.writeable = False  # shares of steps are views of it
        return part


def sample_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the random numbers of one sample in one epoch, whichever worker draws them.

    Same key as the epoch's permutation, with the counter's third word set to index + 1: the two
    streams meet only after 2¹²⁸ draws.
    """
    counter = np.array([0, 0, index + 1, 0], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=philox_key(seed, epoch), counter=counter))


# Shuffles of 0 … n - 1, keyed by (seed, epoch): the same on every machine and version, for ever. A
# checkpoint holds a place in one and not its samples, so another order after an upgrade would train
# some samples twice and others never, unseen. They must not change; a better one gets a name of its own
# in `track.samples`.


def philox_key(seed: int, epoch: int) -> Words:
    """Return the key of all random numbers of an epoch. (2,)"""
    return np.array([seed, epoch], dtype=np.uint64)


def sorted_permutation(length: int, *, seed: int, epoch: int) -> Indices:
    """Return the order of samples 0 … length - 1 in one epoch. (length,)

    The order of 64-bit words of Philox keyed by (seed, epoch): numpy keeps a bit generator's stream
    over its versions (NEP 19), but not what `Generator.permutation` makes of it. Memory: 24 bytes a
    sample while sorting, so only runs that began with it still use it.
    """
    words = np.random.Philox(key=philox_key(seed, epoch)).random_raw(length)
    order = np.argsort(words, kind="stable").astype(np.int64, copy=False)
    order.flags.writeable = False  # shares of steps are views of it
    return order


class FeistelPermutation:
    """A shuffle of 0 … length - 1 that is computed where it is read, in constant memory.

    A Feistel network over a × b cells, a = ⌈√length⌉, b = ⌈length / a⌉: a place is (left, right), and
    each round adds a hash of one to the other, which can be undone, so no two places meet. Cells
    beyond `length` are fewer than a; what lands there is sent on until it lands inside (Black and
    Rogaway, Ciphers with Arbitrary Finite Domains, 2002: generalised Feistel, cycle walking).
    Rounds are keyed by Philox words of (seed, epoch).
    """

    def __init__(self, length: int, *, seed: int, epoch: int) -> None:
        """Draw the keys. length: 1 to 2⁶², so that a and b have at most 32 bits."""
        self._length = length
        self._a = math.isqrt(length - 1) + 1
        self._b = -(-length // self._a)
        self._keys = np.random.Philox(key=philox_key(seed, epoch)).random_raw(ROUNDS)

    def at(self, first: int, count: int) -> Indices:
        """Return the samples at places first … first + count - 1. (count,)"""
        places = self._moved(np.arange(first, first + count, dtype=np.uint64))
        # Ends: a walk meets each of the fewer than `a` cells outside once at most.
        while (outside := places >= self._length).any():
            places[outside] = self._moved(places[outside])
        return places.astype(np.int64)

    def _moved(self, cells: Words) -> Words:
        a, b = np.uint64(self._a), np.uint64(self._b)
        left, right = np.divmod(cells, b)
        for key_left, key_right in self._keys.reshape(-1, 2):
            left = (left + _below(a, right + key_left)) % a
            right = (right + _below(b, left + key_right)) % b
        return left * b + right


def _below(bound: np.uint64, words: Words) -> Words:
    """Return a hash of each word, 0 … bound - 1: the high half of 64 mixed bits, scaled down."""
    return (_mixed(words) >> _HALF_BITS) * bound >> _HALF_BITS


def _mixed(words: Words) -> Words:
    """Return the words with every bit spread over all: the finaliser of splitmix64 (Steele et al.,
    Fast Splittable Pseudorandom Number Generators, 2014; constants by Stafford, mix 13)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def split(batch: Batch, *, micro_batch: int, device: torch.device) -> Iterator[Batch]:
    """Yield `batch` in consecutive slices of `micro_batch` along dimension 0.

    Raises TrainingError when a part is not a tensor, the tensors differ in length, or the micro-batch
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
