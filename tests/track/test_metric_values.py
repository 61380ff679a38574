"""What a run's record has of its metrics: the newest of what it rests on, the best that may be used."""

from __future__ import annotations

from tests.histories import History
from tracks_dagster.track.bodies import RetentionRule
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.metric_values import metric_values


def run(**changes: object) -> History:
    return History("r-1").declare(**changes).open().place().restore()


def test_what_was_reported_after_the_checkpoint_that_a_retry_resumed_from_is_lost() -> None:
    history = run().commit(20, metrics={"loss": 2.0})
    steps = {"loss": 25, "val_loss": 15, "acc": 25}
    history.end("preempted", last_step=25, metrics=dict.fromkeys(steps, 1.0), metric_steps=steps)
    assert metric_values(history.state).steps == {"loss": 25, "val_loss": 15, "acc": 25}
    history.open().place().restore()
    found = metric_values(history.state)
    assert found.newest == {"loss": 2.0, "val_loss": 1.0}
    assert found.steps == {"loss": 20, "val_loss": 15}


def test_nothing_of_an_attempt_with_a_checkpoint_in_quarantine_is_its_newest_value() -> None:
    history = run().commit(10, metrics={"loss": 2.0}).commit(20, metrics={"loss": 0.1})
    bad = history.state.checkpoints[-1].ref
    history.end("completed", last_step=20, metrics={"loss": 0.1}, metric_steps={"loss": 20})
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, bad)
    found = metric_values(history.state)
    assert (found.newest, found.best) == ({"loss": 2.0}, {"loss": 2.0})


def test_the_best_is_the_least_of_a_loss_and_the_most_of_others_unless_the_run_says_otherwise() -> (
    None
):
    def best(rule: RetentionRule) -> dict[str, int]:
        history = run(retention=rule)
        history.commit(10, metrics={"val_loss": 1.0, "acc": 0.5, "cost": 3.0})
        history.commit(20, metrics={"val_loss": 2.0, "acc": 0.7, "cost": 4.0})
        history.commit(30, metrics={"val_loss": 1.0, "acc": 0.7, "cost": 2.0})
        return dict(metric_values(history.state).best_steps)

    assert best(RetentionRule()) == {
        "val_loss": 10,
        "acc": 20,
        "cost": 20,
    }  # the first of two alike
    assert best(RetentionRule(metric="cost", direction="min"))["cost"] == 30


def test_the_steps_of_an_imported_runs_values_are_not_known() -> None:
    history = run().end("completed", last_step=40, metrics={"loss": 1.0})
    found = metric_values(history.state)
    assert (found.newest, found.steps, found.best) == ({"loss": 1.0}, {}, {})
