"""An experiment, its trials and other seeds are read alike from SQLite and from a real Postgres."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.asked import declare
from tests.attempts.test_contracts import trained
from tests.attempts.test_runs import REQUEST
from tests.deciders import world_of
from tests.fakes import FakeObjectStore
from tests.histories import BEGIN, History
from tests.policies import policy_of
from tests.stories import Story
from tracks_dagster.evals.effects.promoting import promote
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.experiments import read_experiment
from tracks_dagster.review.experiments import ExperimentRun, changes
from tracks_dagster.track.errors import InvalidInput


def runs_of(ledger: SqlLedger, name: str) -> tuple[ExperimentRun, ...]:
    found = read_experiment(ledger, name, runs_max=5)
    assert found is not None
    return found.runs


def test_an_experiment_has_its_runs_and_the_baseline_that_they_name(
    ledger: SqlLedger, store: FakeObjectStore
) -> None:
    trained(store, "r-0", 1, loss=3.0)
    for run_id, experiment in (("r-1", "rates"), ("r-2", "depth"), ("r-3", None)):
        baseline = None if experiment is None else "r-0"
        History(run_id).declare(experiment=experiment, baseline=baseline).open().write_to(store)
    Projector(store, ledger).scan()
    baseline, run = runs_of(ledger, "rates")
    assert (baseline.run_id, baseline.scores[0].metrics["loss"]) == ("r-0", 3.0)
    assert (run.run_id, run.experiment, run.baseline, run.scores) == ("r-1", "rates", "r-0", ())
    of_family = runs_of(ledger, "gpt")
    assert [each.run_id for each in of_family] == ["r-0", "r-1", "r-2", "r-3"]
    assert read_experiment(ledger, "none", runs_max=5) is None


def test_the_baseline_is_chosen_among_all_runs_however_few_are_shown(
    ledger: SqlLedger, store: FakeObjectStore
) -> None:
    trained(store, "b-0", 1, loss=3.0)  # that a run outside of the newest names
    begin = BEGIN
    for number in range(6):
        begin += timedelta(minutes=1)
        baseline = "b-0" if number == 1 else None
        history = History(f"r-{number}", begin=begin)
        history.declare(experiment="named", baseline=baseline).open().write_to(store)
        history = History(f"s-{number}", begin=begin)
        history.declare(experiment="plain").open().write_to(store)
    Projector(store, ledger).scan()

    def read(name: str, **asked: Any) -> tuple[str, str, list[str]]:
        found = read_experiment(ledger, name, runs_max=2, **asked)
        assert found is not None
        return found.words, found.baseline.run_id, [run.run_id for run in found.runs]

    words = "the newest 2 of 6 runs"
    assert read("named") == (words, "b-0", ["b-0", "r-4", "r-5"])
    assert read("plain") == (words, "s-0", ["s-0", "s-4", "s-5"])
    assert read("plain", baseline="s-2") == (words, "s-2", ["s-2", "s-4", "s-5"])
    assert read("plain", others=["s-1"]) == (words, "s-0", ["s-0", "s-1", "s-4", "s-5"])
    for stranger in ("r-0", "nothing"):
        with pytest.raises(InvalidInput, match=f"{stranger}: outside of the experiment plain"):
            read("plain", baseline=stranger)


def test_what_a_retry_changed_is_what_the_run_changed(
    ledger: SqlLedger, store: FakeObjectStore
) -> None:
    config = {"steps": 40, "lr": 0.1, "code": "utf-8", "ranks": 3}
    base = History("r-0").declare(experiment="rates", config=config, environment={"torch": "2.12"})
    base.open().write_to(store)
    run = History("r-1").declare(
        experiment="rates",
        config={**config, "code": "latin-1"},
        trainer=f"runs/r-1/code/{'c0de' * 16}.tar",
        environment={"torch": "2.13"},
    )
    run.open().place().end("preempted").open(config={**config, "code": "latin-1", "lr": 0.2})
    run.write_to(store)
    History("r-2").declare(experiment="rates", config=config).open().write_to(store)
    Projector(store, ledger).scan()
    first, second, third = runs_of(ledger, "rates")
    assert {each.name: (each.before, each.after) for each in changes(second, first)} == {
        "torch": ("2.12", "2.13"),
        "lr": (0.1, 0.2),
        "config.code": ("utf-8", "latin-1"),
        "code": ("family", "c0dec0dec0de"),
    }
    assert changes(third, first) == ()  # its environment is not known


def test_trials_and_other_seeds_are_counted(
    ledger: SqlLedger, store: FakeObjectStore, tracks: Tracks, data: Story
) -> None:
    best = trained(store, "r-1", 1).resumable[-1]
    trained(store, "r-2", 2)
    trial = REQUEST.but(run_id="s-1", workload_class="sweep", experiment="wider")
    policy = policy_of("tuning: {trials: 1}\npromotion: {seeds: 1}")
    declare(tracks, trial, policy=policy, ledger=ledger)
    Projector(store, ledger).scan()
    with pytest.raises(InvalidInput, match=r"^Refused by policy tuning\.trials: "):
        declare(tracks, trial.but(run_id="s-2"), policy=policy, ledger=ledger)
    world = world_of(tracks, ledger, policy=policy)
    assert promote(world, best, alias="best", by="ann", why="It is the best.").promoted
