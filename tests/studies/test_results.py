"""What a study has come to, in numbers that can be checked by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.studies.played import LR, Played, make_study, play
from tracks_dagster.ledger.facts.fact import shown
from tracks_dagster.ledger.facts.study import STUDY
from tracks_dagster.studies.results import (
    failures,
    importances,
    in_order,
    lineage_of,
    ranks_of,
    readings,
    rung_results,
)
from tracks_dagster.studies.space import Param
from tracks_dagster.track.states.study_state import HOUR_S, StudyState

SPACE = {
    **LR,
    "width": Param(kind="int", low=1, high=64),
    "rule": Param(kind="choice", values=("adam", "sgd", "lion")),
}


def halved(**changes: Any) -> StudyState:
    """A study of which the trial with the largest learning rate is the best, and one cannot train."""
    fields = {"scheduler": {"kind": "halving", "eta": 3}, "budgets": (1, 3, 9), "trials": 9}
    study = make_study(**{**fields, **changes})
    return Played(study, lambda config, steps: 1 / config["lr"] / steps).play()


def test_the_trials_are_in_order_of_how_far_they_came_and_failed_ones_last() -> None:
    def curve(config: Any, steps: int) -> float | None:
        return None if config["lr"] < 0.0005 else 1 / config["lr"]

    study = play(make_study(trials=20), curve).state
    ordered = in_order(study)
    assert ordered[0] is study.best
    failed = [each for each in ordered if each.status == "failed"]
    assert failed
    assert ordered[-len(failed) :] == failed
    values = [each.config["lr"] for each in ordered[: -len(failed)]]
    assert values == sorted(values, reverse=True)
    (why,) = failures(study)
    assert (why.why, len(why.runs), why.is_failed) == ("played", len(failed), True)
    by_rungs = [len(each.rungs) for each in in_order(halved())]
    assert by_rungs == [3, 2, 2, 1, 1, 1, 1, 1, 1]


def test_each_budget_has_its_numbers_and_each_value_its_device_hours() -> None:
    study = halved()
    found = [(r.steps, r.judged, r.on, r.stopped, r.failed, r.open) for r in rung_results(study)]
    assert found == [(1, 9, 3, 6, 0, 0), (3, 3, 1, 2, 0, 0), (9, 1, 0, 0, 0, 0)]
    seen = readings(study)
    # Nine of 1 s, three of 2 s more, one of 6 s more.
    assert [round(each.hours * HOUR_S) for each in seen[8:]] == [9, 11, 13, 15, 21]
    assert seen[-1].value == min(each.value for each in seen)


@pytest.mark.parametrize("direction", ["min", "max"])
def test_a_key_with_its_best_in_the_middle_is_important_and_others_are_not(direction: str) -> None:
    sign = 1 if direction == "min" else -1
    rng = random.Random(7)

    def curve(config: Any, steps: int) -> float:
        return sign * ((config["width"] - 32) ** 2 + rng.random())

    study = play(make_study(params=SPACE, trials=60, direction=direction), curve).state
    found = importances(study)
    assert found is not None
    first, *rest = found.keys
    assert (found.count, first.key, first.is_clear) == (60, "width", True)
    assert first.share > 0.7
    low, high = first.best
    assert 20 < low < 32 < high < 45
    assert all(each.share < 0.2 for each in rest)


def test_keys_without_an_effect_are_important_5_times_in_100() -> None:
    clear = count = 0
    for seed in range(60):
        rng = random.Random(seed)
        study = play(
            make_study(params=SPACE, trials=30, seed=seed), lambda *_, rng=rng: rng.random()
        ).state
        found = importances(study)
        assert found is not None
        clear += sum(each.is_clear for each in found.keys)
        count += len(found.keys)
    assert 0.02 < clear / count < 0.09


def test_importance_is_of_a_budget_that_half_came_to_and_of_nothing_less() -> None:
    assert importances(halved()) is None  # of nine trials
    found = importances(halved(trials=12))
    assert found is not None
    assert (found.steps, found.count) == (1, 12)


def test_a_choice_is_important_by_its_best_value_and_one_that_is_not_drawn_is_a_group() -> None:
    space = {
        "rule": Param(kind="choice", values=("adam", "sgd")),
        "momentum": Param(kind="uniform", low=0, high=1, when={"rule": ("sgd",)}),
    }

    def curve(config: Any, steps: int) -> float:
        return 1.0 if config["rule"] == "adam" else 2 + config["momentum"]

    found = importances(play(make_study(params=space, trials=40), curve).state)
    assert found is not None
    by_key = {each.key: each for each in found.keys}
    assert by_key["rule"].best == ("adam", "adam")
    assert by_key["momentum"].best == (None, None)
    # Two halves, one of equal ranks: n²/16 of n²/16 + n²/96 is between them.
    assert by_key["rule"].share == pytest.approx(6 / 7, abs=0.05)
    assert by_key["momentum"].share > by_key["rule"].share


def test_the_best_that_fails_later_is_the_best_by_its_value_before() -> None:
    study = Played(
        make_study(scheduler={"kind": "fifo"}, budgets=(1, 2), trials=1),
        lambda _, steps: 4.0 if steps == 1 else None,
    ).play()
    facts = shown(STUDY, study)
    assert (facts["best_trial"], facts["best_value"], facts["best_run_id"]) == (0, 4.0, "s-t000-r0")
    assert [rung.proposed.run_id for rung in lineage_of(study)] == ["s-t000-r0"]


def test_the_lineage_of_copied_weights_leads_to_the_trial_that_they_are_of() -> None:
    study = play(
        make_study(scheduler={"kind": "pbt"}, budgets=(10, 20, 30), trials=8),
        lambda config, steps: 1 / config["lr"] + 1 / steps,
    ).state
    chain = lineage_of(study)
    assert [rung.proposed.steps for rung in chain] == [30, 20, 10]
    assert [rung.proposed.source.run_id for rung in chain[:2] if rung.proposed.source] == [
        rung.proposed.run_id for rung in chain[1:]
    ]
    assert chain[-1].proposed.source is None


def test_equal_values_share_their_place() -> None:
    assert ranks_of([3.0, 1.0, 1.0, 9.0]) == [3.0, 1.5, 1.5, 4.0]
