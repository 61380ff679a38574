"""What an attempt that ends had run again, and the first step that came out otherwise.

Read at its end alone, and bounded: the newest steps of the attempts before it, and as many of its own
first ones. `attempts.continuity` compares them.
"""

from __future__ import annotations

from tracks_dagster.attempts.continuity import attempt_losses, continuity
from tracks_dagster.stores.journals import first_steps, read_tail
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.run_state import AttemptState, RunState

STEPS_MAX = 2000  # that are compared of an attempt, the newest before its end
ATTEMPTS_MAX = 20  # the newest before it that are looked at


def first_difference(store: ObjectStore, state: RunState, attempt: AttemptState) -> int | None:
    """Return the first step that `attempt` ran again with another loss; None where none is known."""
    if attempt.resumed_step == 0 or attempt.placed is None:
        return None
    earlier = [each for each in state.attempts if each.attempt_id < attempt.attempt_id]
    before = {
        each.attempt_id: _past(store, state, each, attempt.resumed_step)
        for each in earlier[-ATTEMPTS_MAX:]
    }
    until = max((step for losses in before.values() for step in losses), default=0)
    if until <= attempt.resumed_step:
        return None
    ref = AttemptRef(state.run_id, attempt.attempt_id)
    again = first_steps(store, ref, attempt.placed.launch_id, until=until)
    found = continuity(
        attempt_losses(state, attempt, {step.step: step.loss for step in again}),
        [attempt_losses(state, each, before.get(each.attempt_id, {})) for each in earlier],
    )
    return None if found is None else found.first_difference


def _past(
    store: ObjectStore, state: RunState, attempt: AttemptState, resumed_step: int
) -> dict[int, float]:
    """Return the losses of the steps that `attempt` had run past `resumed_step`, its newest ones."""
    ran_past = (attempt.ended.last_step or 0 if attempt.ended else 0) - resumed_step
    if ran_past <= 0 or attempt.placed is None:
        return {}
    ref = AttemptRef(state.run_id, attempt.attempt_id)
    steps_max = min(ran_past, STEPS_MAX)
    tail = read_tail(store, ref, attempt.placed.launch_id, steps_max=steps_max)
    return {step.step: step.loss for step in tail.steps if step.step > resumed_step}
