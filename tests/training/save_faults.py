"""Saves broken on purpose in one rank of a gang, at one step; only ranks of a test's own gang use it.

A save counts from the step after which it begins: `plant` is called before every report.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tracks_dagster.track.errors import StoreUnavailable
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.saves import committing

STEP = 2  # the save of this step is the broken one
RANK = 1  # and this rank breaks it
SAVE = "save-1/"  # what the ranks call it
PART_S_MAX = 0.3
PATIENT_S_MAX = committing.PART_S_MAX
WAIT_S_MAX = 60.0  # for what surely comes


def plant(fault: str | None, a: Attempt, step: int, model: nn.Module) -> None:
    """Play `fault`; every rank calls this at every step."""
    if fault is not None:
        _FAULTS[fault](a, step, model)


def part_is_lost(a: Attempt, step: int, model: nn.Module) -> None:
    """Let the rank's chunks be stored, and nobody hear of it."""
    _tell_no_part(a, step)
    if (a.rank, step) == (0, STEP):
        committing.PART_S_MAX = PART_S_MAX
    if (a.rank, step) == (0, STEP + 1):
        a._steps.saver._under_way.thread.join()  # the next save has all the time it needs
        committing.PART_S_MAX = PATIENT_S_MAX


def rank_dies_before_its_part(a: Attempt, step: int, model: nn.Module) -> None:
    """Let the rank be killed while the others wait for its part."""
    _tell_no_part(a, step)
    if (a.rank, step) == (RANK, STEP + 1):
        os.kill(os.getpid(), signal.SIGKILL)


def rank_dies_after_its_part(a: Attempt, step: int, model: nn.Module) -> None:
    """Let the rank be killed once its part is reported, and rank 0 commit when it knows of that."""
    if (a.rank, step) == (RANK, STEP + 1):
        a._launch.ranks.fetch(f"{SAVE}part-{RANK}", timeout_s=WAIT_S_MAX)
        os.kill(os.getpid(), signal.SIGKILL)
    if (a.rank, step) != (0, STEP):
        return
    saver = a._steps.saver
    close, commit, knows = saver.close, saver._committer._commit, threading.Event()

    def closing(**given: Any) -> None:
        knows.set()
        close(**given)

    def committing_late(*given: Any) -> Any:
        knows.wait(WAIT_S_MAX)
        return commit(*given)

    saver.close, saver._committer._commit = closing, committing_late


def outcome_is_lost(a: Attempt, step: int, model: nn.Module) -> None:
    """Let the rank not hear that rank 0 committed."""
    ranks = a._launch.ranks
    fetch = ranks.fetch
    if (a.rank, step) == (RANK, STEP):
        ranks.fetch = lambda key, **given: None if key.startswith(SAVE) else fetch(key, **given)


def outcome_never_arrives(a: Attempt, step: int, model: nn.Module) -> None:
    """Let the rank never hear of an outcome, not even of the last save."""
    if (a.rank, step) == (RANK, STEP):
        a._launch.ranks.fetch = lambda key, **given: None


def thread_dies(a: Attempt, step: int, model: nn.Module) -> None:
    """Let the rank's background thread meet what nobody thought of, its part being reported."""
    if (a.rank, step) == (RANK, STEP):
        a._launch.ranks.fetch = _die


def commit_dies(a: Attempt, step: int, model: nn.Module) -> None:
    """Let rank 0's background thread meet it, while the others wait for the outcome."""
    if (a.rank, step) == (0, STEP):
        a._steps.saver._committer._commit = _die


def store_fails(a: Attempt, step: int, model: nn.Module) -> None:
    """Let the rank's chunks of that step not be stored."""
    store = a.store
    put = store.put

    def fail(key: str, data: Any) -> None:
        if f"/step-{STEP}/chunks/" in key:
            raise StoreUnavailable(f"Cannot write {key}: as meant.")
        put(key, data)

    if (a.rank, step) == (RANK, STEP):
        store.put = fail


def shard_is_nan(a: Attempt, step: int, model: nn.Module) -> None:
    """Spoil what only this rank holds, and no loss depends on."""
    frozen = model.frozen
    if (a.rank, step) == (RANK, STEP) and isinstance(frozen, DTensor):
        with torch.no_grad():
            frozen.to_local().fill_(float("nan"))


def _tell_no_part(a: Attempt, step: int) -> None:
    ranks = a._launch.ranks
    post = ranks.post
    if (a.rank, step) == (RANK, STEP):
        ranks.post = lambda key, value: None if key.startswith(SAVE) else post(key, value)


def _die(*given: Any, **named: Any) -> None:
    raise LookupError("as meant")


_FAULTS: dict[str, Callable[[Attempt, int, nn.Module], None]] = {
    fault.__name__: fault
    for fault in (
        part_is_lost,
        rank_dies_before_its_part,
        rank_dies_after_its_part,
        outcome_is_lost,
        outcome_never_arrives,
        thread_dies,
        commit_dies,
        store_fails,
        shard_is_nan,
    )
}
