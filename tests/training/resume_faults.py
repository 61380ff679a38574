"""Resumes broken on purpose, each as a trainer somewhere broke its own: the proof must see them.

`plant` patches this process; only ranks of a test's own gang may call it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracks_dagster.training import starting
from tracks_dagster.training.sampling import BatchSampler
from tracks_dagster.training.saves import random_state


def plant(fault: str) -> None:
    """Break the resume of this process in the way that `fault` names."""
    _FAULTS[fault]()


def random_numbers_of_rank_0() -> None:
    """Restore the first rank's random numbers on every rank."""

    def restore_first(launch: Any, sampler: Any, fetched: Any) -> None:
        random_state.restore(fetched.rng[0])

    starting._restore_random = restore_first


def cursor_off_by_one() -> None:
    """Train on the last saved step's samples again."""
    resume_after = BatchSampler.resume_after

    def resume_one_before(self: BatchSampler, step: int, *, until: int) -> None:
        resume_after(self, max(0, step - 1), until=until)

    BatchSampler.resume_after = resume_one_before


def augmented_as_in_the_first_epoch() -> None:
    """Forget in which epoch a sample is seen: only its augmentation differs then."""
    shares = BatchSampler.__iter__

    def without_epoch(self: BatchSampler) -> Any:
        for share in shares(self):
            for index in share:
                index.epoch = 0
            yield share

    BatchSampler.__iter__ = without_epoch


def not_rehearsed() -> None:
    """Let DDP sort its buckets after the first resumed step: three ranks sum in another order."""
    starting.rehearse = lambda *given: None


def optimizer_left_behind() -> None:
    """Restore the model only."""
    load_into = starting.load_into

    def load_model(trained: Any, fetched: Any) -> None:
        fresh = trained.optimizer.state_dict()
        load_into(trained, fetched)
        trained.optimizer.load_state_dict({**fresh, "state": {}})

    starting.load_into = load_model


_FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        random_numbers_of_rank_0,
        cursor_off_by_one,
        augmented_as_in_the_first_epoch,
        not_rehearsed,
        optimizer_left_behind,
    )
}
FAULTS = tuple(_FAULTS)
