"""What the run of a trial came to, by its track alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.bodies import CONFIG
from tests.histories import BEGIN, History
from tests.studies.played import Played, make_study
from tracks_dagster.studies.judging import judge
from tracks_dagster.track.bodies import TrialJudged
from tracks_dagster.track.records import Json

OPTIMIZER = {"micro_batch": 8, "accumulation": 3, "global_batch": 48}


def judged_after(reason: str, **changes: Json) -> TrialJudged:
    """Return the verdict on a trial whose first attempt ended so, and whose second trained this."""
    played = Played(make_study(), lambda config, steps: 1.0)
    played.decide()
    (rung,) = played.state.open_rungs
    config = {**CONFIG, **OPTIMIZER, **rung.proposed.config}
    history = History(rung.proposed.run_id).declare(config=config, workload_class="sweep")
    history.open().supervise().place().restore().end(reason, last_step=3)
    history.open(config={**config, **changes}).supervise().place().restore()
    history.commit(9, metrics={"loss": 0.1}).end("completed", last_step=9).finish()
    now = BEGIN + timedelta(hours=1)
    verdict = judge("loss", rung, history.state, prices=None, now=now)
    assert verdict is not None
    return verdict


def test_a_metric_that_is_not_a_finite_number_at_the_last_commit_is_not_a_number() -> None:
    played = Played(make_study(metric="val_loss"), lambda config, steps: 1.0)
    played.decide()
    (rung,) = played.state.open_rungs
    history = History(rung.proposed.run_id).declare().open().supervise().place().restore()
    history.commit(5, metrics={"loss": 3.0, "val_loss": 2.0})
    history.commit(9, metrics={"loss": 90.0}, non_finite=("val_loss",))
    history.end("completed", last_step=9).finish()
    now = BEGIN + timedelta(hours=1)
    judged = judge("val_loss", rung, history.state, prices=None, now=now)
    assert judged is not None
    assert (judged.outcome, judged.value) == ("not_a_number", None)
    other = judge("nowhere", rung, history.state, prices=None, now=now)
    assert other is not None
    assert other.outcome == "failed"


@pytest.mark.parametrize("changes", [{"lr": 1e-9}, {"skip_windows": [[2, 3]]}])
def test_a_trial_whose_retry_trained_another_config_is_not_a_number(
    changes: dict[str, Json],
) -> None:
    judged = judged_after("nan_loss", **changes)
    assert (judged.outcome, judged.value) == ("not_a_number", None)
    assert f"trained with {next(iter(changes))} " in judged.why


def test_a_trial_with_a_smaller_micro_batch_is_measured_for_its_global_batch_is_the_same() -> None:
    judged = judged_after("gpu_oom", micro_batch=4, accumulation=6)
    assert (judged.outcome, judged.value) == ("measured", 0.1)
