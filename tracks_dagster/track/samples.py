"""Which samples a step takes: the order of an epoch, and the windows that a run leaves out. Pure.

A run keeps the order that it started with. The config's `skip_windows` takes blocks of one global
batch out of it, 1-based: without windows step s takes block s. It is a list of [first, last], both ends
included. Each window counts in steps as they are numbered with the windows before it in the list: it
takes out the blocks that those steps would have had, and every later step moves up. So a window that
starts after the step that a checkpoint was saved at changes nothing of what led to that checkpoint.

    [[11, 15]]              step 10 takes block 10, step 11 block 16
    [[11, 15], [9, 12]]     step 8 takes block 8, step 9 block 18: 9, 10, and 16, 17 are taken out too
"""

from __future__ import annotations

from enum import StrEnum

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json

SKIP_WINDOWS = "skip_windows"  # the config's key
WINDOWS_MAX = 64  # in one config: a run that needs more has another trouble than its data
Blocks = tuple[tuple[int, int], ...]  # (first, last), 1-based, sorted, with a gap between each two


class SampleOrder(StrEnum):
    """How the permutation of an epoch is made (`training.sampling`)."""

    SORTED = "sorted"  # random words, sorted: 24 bytes a sample; of every run that names none
    FEISTEL = "feistel"  # computed where it is read, in constant memory


def find_order(name: str) -> SampleOrder:
    """Return the order of that name; raises InvalidInput for one of a newer version."""
    if name not in set(SampleOrder):
        raise InvalidInput(
            f"The samples are drawn in the order {name!r}, which this version does not know; it knows "
            f"{', '.join(SampleOrder)}. Update this checkout."
        )
    return SampleOrder(name)


def skipped_blocks(windows: Json) -> Blocks:
    """Return the blocks that a config's `skip_windows` takes out; None and [] take out none.

    Raises InvalidInput naming the window that cannot be used.
    """
    taken: Blocks = ()
    for first, last in check_windows([] if windows is None else windows):
        taken = _with(taken, block_of(first, taken), block_of(last, taken))
    return taken


def check_windows(windows: Json) -> list[list[int]]:
    """Return `windows` if it is a list of windows; raises InvalidInput."""
    if not isinstance(windows, list | tuple):
        raise InvalidInput(
            f"{SKIP_WINDOWS} = {windows!r} is not a list; write [[first, last], …] in steps, for "
            "example [[11, 15]]."
        )
    if len(windows) > WINDOWS_MAX:
        raise InvalidInput(f"{SKIP_WINDOWS} has {len(windows)} windows; at most {WINDOWS_MAX}.")
    return [_checked(window) for window in windows]


def block_of(step: int, taken: Blocks) -> int:
    """Return the block that `step` (1-based) takes when `taken` are left out.

    Step 9 with 9 to 15 left out: 9 + 7 = 16; with 17 left out as well, step 10: 10 + 7 + 1 = 18.
    """
    block = step
    for first, last in taken:
        if block < first:
            break
        block += last - first + 1
    return block


def _checked(window: Json) -> list[int]:
    is_pair = isinstance(window, list | tuple) and len(window) == 2
    if (
        not is_pair
        or not all(type(step) is int for step in window)
        or not 1 <= window[0] <= window[1]
    ):
        raise InvalidInput(
            f"{SKIP_WINDOWS} holds {window!r}, which is not a window; write [first, last], two steps "
            "from 1 on, the first not after the last."
        )
    return [window[0], window[1]]


def _with(taken: Blocks, first: int, last: int) -> Blocks:
    """Return `taken` with first … last as well, merged where they touch."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted([*taken, (first, last)]):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)
