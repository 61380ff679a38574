"""What Dagster shows of a checkpoint, by the track alone."""

from __future__ import annotations

from tests.histories import History
from tests.stories import Story
from tracks_dagster.checkpoints.effects.checkpoint_reports import (
    checkpoint_report,
    samples_per_s,
)
from tracks_dagster.track.bodies import TimeSpent


def test_each_commit_has_the_rate_since_the_one_before_and_its_metrics_as_numbers(
    story: Story,
) -> None:
    """24 samples a step, which takes 0.4 s and 0.1 s for its data: 48 a second."""
    story.attempt("preempted", last_step=23, commits=(10, 20))
    story.attempt("completed", last_step=40, commits=(40,))
    state = story.history.state
    found = [checkpoint_report(state, commit) for commit in state.checkpoints]
    assert [each.metadata["samples_per_s"] for each in found] == [48.0, 48.0, 48.0]
    assert [each.metadata["metric_loss"] for each in found] == [3.5, 3.5, 3.5]


def test_the_time_of_saves_is_not_time_of_training_and_what_nobody_measured_is_unknown() -> None:
    history = History("r-1").declare().open().place().restore()
    history.commit(10, spent=TimeSpent(steps_s=4.0, data_s=1.0))
    history.commit(20, spent=TimeSpent(steps_s=8.0, data_s=2.0, saving_s=60.0, eval_s=60.0))
    history.commit(30).commit(40, cursor=None, spent=TimeSpent(steps_s=16.0))
    rates = [samples_per_s(history.state, each) for each in history.state.checkpoints]
    assert rates == [48.0, 48.0, None, None]
