"""Which micro-batch is sized next, and what a device is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tracks_dagster.attempts.sizing import (
    ASSUMED,
    GIB,
    MIB,
    device_memory,
    format_bytes,
    largest_fitting,
    micro_batches,
    next_micro_batch,
)
from tracks_dagster.track.errors import InvalidInput


def search(
    need: Callable[[int], int], candidates: tuple[int, ...], memory: int, first: int
) -> tuple[int | None, int]:
    """Return the largest that fits, and how many were sized."""
    sized = {first: need(first)}
    while (following := next_micro_batch(sized, candidates, memory)) is not None:
        assert following not in sized
        sized[following] = need(following)
    return largest_fitting(sized, memory), len(sized)


def bent(m: int) -> int:
    """The optimizer's peak up to 8 samples, the activations' from there on."""
    return max(900, 100 + 100 * m)


@pytest.mark.parametrize(
    ("memory", "best"),
    [
        (10_000, 96),  # 100 + 96 × 100 = 9700
        (4_999, 48),  # 4900 of 48
        (950, 8),  # 900 of 8, 1300 of 12
        (899, None),  # not even one sample
    ],
)
@pytest.mark.parametrize("first", [4, 96])
def test_the_largest_that_fits_is_found_with_few_sizings(
    memory: int, best: int | None, first: int
) -> None:
    candidates = micro_batches(96)
    assert candidates == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96)
    found, sizings = search(bent, candidates, memory, first)
    assert found == best
    assert sizings <= 2 + 4  # the first, the whole share, and log2 of 12


def test_a_step_of_which_no_more_fits_is_found_from_any_side() -> None:
    for memory in range(100, 12_000, 37):
        for first in (1, 12, 96):
            found, _ = search(bent, micro_batches(96), memory, first)
            fits = [m for m in micro_batches(96) if bent(m) <= memory]
            assert found == (fits[-1] if fits else None)


def test_a_device_is_a_class_or_a_size() -> None:
    assert device_memory("h100") == ("H100", 81_559 * MIB)
    assert device_memory("24GiB") == ("24GiB", 24 * GIB)
    with pytest.raises(InvalidInput, match=r"'GTX' is not a known device: T4, .* 24GiB"):
        device_memory("GTX")


def test_a_gpu_takes_more_than_its_tensors() -> None:
    assert ASSUMED.needed(10 * GIB) == GIB // 2 + 11 * GIB


def test_sizes_are_written_as_people_read_them() -> None:
    assert [format_bytes(n) for n in (700, 1536, 5_577_352, 81_559 * MIB, 200 * GIB)] == [
        "700 B",
        "1.5 KiB",
        "5.3 MiB",
        "79.6 GiB",
        "200 GiB",
    ]
