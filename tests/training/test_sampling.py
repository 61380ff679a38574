"""The order of samples: a function of seed and step only."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tracks_dagster.retry.remediation import Remedied, Tried, save_device_memory
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.samples import SampleOrder
from tracks_dagster.training.sampling import (
    PART,
    BatchSampler,
    FeistelPermutation,
    SampleIndex,
    sample_rng,
    split,
)

lengths = st.integers(1, 60)
seeds = st.integers(0, 2**31 - 1)
orders = st.sampled_from(SampleOrder)


windows = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 6)).map(lambda w: [w[0], w[0] + w[1]]), max_size=4
)


def sampler(
    length: int,
    *,
    seed: int = 0,
    batch: int,
    rank: int = 0,
    ranks: int = 1,
    skip: list[list[int]] | None = None,
    order: SampleOrder = SampleOrder.FEISTEL,
) -> BatchSampler:
    return BatchSampler(
        length,
        seed=seed,
        global_batch=batch,
        rank=rank,
        world_size=ranks,
        skip_windows=skip,
        order=order,
    )


def blocks_by_brute_force(skip: list[list[int]], *, until: int) -> list[int]:
    """The blocks of steps 1 … until: a long list of all, each window cut out of what is left."""
    blocks = list(range(1, until + 100))
    for first, last in skip:
        del blocks[first - 1 : last]
    return blocks[:until]


def shares(made: BatchSampler, *, after: int, until: int) -> list[list[SampleIndex]]:
    made.resume_after(after, until=until)
    return list(made)


@given(length=lengths, seed=seeds, batch=st.integers(1, 20), order=orders)
def test_each_sample_comes_once_an_epoch(
    length: int, seed: int, batch: int, order: SampleOrder
) -> None:
    steps = -(-3 * length // batch)
    made = sampler(length, seed=seed, batch=batch, order=order)
    stream = [i for share in shares(made, after=0, until=steps) for i in share]
    for epoch in range(3):
        ours = stream[epoch * length : (epoch + 1) * length]
        assert sorted(ours) == list(range(length))
        assert {index.epoch for index in ours} == {epoch}


@given(length=lengths, seed=seeds, share=st.integers(1, 6), ranks=st.integers(1, 4))
def test_the_ranks_together_see_what_one_rank_would(
    length: int, seed: int, share: int, ranks: int
) -> None:
    alone = sampler(length, seed=seed, batch=share * ranks)
    whole = shares(alone, after=0, until=8)
    parts = [
        shares(
            sampler(length, seed=seed, batch=share * ranks, rank=r, ranks=ranks), after=0, until=8
        )
        for r in range(ranks)
    ]
    assert whole == [[i for part in parts for i in part[s]] for s in range(8)]
    assert whole == [alone.global_indices(step).tolist() for step in range(1, 9)]


@given(length=lengths, seed=seeds, batch=st.integers(1, 20), after=st.integers(0, 7), order=orders)
def test_a_resumed_iteration_goes_on_where_the_cursor_stands(
    length: int, seed: int, batch: int, after: int, order: SampleOrder
) -> None:
    begun = sampler(length, seed=seed, batch=batch, order=order)
    whole = shares(begun, after=0, until=8)
    resumed = sampler(length, seed=seed, batch=batch)
    resumed.go_on_at(begun.position(after))
    assert resumed.position(after) == begun.position(after)
    assert shares(resumed, after=after, until=8) == whole[after:]
    assert len(resumed) == 8 - after
    assert resumed.cursor(after) == sum(len(share) for share in whole[:after])


def test_reading_ahead_moves_no_cursor() -> None:
    made = sampler(10, batch=3)
    made.resume_after(0, until=5)
    ahead = iter(made)
    for _ in range(4):
        next(ahead)
    assert made.position(1) == {
        "cursor": 3,
        "epoch": 0,
        "seed": 0,
        "dataset_length": 10,
        "global_batch": 3,
        "order": "feistel",
    }
    assert made.epoch(3) == 0  # 9 of 10 consumed: the next sample is the epoch's last
    assert made.epoch(4) == 1  # 12 of 10


def test_a_checkpoint_without_an_order_is_of_a_run_that_began_with_the_first() -> None:
    """What such a checkpoint says stays the same, byte for byte."""
    old = {"cursor": 12, "epoch": 1, "seed": 0, "dataset_length": 10, "global_batch": 4}
    made = sampler(10, batch=4)
    made.go_on_at(old)
    assert made.position(3) == old
    first = sampler(10, batch=4, order=SampleOrder.SORTED)
    assert made.global_indices(1).tolist() == first.global_indices(1).tolist()
    with pytest.raises(InvalidInput, match="'spiral', which this version does not know"):
        made.go_on_at({**old, "order": "spiral"})


def test_a_step_over_the_ends_of_parts_is_whole() -> None:
    made = sampler(3 * PART, batch=2 * PART + 2)
    epoch = FeistelPermutation(3 * PART, seed=0, epoch=0).at(0, 2 * PART + 2)
    assert made.global_indices(1).tolist() == epoch.tolist()


def test_a_billion_samples_cost_no_memory_before_the_first_batch() -> None:
    tracemalloc.start()
    try:
        [first] = shares(sampler(10**9, batch=24), after=0, until=1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(set(first)) == 24
    assert peak_bytes < 1 << 20  # of which an eighth are the 4096 places that are computed at once


@settings(max_examples=30)
@given(seed=seeds, epoch=st.integers(0, 5), index=st.integers(0, 2**40))
def test_a_samples_random_numbers_depend_on_seed_epoch_and_index_only(
    seed: int, epoch: int, index: int
) -> None:
    draws = sample_rng(seed, epoch, index).random(4)
    assert np.array_equal(draws, sample_rng(seed, epoch, index).random(4))
    for other in [(seed + 1, epoch, index), (seed, epoch + 1, index), (seed, epoch, index + 1)]:
        assert not np.array_equal(draws, sample_rng(*other).random(4))


def test_an_index_keeps_its_epoch_on_the_way_to_a_worker() -> None:
    there = pickle.loads(pickle.dumps(SampleIndex(5, epoch=2)))
    assert (there, there.epoch) == (5, 2)


@pytest.mark.parametrize(("length", "batch", "ranks"), [(0, 4, 1), (10, 4, 3), (10, 0, 1)])
def test_what_cannot_be_sampled_is_refused(length: int, batch: int, ranks: int) -> None:
    with pytest.raises(InvalidInput, match=r"divided|no samples"):
        sampler(length, batch=batch, ranks=ranks)


# --- skip windows ----------------------------------------------------------------------------------


@given(length=lengths, seed=seeds, share=st.integers(1, 6), ranks=st.integers(1, 3), skip=windows)
def test_the_samples_of_a_window_are_left_out_and_no_others(
    length: int, seed: int, share: int, ranks: int, skip: list[list[int]]
) -> None:
    batch, until = share * ranks, 9
    blocks = blocks_by_brute_force(skip, until=until)
    plain = sampler(length, seed=seed, batch=batch)
    expected = [plain.global_indices(block).tolist() for block in blocks]
    parts = [
        shares(
            sampler(length, seed=seed, batch=batch, rank=r, ranks=ranks, skip=skip),
            after=0,
            until=until,
        )
        for r in range(ranks)
    ]
    assert [[i for part in parts for i in part[s]] for s in range(until)] == expected
    whole = sampler(length, seed=seed, batch=batch, skip=skip)
    assert [whole.global_indices(step).tolist() for step in range(1, until + 1)] == expected
    assert [whole.cursor(step) for step in range(until + 1)] == [0, *(b * batch for b in blocks)]
    epochs = [[(b - 1) * batch + i for i in range(batch)] for b in blocks]
    assert [[i.epoch for part in parts for i in part[s]] for s in range(until)] == [
        [position // length for position in positions] for positions in epochs
    ]


@given(length=lengths, seed=seeds, batch=st.integers(1, 20), skip=windows, after=st.integers(0, 8))
def test_a_run_with_windows_resumes_where_it_stood(
    length: int, seed: int, batch: int, skip: list[list[int]], after: int
) -> None:
    whole = shares(sampler(length, seed=seed, batch=batch, skip=skip), after=0, until=8)
    resumed = sampler(length, seed=seed, batch=batch, skip=skip)
    assert shares(resumed, after=after, until=8) == whole[after:]


@given(
    length=lengths, batch=st.integers(1, 20), skip=windows, saved=st.integers(0, 8), more=windows
)
def test_a_window_after_a_checkpoint_changes_nothing_that_led_to_it(
    length: int, batch: int, skip: list[list[int]], saved: int, more: list[list[int]]
) -> None:
    after = [[saved + first, saved + last] for first, last in more]
    before = sampler(length, batch=batch, skip=skip)
    now = sampler(length, batch=batch, skip=[*skip, *after])
    for step in range(1, saved + 1):
        assert now.global_indices(step).tolist() == before.global_indices(step).tolist()
    assert now.position(saved) == before.position(saved)


def test_a_window_over_the_end_of_an_epoch_takes_from_both() -> None:
    """10 samples, batches of 4: steps 2 and 3 are positions 4 to 11, the last two of epoch 1."""
    made = sampler(10, batch=4, skip=[[2, 3]])
    first, second = shares(made, after=0, until=2)
    assert first == FeistelPermutation(10, seed=0, epoch=0).at(0, 4).tolist()
    assert second == FeistelPermutation(10, seed=0, epoch=1).at(2, 4).tolist()
    assert {index.epoch for index in second} == {1}
    assert (made.cursor(1), made.cursor(2), made.epoch(2)) == (4, 16, 1)


@pytest.mark.parametrize(
    ("skip", "says"),
    [
        ("11-15", "is not a list"),
        ([[3, 2]], r"\[3, 2\], which is not a window"),
        ([[0, 2]], "is not a window"),
        ([[1.5, 2]], "is not a window"),
        ([3], "is not a window"),
        ([[1, 1]] * 65, "at most 64"),
    ],
)
def test_windows_that_are_not_valid_are_refused(skip: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        sampler(10, batch=2, skip=skip)


# --- half the micro-batch --------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_half_the_micro_batch_trains_on_the_same_samples_in_the_same_order(ranks: int) -> None:
    config = {"global_batch": 24, "micro_batch": 4, "accumulation": 24 // (4 * ranks)}
    before = Tried(config=config, compute=ComputeRequest(ranks=ranks))
    remedied = save_device_memory(before, {before.identity}, {})
    assert isinstance(remedied, Remedied)
    assert remedied.tried.config["micro_batch"] == 2
    assert seen_by(remedied.tried) == seen_by(before)
    assert [len(step) for step in seen_by(before)] == [24] * 5


def seen_by(tried: Tried) -> list[list[int]]:
    """What a gang computes on in five steps: rank after rank, micro-batch after micro-batch."""
    ranks, steps = tried.compute.ranks, []
    parts = [
        shares(
            sampler(50, batch=tried.config["global_batch"], rank=rank, ranks=ranks),
            after=0,
            until=5,
        )
        for rank in range(ranks)
    ]
    for step in range(5):
        micros = [
            micro.tolist()
            for part in parts
            for micro in split(
                torch.tensor([int(i) for i in part[step]]),
                micro_batch=tried.config["micro_batch"],
                device=torch.device("cpu"),
            )
        ]
        assert len(micros) == ranks * tried.config["accumulation"]
        steps.append([index for micro in micros for index in micro])
    return steps
