"""The rules of append hold in every interleaving, and each of them is needed."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from unittest.mock import patch

import pytest

from tests.model.actors import Config
from tests.model.explorer import Model, Report
from tests.model.mutants import MUTANTS, SMALL, Mutant, fences_but_by
from tracks_dagster.track import append
from tracks_dagster.track.records import Kind

WORLDS = {
    "two launches of every attempt": Config(gangs=(2, 2, 2)),
    "three sensors and two lost replies": Config(gangs=(1, 2), sensors=3, losses=2),
    "checkpoints in quarantine": Config(gangs=(2, 2), quarantines=True),
}

FULL_WORLDS = {
    "four lost replies": Config(gangs=(2, 1), losses=4),
    "two commits of a gang, and a person's note": Config(gangs=(2, 1), commits=2, note=True),
    "restored from checkpoints that a collector wants": Config(
        gangs=(1, 2), quarantines=True, deletes=True, losses=0
    ),
    "four attempts of two commits, two launches of one, a lost reply": Config(
        gangs=(2, 1, 1, 1), commits=2
    ),
    "own commits deleted while others lean on them": Config(gangs=(1,), commits=3, deletes=True),
    "four attempts of two commits, two launches of each": Config(gangs=(2, 2, 2, 2), commits=2),
    "four attempts of two commits, two lost replies": Config(
        gangs=(2, 1, 1, 1), commits=2, losses=2
    ),
    "four attempts and a person's note": Config(gangs=(2, 1, 1, 1), note=True),
    "quarantines and two commits": Config(gangs=(1, 2), commits=2, quarantines=True),
    "three attempts and a collector": Config(gangs=(1, 1, 1), deletes=True, losses=0),
    "a collector, quarantines and a lost reply": Config(
        gangs=(1, 2), quarantines=True, deletes=True
    ),
}


def search(name: str, config: Config) -> Report:
    began = time.monotonic()
    report = Model(config).run()
    took = f"{time.monotonic() - began:.1f} s"
    print(f"\n{name}: {report.states} states, {len(report.logs)} logs, {took}")
    return report


def written(report: Report) -> set[tuple[str, ...]]:
    """Return the logs of a search, a sensor as good as any other."""
    return {tuple(re.sub(r"sensor\d", "a sensor", r) for r in log.lines()) for log in report.logs}


@pytest.mark.parametrize("name", WORLDS)
def test_every_property_holds_in_every_interleaving(name: str) -> None:
    report = search(name, WORLDS[name])
    assert report.broken == {}
    assert report.states > 1000


@pytest.mark.full
@pytest.mark.drawn(4)
@pytest.mark.timeout(1200)  # seconds each on an idle core
@pytest.mark.parametrize("name", FULL_WORLDS)
def test_every_property_holds_in_larger_worlds(name: str) -> None:
    assert search(name, FULL_WORLDS[name]).broken == {}


SLOW = {"a quarantine does not stop a commit that takes its chunks"}  # a third of them all together


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=pytest.mark.full) if mutant.name in SLOW else mutant
        for mutant in MUTANTS
    ],
    ids=lambda mutant: mutant.name,
)
def test_a_rule_taken_out_is_caught(mutant: Mutant) -> None:
    with (
        patch.object(append, "fences", mutant.fences),
        patch.object(append, "withdraws", mutant.withdraws),
    ):
        report = Model(mutant.config, mutant.rules).run(until=mutant.breaks)
    assert mutant.breaks in report.broken, f"broken were only: {sorted(report.broken)}"


@pytest.mark.parametrize("config", dict.fromkeys(mutant.config for mutant in MUTANTS), ids=str)
def test_where_a_mutant_is_caught_the_product_is_not(config: Config) -> None:
    assert Model(replace(config, reduced=True)).run().broken == {}


@pytest.mark.parametrize("kind", [Kind.ATTEMPT_OPENED, Kind.RUN_FINISHED])
def test_the_second_line_of_defence_is_not_reached_while_the_first_holds(kind: Kind) -> None:
    with patch.object(append, "fences", fences_but_by(kind)):
        assert Model(replace(SMALL, reduced=True)).run().broken == {}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(Config(gangs=(2,), reduced=False), marks=pytest.mark.full),
        Config(gangs=(1, 1), sensors=1, losses=0, reduced=False),
        pytest.param(Config(gangs=(1, 1), losses=0, reduced=False), marks=pytest.mark.full),
        Config(gangs=(1,), sensors=2, losses=1, reduced=False),
        Config(gangs=(1,), sensors=1, losses=2, note=True, reduced=False),
        Config(gangs=(1, 1), sensors=1, quarantines=True, reduced=False),
        Config(gangs=(1,), sensors=1, commits=3, losses=0, deletes=True, reduced=False),
    ],
    ids=str,
)
def test_the_reduced_search_reaches_the_same_logs(config: Config) -> None:
    every_step, reduced = Model(config).run(), Model(replace(config, reduced=True)).run()
    print(f"\n{every_step.states} states without the reduction, {reduced.states} with it")
    assert every_step.broken == reduced.broken == {}
    assert written(every_step) == written(reduced)


def test_a_world_without_faults_has_the_logs_that_one_counts_by_hand() -> None:
    """One gang and one sensor: it opens; the gang places and commits, or not yet, or never; it ends
    the attempt and finishes the run. 1 declared + 3 open + 3 ended + 3 finished = 10 logs.
    """
    report = Model(Config(gangs=(1,), sensors=1, losses=0)).run()
    assert len(report.logs) == 10
