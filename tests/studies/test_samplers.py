"""Optuna's samplers behind the one method: the same fold proposes the same, no matter who asks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.studies.played import Played, make_study
from tracks_dagster.studies.effects.searching import search_of
from tracks_dagster.studies.space import Param
from tracks_dagster.track.bodies import StudyDeclared
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json

PARAMS = {
    "lr": Param(kind="loguniform", low=1e-4, high=1e-1),
    "layers": Param(kind="int", low=1, high=4),
    "optimizer": Param(kind="choice", values=("adam", "sgd")),
    "momentum": Param(kind="uniform", low=0.0, high=0.99, when={"optimizer": ("sgd",)}),
}


def bowl(config: Mapping[str, Json], steps: int) -> float:
    """Return a loss that is least at lr = 0.01, 3 layers and adam."""
    far = abs(math.log10(config["lr"]) + 2) + abs(config["layers"] - 3)
    return far + (config.get("optimizer") == "sgd") * (1 + config.get("momentum", 0.0))


def of(kind: str, **changes: Any) -> StudyDeclared:
    given = {"params": PARAMS, "search": {"kind": kind, "startup": 12}, "trials": 30, "slots": 3}
    return make_study(**{**given, **changes})


def played(study: StudyDeclared) -> Played:
    pytest.importorskip("optuna")
    done = Played(study, bowl, search_of(study))
    done.play()
    return done


@pytest.mark.parametrize("kind", ["tpe", "nsga2"])
def test_the_same_fold_proposes_the_same_with_trials_open_beside_it(kind: str) -> None:
    study = of(kind)
    first = played(study)
    again = Played(study, bowl, search_of(study))
    again.play()
    configs = [dict(t.config) for t in first.state.trials]
    assert configs == [dict(t.config) for t in again.state.trials]
    assert all(("momentum" in each) == (each["optimizer"] == "sgd") for each in configs)
    assert {type(each["layers"]) for each in configs} == {int}
    assert len({str(each) for each in configs}) > 25


def test_bayesian_search_begins_with_12_random_ones_and_is_better_after_them() -> None:
    state = played(of("tpe", trials=60, slots=1)).state
    losses = [bowl(t.config, 9) for t in state.trials]
    assert sum(losses[12:]) / 48 < 0.7 * sum(losses[:12]) / 12


FLAT = {name: Param(kind="uniform", low=0.0, high=1.0) for name in ("x", "y", "z")}


def hollow(config: Mapping[str, Json], steps: int) -> float:
    """Return a loss that is least at 0.8, 0.2, 0.7."""
    return sum((config[name] - at) ** 2 for name, at in zip("xyz", (0.8, 0.2, 0.7), strict=True))


@pytest.mark.parametrize("kind", ["nsga2", "cmaes", "tpe"])
def test_values_steer_what_is_proposed_after_the_first(kind: str) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("cmaes")
    study = of(kind, params=FLAT, trials=60, slots=1)
    near, far = (
        [t.config for t in Played(study, curve, search_of(study)).play().trials]
        for curve in (hollow, lambda config, steps: -hollow(config, steps))
    )
    assert sum(a == b for a, b in zip(near, far, strict=True)) < 20
    losses = [sum(hollow(config, 9) for config in each[30:]) for each in (near, far)]
    assert losses[0] < 0.5 * losses[1]


@pytest.mark.parametrize("kind", ["nsga2", "cmaes", "tpe"])
def test_where_training_diverges_few_trials_are_proposed(kind: str) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("cmaes")

    def cliff(config: Mapping[str, Json], steps: int) -> float:
        return math.nan if config["x"] > 0.5 else 1 - config["x"]

    study = of(kind, params={name: FLAT[name] for name in "xy"}, trials=60, slots=1)
    state = Played(study, cliff, search_of(study)).play()
    assert sum(t.config["x"] > 0.5 for t in state.trials[20:]) < 30


def test_cma_es_draws_choices_and_keys_under_a_condition_beside_what_it_moves() -> None:
    pytest.importorskip("cmaes")
    for trial in played(of("cmaes")).state.trials:
        assert ("momentum" in trial.config) == (trial.config["optimizer"] == "sgd")


def test_cma_es_and_constraints_go_together() -> None:
    params = {name: PARAMS[name] for name in ("lr", "layers")}
    study = of("cmaes", params=params, constraints=("lr * layers <= 0.02",))
    pytest.importorskip("cmaes")
    configs = [t.config for t in played(study).state.trials]
    assert all(each["lr"] * each["layers"] <= 0.02 for each in configs)


@pytest.mark.parametrize(
    ("kind", "missing"), [("tpe", "optuna"), ("cmaes", "cmaes"), ("gp", "scipy")]
)
def test_without_the_extra_the_words_say_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, missing: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    with pytest.raises(InvalidInput, match=rf"'{kind}' needs the extra tune: pip install"):
        search_of(of(kind))
