"""Evaluations inside the loop: nothing of them is left in what trains, and none is skipped by an end.

An evaluation after a report is after the checkpoint of that step, too. So what it draws is put back,
else a resumed run would draw other numbers than one that evaluated; and one that an end cut off, or
SIGTERM left no time for, is made when the run resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from tracks_dagster.stores.journals import journal_prefix, read_lines
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import AttemptRef, run_track
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.track import read_records
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.saves import random_state

Evaluate = Callable[[], Mapping[str, float]]


@contextmanager
def leaving_no_trace(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put every generator, and whether each part of `modules` trains, back as they were."""
    drawn = random_state.capture()
    trains = [(part, part.training) for module in modules for part in module.modules()]
    try:
        yield
    finally:
        random_state.restore(drawn)
        for part, was_training in trains:
            part.training = was_training


class Evaluations:
    """What `Attempt.evaluate_every` was asked for."""

    def __init__(self, every_steps: int, evaluate: Evaluate) -> None:
        """Raise InvalidInput for what is not a number of steps."""
        if type(every_steps) is not int or every_steps < 1:
            raise InvalidInput(
                f"a.evaluate_every({every_steps!r}, …): give a whole number of steps, 1 or more."
            )
        self.evaluate = evaluate
        self._every_steps = every_steps

    def is_due(self, step: int) -> bool:
        """Tell whether one belongs after `step`."""
        return step > 0 and step % self._every_steps == 0


def evaluated_before(launch: Launch, step: int) -> Mapping[str, float] | None:
    """Return what an earlier attempt of the run found after `step`; None where none did. Collective."""
    found: Mapping[str, float] | None = launch.ranks.from_first(lambda: _found_before(launch, step))
    return found


def _found_before(launch: Launch, step: int) -> dict[str, float] | None:
    run_id = launch.place.run_id
    state = run_fold.fold(read_records(launch.store, run_track(run_id)))
    for attempt in reversed(state.attempts if state else ()):
        if attempt.placed is None or attempt.attempt_id >= launch.place.attempt_id:
            continue
        ref = AttemptRef(run_id, attempt.attempt_id)
        prefix = journal_prefix(ref, attempt.placed.launch_id, 0)
        for line in read_lines(launch.store, prefix):
            if line.get("kind") == "evaluated" and line.get("step") == step:
                return dict(line.get("metrics") or {})
        if attempt.resumed_step < step:
            break  # it ran that step itself; what older ones found is of a step that was run again
    return None
