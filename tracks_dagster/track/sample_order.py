"""Which shuffle orders the samples of an epoch. A run keeps the one that it began with."""

from __future__ import annotations

from enum import StrEnum

from tracks_dagster.track.errors import InvalidInput


class SampleOrder(StrEnum):
    """How the permutation of an epoch is made (`training.stepping.permutations`)."""

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
