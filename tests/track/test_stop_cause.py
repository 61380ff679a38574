"""Why training stopped at a checkpoint: converged, all its steps, early, cut off, or not at all."""

from __future__ import annotations

import pytest

from tests.histories import History
from tracks_dagster.track.states.stop_cause import CONVERGED_WORDS, describe_stop, stop_cause


def run(reason: str | None, *, last_step: int = 20, lines: tuple[str, ...] = ()) -> History:
    """A run that committed steps 10 and 20, and whose attempt ended so, or is open."""
    history = History().declare()
    history.open().supervise().place().restore().commit(10).commit(20)
    return history if reason is None else history.end(reason, last_step=last_step, lines=lines)


@pytest.mark.parametrize(
    ("history", "cause", "words"),
    [
        (run("completed"), "step_budget", "it had all its steps"),
        (run("early_stopped"), "early_stop", "its script stopped early"),
        (
            run("early_stopped", lines=(f"left its loop, {CONVERGED_WORDS};",)),
            "converged",
            "converged",
        ),
        (run("preempted", last_step=23), "cut_off", "attempt 1 ended after step 23 as preempted"),
        (run("completed", last_step=30), "trained_on", "to step 30"),  # its last save was lost
        (run(None), "open", "Attempt 1 trains on"),
    ],
)
def test_the_newest_checkpoint_says_how_training_stopped(
    history: History, cause: str, words: str
) -> None:
    first, newest = (each.ref for each in history.state.checkpoints)
    assert stop_cause(history.state, newest) == cause
    assert words in describe_stop(history.state, newest)
    assert stop_cause(history.state, first) == "trained_on"


def test_a_run_without_an_attempt_has_no_end() -> None:
    branch = History().declare()
    source = run("completed").state.checkpoints[0].ref
    assert stop_cause(branch.state, source) == "trained_on"
    assert describe_stop(branch.state, source) == "Training went on after it."
