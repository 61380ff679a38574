"""The decider over real tracks: runs are declared, branched, judged, drained, and resumed once."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.deciders import world_of
from tests.examples import example
from tests.fakes import FakeClock, FakeObjectStore, Fault
from tests.histories import History
from tests.stories import Story
from tracks_dagster.attempts.effects.preparing import prepare
from tracks_dagster.attempts.effects.runs import declare, plan_run
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.evals.due import next_eval
from tracks_dagster.ledger.effects.deciding import OF_STUDIES, decide_due, settle
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.projects.project import ConfigKey
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.stages import FULL, SHIPPED, SMOKE, STRICT
from tracks_dagster.review.effects.status import trials_for_a_person, waiting_studies
from tracks_dagster.studies.deciding import run_id_of
from tracks_dagster.studies.effects import declaring
from tracks_dagster.studies.effects.deciding import TuneStudies
from tracks_dagster.studies.effects.declaring import Door, declare_study
from tracks_dagster.studies.effects.study_file import StudyFile, read_study
from tracks_dagster.studies.effects.trials import prepared_of
from tracks_dagster.studies.words import summary
from tracks_dagster.track.bodies import CodeVersion, StudyStopped, TrialProposed
from tracks_dagster.track.errors import InvalidInput, SettingsError, TracksError
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.evals import NOT_FINITE
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.states.study_state import StudyState, TrialStatus
from tracks_dagster.track.track import log_key

TEXT = """
name: lr
metric: loss
space: {lr: [0.1, 0.01, 0.001]}
search: grid
scheduler: {kind: halving, budgets: [10, 30]}
slots: 2
"""


def asked(tmp_path: Path, text: str = TEXT) -> StudyFile:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return read_study(path, is_section=False)


def code(**changes: Any) -> FoundCode:
    version = CodeVersion(git_commit="c0ffee", branch=None, dirty=False, package_version="0")
    given = {"project": example(), "archive": b"a tar", "folder": "/work/gpt", "code": version}
    return FoundCode(**{**given, "code_diff": None, **changes})


def door_of(tracks: Tracks, ledger: Ledger) -> Door:
    plan = partial(plan_run, tracks, policy=DEFAULT_POLICY, ledger=ledger)
    return Door(
        tracks=tracks,
        ledger=ledger,
        policy=DEFAULT_POLICY,
        plan=plan,
        prices=lambda: None,
    )


@pytest.fixture
def world(data: Story, tracks: Tracks, ledger: Ledger) -> World:
    return world_of(tracks, ledger, declare=partial(declare, tracks, ledger=ledger))


@pytest.fixture
def study(world: World, tmp_path: Path) -> StudyState:
    return declare_study(door_of(world.tracks, world.ledger), asked(tmp_path), code(), by="ann")


def decided(world: World) -> list[str]:
    tick = decide_due(world, [TuneStudies()], kind=OF_STUDIES)
    assert tick.problems == ()
    return [each.split(": ", 2)[1] for each in tick.decided]


def taken_up(tracks: Tracks, run_id: str) -> History:
    """Return a run's track as it is in the store, to be grown."""
    history = History(run_id)
    for record in tracks.records(run_track(run_id)):
        history.records.append(record)
        history.stored.append(tracks.store.get(log_key(history.name, record.seq)))
        history.drafts.append(None)
        history._fold(record)
    return history


def train(world: World, run_id: str, loss: float) -> None:
    """Let a run train its steps, commit and finish."""
    history = taken_up(world.tracks, run_id)
    steps = history.state.declared.config["steps"]
    history.place().restore().commit(steps, metrics={"loss": loss}).end(last_step=steps).finish()
    history.write_to(world.tracks.store)
    world.tracks.project(history.name)


def stopped_and_drained(world: World) -> list[str]:
    """Stop the study, and let its open runs save; return their ids."""
    tracks = world.tracks
    open_ids = [rung.proposed.run_id for rung in tracks.study("lr").open_rungs]
    body = StudyStopped(by="bob", why="the machine is needed")
    tracks.decide_study("lr", lambda state: tracks.draft(Kind.STUDY_STOPPED, body))
    decided(world)
    for run_id in open_ids:
        history = taken_up(tracks, run_id)
        assert history.state.stops[-1].body.mode == "drain"
        history.place().restore().commit(5).end("user_cancelled", last_step=5)
        history.write_to(tracks.store)
        tracks.project(history.name)
    decided(world)
    return open_ids


def lr_of(world: World, run_id: str) -> float:
    return world.tracks.run(run_id).declared.config["lr"]


def test_a_trial_records_and_keeps_the_best_by_the_metric_of_its_study(
    world: World, tmp_path: Path
) -> None:
    text = TEXT.replace("metric: loss", "metric: zero_shot\ndirection: max")
    declare_study(door_of(world.tracks, world.ledger), asked(tmp_path, text), code(), by="ann")
    decided(world)
    kept = world.tracks.run(run_id_of("lr", 1, 0)).declared.retention
    # What a commit records first of many metrics, and may leave out no more.
    assert (kept.metric, kept.direction) == ("zero_shot", "max")


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        (f"heldout-loss measured loss = nan, {NOT_FINITE}: it says nothing.", "not_a_number"),
        ("KeyError: 'width'", "failed"),
    ],
)
def test_a_trial_whose_eval_is_not_tried_again_is_judged_and_the_study_goes_on(
    message: str, outcome: str, world: World, tmp_path: Path
) -> None:
    """A person corrects the eval of a run; nobody stays up to do so for trial 17 of a study."""
    text = TEXT.replace("metric: loss", "metric: heldout-loss/loss")
    declare_study(door_of(world.tracks, world.ledger), asked(tmp_path, text), code(), by="ann")
    decided(world)
    history = taken_up(world.tracks, "lr-t000-r0")
    history.place().restore().commit(10).end(last_step=10)
    for _ in range(2):
        fail_eval(history, message)
    history.write_to(world.tracks.store)
    decided(world)
    assert world.tracks.run("lr-t000-r0").waivers == ()  # it is tried once more
    fail_eval(history, message)
    history.write_to(world.tracks.store)
    world.tracks.project(history.name)
    decided(world)
    [waiver] = world.tracks.run("lr-t000-r0").waivers
    assert (waiver.body.suite, waiver.body.by) == ("heldout-loss", "tune_studies")
    assert message in waiver.body.why
    history = taken_up(world.tracks, "lr-t000-r0").finish()
    history.write_to(world.tracks.store)
    decided(world)
    judged = world.tracks.study("lr").trials[0].last.judged
    assert judged is not None
    assert judged.outcome == outcome
    assert message in judged.why
    assert "lr-t002-r0" in [t.last.proposed.run_id for t in world.tracks.study("lr").trials]


def test_a_trial_that_commits_nothing_waits_for_no_eval(world: World, tmp_path: Path) -> None:
    text = TEXT.replace("metric: loss", "metric: heldout-loss/loss")
    declare_study(door_of(world.tracks, world.ledger), asked(tmp_path, text), code(), by="ann")
    decided(world)
    history = taken_up(world.tracks, "lr-t000-r0")
    history.place().restore().end(last_step=10).write_to(world.tracks.store)
    world.tracks.project(history.name)
    decided(world)
    assert [each.body.suite for each in world.tracks.run("lr-t000-r0").waivers] == ["heldout-loss"]
    history = taken_up(world.tracks, "lr-t000-r0").finish()
    history.write_to(world.tracks.store)
    decided(world)
    judged = world.tracks.study("lr").trials[0].last.judged
    assert judged is not None
    assert (judged.outcome, judged.why) == ("failed", "Nothing was committed.")


def fail_eval(history: History, message: str) -> None:
    opened = next_eval(history.state, decided_by="tests", attempts_max=3)
    assert opened is not None
    history.add(Kind.EVAL_OPENED, opened).end_eval(opened, "evaluator_error", message=message)


def test_trials_are_runs_of_the_study_and_rungs_are_branches_from_their_commits(
    study: StudyState, world: World
) -> None:
    tracks = world.tracks
    decided(world)
    assert [t.last.proposed.run_id for t in tracks.study("lr").trials] == [
        "lr-t000-r0",
        "lr-t001-r0",
    ]
    first = tracks.run("lr-t000-r0").declared
    assert (first.config["lr"], first.config["steps"]) == (0.1, 10)
    assert (first.experiment, first.workload_class, first.owner) == ("lr", "sweep", "ann")
    assert (first.promotion, first.evals) == (None, ())
    for run_id, loss in (("lr-t000-r0", 3.0), ("lr-t001-r0", 1.0)):
        train(world, run_id, loss)
    decided(world)
    train(world, "lr-t002-r0", 2.0)
    decided(world)
    branch = tracks.run("lr-t001-r1").declared
    assert branch.branched_from == tracks.run("lr-t001-r0").finished.final
    assert (branch.config["lr"], branch.config["steps"]) == (0.01, 30)
    pins = tracks.run("lr-t001-r0").checkpoints[0].pins
    assert pins == {"branch:lr-t001-r1"}
    train(world, "lr-t001-r1", 0.5)
    decided(world)
    state = tracks.study("lr")
    assert (state.finished.cause, state.finished.best) == ("complete", 1)
    assert [t.status.value for t in state.trials] == ["stopped", "done", "stopped"]
    [row] = world.ledger.query("select state, best_value, best_run_id from studies")
    assert row == {"state": "finished", "best_value": 0.5, "best_run_id": "lr-t001-r1"}
    assert len(world.ledger.query("select * from trials where study = 'lr'")) == 4
    assert decided(world) == []


@pytest.mark.parametrize("creation", range(1, 9))
@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.LOST_AFTER])
def test_a_tick_that_dies_anywhere_leaves_the_same_trials_once(
    creation: int, fault: Fault, study: StudyState, world: World, store: FakeObjectStore
) -> None:
    store.fail("create", creation, fault)
    decide_due(world, [TuneStudies()], kind=OF_STUDIES)
    decide_due(world, [TuneStudies()], kind=OF_STUDIES)
    state = world.tracks.study("lr")
    assert [t.config for t in state.trials] == [{"lr": 0.1}, {"lr": 0.01}]
    for trial in state.trials:
        run = world.tracks.run(trial.last.proposed.run_id)
        assert run.declared.config["lr"] == trial.config["lr"]
        assert len(run.attempts) <= 1  # the watcher opens what the dead tick had not come to


def test_two_ticks_at_once_propose_each_trial_once(
    study: StudyState, world: World, store: FakeObjectStore, clock: FakeClock
) -> None:
    uids = iter(f"{number:032x}" for number in range(10_000, 20_000))
    other = Tracks(store, now=clock, new_uid=lambda: next(uids), project=lambda track: None)
    beside = world_of(other, world.ledger, declare=partial(declare, other))
    other.study("lr")  # read before the first decides, so that its places are lost
    decided(world)
    settle(beside, TuneStudies(), "lr", OF_STUDIES)
    assert len(world.tracks.study("lr").trials) == 2


def test_a_run_that_has_the_name_of_a_trial_is_left_alone(world: World, tmp_path: Path) -> None:
    """It is nobody's trial: it is neither judged nor drained, and the trial fails in words."""
    given = {"run_id": run_id_of("lr", 0, 0), "intent": "Mine.", "owner": "bob"}
    own = prepare(given, {}, code(), family="gpt", origin=None, policy=DEFAULT_POLICY, otherwise={})
    assert world.declare is not None
    world.declare(own)
    before = world.tracks.run("lr-t000-r0").head.seq
    declare_study(door_of(world.tracks, world.ledger), asked(tmp_path), code(), by="ann")
    decided(world)
    judged = world.tracks.study("lr").trials[0].last.judged
    assert judged is not None
    assert "There is a run lr-t000-r0 already, which is not of this study" in judged.why
    assert world.tracks.run("lr-t000-r0").head.seq == before


def test_a_trial_that_is_refused_counts_as_failed_with_the_words(
    study: StudyState, world: World, tracks: Tracks, ledger: Ledger
) -> None:
    def refuse(request: Any) -> None:
        raise InvalidInput("The team has no device.")

    refusing = world_of(tracks, ledger, declare=refuse)
    decide_due(refusing, [TuneStudies()], kind=OF_STUDIES)
    state = tracks.study("lr")
    assert (state.finished.cause, state.best) == ("all_failed", None)
    assert "refused: The team has no device." in state.trials[0].last.judged.why


def test_what_a_grid_starts_with_comes_on_top_of_its_configs(world: World, tmp_path: Path) -> None:
    start = TEXT.replace("search: grid", "search: {kind: grid, start: [{lr: 0.01}, {lr: 0.02}]}")
    start = start.replace("[0.1, 0.01, 0.001]", "{uniform: [0.001, 0.1], points: 3}")
    door = door_of(world.tracks, world.ledger)
    assert declare_study(door, asked(tmp_path, start), code(), by="ann").declared.trials == 5


def test_a_metric_that_no_trial_reports_ends_the_study_and_names_those_that_are(
    world: World, tmp_path: Path
) -> None:
    text = TEXT.replace("metric: loss", "metric: accuracy")
    declare_study(door_of(world.tracks, world.ledger), asked(tmp_path, text), code(), by="ann")
    for _ in range(3):
        decided(world)
        for rung in world.tracks.study("lr").open_rungs:
            train(world, rung.proposed.run_id, 1.0)
    decided(world)
    finished = world.tracks.study("lr").finished
    assert finished.cause == "all_failed"
    assert "no metric 'accuracy'; it has: loss." in finished.why


def test_a_stopped_study_drains_its_trials_and_goes_on_from_there_when_it_is_tuned_again(
    study: StudyState, world: World, tmp_path: Path
) -> None:
    tracks = world.tracks
    decided(world)
    open_ids = stopped_and_drained(world)
    state = tracks.study("lr")
    assert state.finished.cause == "user"
    assert [t.status for t in state.trials] == [TrialStatus.OPEN] * 2
    declare_study(door_of(tracks, world.ledger), asked(tmp_path), code(), by="ann")
    decided(world)
    for run_id in open_ids:
        run = tracks.run(run_id)
        assert run_status(run).state == RunLifecycle.RUNNING
        assert run.open_attempt.opened.resume.step == 5
    assert len(tracks.study("lr").trials) == 2


# --- declaring ------------------------------------------------------------------------------------


def refusal(world: World, tmp_path: Path, text: str, **changes: Any) -> str:
    """Return why a study is refused; nothing of it is written."""

    def declared() -> None:
        found = asked(tmp_path, text)
        declare_study(door_of(world.tracks, world.ledger), found, code(**changes), by="ann")

    with pytest.raises(TracksError) as refused:
        declared()
    assert isinstance(refused.value, InvalidInput | SettingsError)
    assert list(world.tracks.store.list("studies/")) == []
    return str(refused.value)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("{lr: [0.1, 0.01, 0.001]}", "{}", "The space is empty"),
        ("[0.1, 0.01, 0.001]", "[]", "a choice of nothing"),
        ("[0.1, 0.01, 0.001]", "{uniform: [2, 1]}", "uniform from 2 to 1 is empty"),
        ("[0.1, 0.01, 0.001]", "{loguniform: [0, 1]}", "a low above 0"),
        ("[0.1, 0.01, 0.001]", "{uniform: [0, 3], points: 2}", "lr = 3.0 is out of range: 0 to 1"),
        ("{lr:", "{learning:", "'learning' is not a config key; there are"),
        ("{lr:", "{steps:", "steps is what the study itself sets"),
        ("lr: [0.1, 0.01, 0.001]", "layers: {uniform: [1, 2], points: 2}", "is not a whole number"),
        ("lr: [0.1, 0.01, 0.001]", "lr: {gauss: [0, 1]}", "'gauss' is not a way to draw"),
        (
            "metric: loss",
            "metric: heldout/loss",
            "'heldout' is not an eval; did you mean heldout-loss",
        ),
        ("search: grid", "search: annealing", "'annealing' is not a search; there are: grid"),
        ("search: grid", "search: random", "trials is missing"),
        (
            "search: grid\nscheduler: {kind: halving",
            "search: evolution\ntrials: 30\nscheduler: {kind: pbt",
            "pbt changes the configs of its trials on the way, so evolution has no parents",
        ),
        ("kind: halving", "perturb: [lr], kind: halving", "perturb is of pbt; halving changes no"),
        ("kind: halving", "kind: pbt", "pbt changes nothing here"),
        ("kind: halving", "perturb: [lrr], kind: pbt", "'lrr' is not a key of the space"),
        ("kind: halving", "perturb: [lr], kind: pbt", "perturb: lr is a list, which × 0.8"),
        ("kind: halving", "kind: hyperband", "'hyperband' is not a scheduler"),
        ("[10, 30]", "[30, 10]", "[30, 10] does not grow"),
        ("name: lr", "name: LR!", "'LR!' cannot name a study"),
        ("slots: 2", "slots: 0", "0 is not a number of slots; write 1 to 256"),
        ("slots: 2", "max_device_hours: -1", "-1 is not a cap; write more than 0"),
        ("slots: 2", "constraints: [lr <]", "'lr <' is not a constraint"),
        ("slots: 2", "constraints: ['foo < 1']", "names foo, which is not a key"),
        ("slots: 2", "constraints: ['lr > 1']", "The grid is empty"),
        (
            "[0.1, 0.01, 0.001]",
            "[0.1], seed: {int: [0, 2147483647]}",
            "The grid has 2147483648 configs; at most 100000. Write points: N",
        ),
        (
            "[0.1, 0.01, 0.001]",
            "{uniform: [0, 1], points: 1000000}",
            "The grid has 1000000 configs; at most 100000",
        ),
        (
            "slots: 2",
            "constraints: ['allocator * 300000000 != 1']",
            "computes with allocator, which is not always a number; compare it alone",
        ),
        ("slots: 2", "constraints: ['__import__(\"os\") == 1']", "is not a constraint"),
        (
            "search: grid",
            "search: random\ntrials: 2\nconstraints: ['lr > 1']",
            "None of 1000 configs",
        ),
        (
            "[0.1, 0.01, 0.001]}\nsearch: grid",
            "{uniform: [0, 1]}}\nconstraints: ['lr < 0.01']\nsearch: random\ntrials: 9",
            "of 1000 configs that were drawn meet the constraints (lr < 0.01), fewer than 20",
        ),
        ("[0.1, 0.01, 0.001]", "[0.1, 0.01, 0.1]", "lr has 0.1 twice"),
        (
            "0.001]}",
            "0.001], layers: {choice: [2, 4], when: {lr: 0.2}}}",
            "layers is drawn only where lr is 0.2, which it never is",
        ),
        (
            "0.001]}",
            "0.001], layers: {choice: [2, 4], when: {micro_batch: 77}}}",
            "layers is drawn only where micro_batch is 77, which it never is",
        ),
        ("slots: 2", "config: {lr: 0.1}", "lr is drawn from the space and fixed by config: too"),
        ("slots: 2", "max_cost: 5", "cannot be kept: there is no price table"),
        ("metric: loss", 'metric: "lo\\nss"', "cannot be the name of a metric"),
        (", budgets: [10, 30]}", ", budgets: 10}", "10 is not a list of budgets"),
        ("{kind: halving, budgets: [10, 30]}", "{budgets: [10, 30]}", "scheduler: it has no kind"),
        ("[0.1, 0.01, 0.001]", "{uniform: [0, 1]}", "lr: a grid over numbers needs points"),
        ("[0.1, 0.01, 0.001]", "{uniform: [0, 1, 2]}", "[0, 1, 2] is not a range"),
        ("[0.1, 0.01, 0.001]", "{uniform: [0, .inf]}", "write uniform: [low, high], two numbers"),
    ],
)
def test_what_cannot_be_a_study_is_refused_in_words_and_nothing_is_written(
    before: str, after: str, words: str, world: World, tmp_path: Path
) -> None:
    assert words in refusal(world, tmp_path, TEXT.replace(before, after))


OF_START = """
name: lr
metric: loss
space:
  lr: {loguniform: [0.001, 0.1]}
  layers: {int: [2, 4]}
  allocator: [default, expandable_segments]
  dropout: {uniform: [0, 0.5], when: {allocator: default}}
constraints: ["lr * layers <= 0.2"]
search: {kind: random, start: [CONFIGS]}
trials: 4
"""
FITS = "{lr: 0.01, layers: 2, allocator: default, dropout: 0.1}"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            "{}",
            "lr is missing; write a number from 0.001 to 0.1. layers is missing; write a",
        ),
        (
            FITS.replace("0.01", "1"),
            "lr = 1 is not in the space; write a number from 0.001 to 0.1.",
        ),
        (FITS.replace("0.01", ".nan"), "lr = '.nan' is not in the space"),
        (FITS.replace("0.01", "fast"), "lr = 'fast' is not in the space"),
        (
            FITS.replace("2", "2.5"),
            "layers = 2.5 is not in the space; write a whole number from 2 to",
        ),
        (FITS.replace("2", "2.0"), "layers = 2.0 is not a whole number, as its default 2 is."),
        (FITS.replace("2", "true"), "layers = true is not in the space"),
        (
            FITS.replace("default", "other"),
            "allocator = 'other' is not in the space; write one of 'default', 'expandable_segments'.",
        ),
        (
            FITS.replace("default", "expandable_segments"),
            "dropout is drawn only where allocator is 'default'; leave it out.",
        ),
        (FITS.replace(", dropout: 0.1", ""), "dropout is missing; write a number from 0 to 0.5."),
        (
            FITS.replace("{", "{laers: 3, "),
            "'laers' is not a key of the space; did you mean layers?",
        ),
        (FITS.replace("{", "{1: 3, "), "'1' is not a key of the space; there are: lr, layers,"),
        (
            FITS.replace("0.01", "0.1").replace("2", "3"),
            "It does not meet the constraint lr * layers <= 0.2; change it or loosen that.",
        ),
        (FITS, "It is config 1 again; leave one out."),
    ],
)
def test_a_config_to_start_with_that_the_space_could_not_draw_is_refused(
    config: str, words: str, world: World, tmp_path: Path
) -> None:
    text = OF_START.replace("CONFIGS", f"{FITS}, {config}")
    assert f"search: start: config 2 of 2: {words}" in refusal(world, tmp_path, text)


def test_more_configs_to_start_with_than_trials_are_refused(world: World, tmp_path: Path) -> None:
    configs = ", ".join(FITS.replace("0.01", f"0.0{number}") for number in range(1, 6))
    words = "search: start: has 5 configs, of which 4 would be tried; raise trials"
    assert words in refusal(world, tmp_path, OF_START.replace("CONFIGS", configs))


def test_more_configs_to_start_with_than_a_record_holds_are_refused(
    world: World, tmp_path: Path
) -> None:
    configs = ", ".join(f"{{lr: {0.001 + n / 123456}}}" for n in range(700))
    text = TEXT.replace("[0.1, 0.01, 0.001]", "{uniform: [0, 1]}").replace(
        "search: grid", f"search: {{kind: random, start: [{configs}]}}\ntrials: 700"
    )
    found = refusal(world, tmp_path, text)
    assert "of which its search takes" in found
    assert "fewer configs under start:" in found


def test_as_many_priors_are_taken_as_a_record_holds(world: World, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    names = [f"a_key_with_a_long_name_{n}" for n in range(8)]
    keys = {**example().keys, **{name: ConfigKey(default=0.5) for name in names}}
    source = tmp_path / "trials.jsonl"
    lines = ({"config": dict.fromkeys(names, 1 / (n + 3)), "value": n} for n in range(64))
    source.write_text("\n".join(map(json.dumps, lines)))
    space = ", ".join(f"{name}: {{uniform: [0, 1]}}" for name in names)
    text = TEXT.replace("lr: [0.1, 0.01, 0.001]", space).replace(
        "search: grid", f"search: {{kind: tpe, priors: [{source}]}}\ntrials: 3"
    )
    remarks: list[str] = []
    door = replace(door_of(world.tracks, world.ledger), remark=remarks.append)
    found = code(project=replace(example(), keys=keys))
    first = declare_study(door, asked(tmp_path, text), found, by="ann")
    values = [each["value"] for each in first.declared.search["priors"]]
    assert 10 < len(values) < 64
    assert (values[0], values[-1]) == (0, 63)
    assert remarks == [
        f"search: priors: {len(values)} of 64 are taken, as many as a study's record holds."
    ]
    assert declare_study(door, asked(tmp_path, text), found, by="ann").head.seq == 0


def test_of_many_configs_to_start_with_that_do_not_fit_the_first_are_named(
    world: World, tmp_path: Path
) -> None:
    many = OF_START.replace("CONFIGS", ", ".join(["{}"] * 9)).replace("trials: 4", "trials: 9")
    words = refusal(world, tmp_path, many)
    assert "config 5 of 9" in words
    assert words.endswith("\nAnd 4 more configs of start.")


def test_a_study_that_was_declared_with_such_a_config_goes_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = door_of(world.tracks, world.ledger)
    text = OF_START.replace("CONFIGS", "{lr: 0.01}")
    with monkeypatch.context() as before:  # this version, which looked at none of them
        before.setattr(declaring, "_check_start", lambda *given: None)
        declare_study(door, asked(tmp_path, text), code(), by="ann")
    assert declare_study(door, asked(tmp_path, text), code(), by="ann").head.seq == 0


def test_a_constraint_on_the_steps_is_of_those_that_a_trial_has(
    world: World, tmp_path: Path
) -> None:
    """30 of the last budget, as every proposal has it; the project's own are 40."""
    text = TEXT.replace("slots: 2", "constraints: ['steps * lr <= 0.3']")
    study = declare_study(
        door_of(world.tracks, world.ledger), asked(tmp_path, text), code(), by="ann"
    )
    assert study.declared.trials == 2
    text = TEXT.replace("slots: 2", "constraints: ['steps > 30']").replace("name: lr", "name: lr2")
    with pytest.raises(InvalidInput, match="The grid is empty"):
        declare_study(door_of(world.tracks, world.ledger), asked(tmp_path, text), code(), by="ann")


def test_a_metric_without_a_direction_that_looks_like_one_to_grow_is_remarked(
    world: World, tmp_path: Path
) -> None:
    remarks: list[str] = []
    door = replace(door_of(world.tracks, world.ledger), remark=remarks.append)
    text = TEXT.replace("metric: loss", "metric: accuracy")
    declare_study(door, asked(tmp_path, text), code(), by="ann")
    assert remarks == [
        "direction: is not given, and the least accuracy is best; write direction: max if the most is."
    ]
    for more in ("direction: min", "direction: max"):
        other = f"{text}{more}\n".replace("name: lr", f"name: {more[-3:]}")
        declare_study(door, asked(tmp_path, other), code(), by="ann")
    assert len(remarks) == 1


def test_a_project_without_steps_cannot_be_tuned(world: World, tmp_path: Path) -> None:
    project = example()
    keys = {name: key for name, key in project.keys.items() if name != "steps"}
    project = replace(project, keys=keys, roles={})
    assert "No key of gpt has the role steps" in refusal(world, tmp_path, TEXT, project=project)


def test_a_cap_below_one_trial_is_refused_by_the_fastest_run_so_far(
    world: World, tmp_path: Path
) -> None:
    history = History("gpt-before").declare().open().place().restore().commit(40)
    history.end(last_step=40, device_seconds=80.0).finish().write_to(world.tracks.store)
    world.tracks.project(history.name)
    text = f"{TEXT}max_device_hours: 0.001\n"  # 3.6 s, where ten steps of 2 s take 20 s
    words = refusal(world, tmp_path, text)
    assert "max_device_hours 0.001 is less than one trial of 10 steps" in words
    prices = Prices(currency="USD", per_device_hour={"cpu": 3.6})  # 0.02 for 20 s
    door = replace(door_of(world.tracks, world.ledger), prices=lambda: prices)
    with pytest.raises(
        InvalidInput, match=r"max_cost 0.01 is less than one .* hours, which cost 0.02"
    ):
        declare_study(door, asked(tmp_path, f"{TEXT}max_cost: 0.01\n"), code(), by="ann")
    declare_study(door, asked(tmp_path, f"{TEXT}max_cost: 0.03\n"), code(), by="ann")


def test_a_cap_is_remarked_where_nobody_knows_what_a_trial_takes(
    world: World, tmp_path: Path
) -> None:
    remarks: list[str] = []
    door = replace(door_of(world.tracks, world.ledger), remark=remarks.append)
    for _ in range(2):
        text = f"{TEXT}max_device_hours: 1e-7\n"
        declare_study(door, asked(tmp_path, text), code(), by="ann")
    assert remarks == [
        "How long a trial takes is not known yet, for no run of gpt was measured, so max_device_hours "
        "1e-07 may be less than one takes."
    ]


def test_the_same_file_takes_a_study_up_and_another_one_of_its_name_is_refused(
    study: StudyState, world: World, tmp_path: Path
) -> None:
    door = door_of(world.tracks, world.ledger)
    again = declare_study(door, asked(tmp_path), code(), by="bob")
    assert again.head.seq == 0
    with pytest.raises(InvalidInput, match="declared with another space; a study is never changed"):
        declare_study(door, asked(tmp_path, TEXT.replace("0.001", "0.002")), code(), by="ann")
    with pytest.raises(InvalidInput, match="declared with another config"):
        declare_study(door, asked(tmp_path, f"{TEXT}config: {{layers: 3}}\n"), code(), by="ann")
    wider = replace(example(), keys={**example().keys, "new": ConfigKey(default=1)})
    assert declare_study(door, asked(tmp_path), code(project=wider), by="ann").head.seq == 0
    larger = declare_study(door, asked(tmp_path, f"{TEXT}max_device_hours: 9\n"), code(), by="ann")
    assert (larger.declared.max_device_hours, larger.head.kind) == (9.0, Kind.STUDY_EXTENDED)
    with pytest.raises(InvalidInput, match="never taken back"):
        declare_study(door, asked(tmp_path, f"{TEXT}max_device_hours: 8\n"), code(), by="ann")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT, "another config (layers)"),
        (f"{TEXT}config: {{layers: 4}}\n", "another config (layers)"),
        (f"{TEXT}config: {{layers: 3}}\nclass: urgent\n", "another class"),
        (f"{TEXT}config: {{layers: 3}}\nstage: canary\n", "another stage"),
    ],
)
def test_a_study_is_not_taken_up_with_another_config_class_or_stage(
    text: str, words: str, world: World, tmp_path: Path
) -> None:
    door = door_of(world.tracks, world.ledger)
    declare_study(door, asked(tmp_path, f"{TEXT}config: {{layers: 3}}\n"), code(), by="ann")
    with pytest.raises(InvalidInput, match=re.escape(f"declared with {words}; a study is never")):
        declare_study(door, asked(tmp_path, text), code(), by="ann")
    assert world.tracks.study("lr").head.seq == 0


def test_what_a_study_trains_otherwise_than_its_file_would_now_is_remarked(
    world: World, tmp_path: Path
) -> None:
    remarks: list[str] = []
    door = replace(door_of(world.tracks, world.ledger), remark=remarks.append)
    text = f"{TEXT}class: urgent\n"
    for _ in range(2):
        declare_study(door, asked(tmp_path, text), code(), by="ann")
    assert remarks == []
    keys = {**example().keys, "layers": replace(example().keys["layers"], default=7)}
    other = {"project": replace(example(), keys=keys), "archive": b"another tar"}
    assert declare_study(door, asked(tmp_path), code(**other), by="ann").head.seq == 0
    assert remarks == [
        "lr was declared with other code, class 'urgent', layers 2, and trains that to its end. Give "
        "the study another name to train what there is now."
    ]


def test_a_study_that_began_with_priors_is_taken_up_though_its_source_has_grown(
    world: World, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    source = tmp_path / "trials.jsonl"
    source.write_text('{"config": {"lr": 0.01}, "value": 1.0}\n')
    text = TEXT.replace("search: grid", f"search: {{kind: tpe, priors: [{source}]}}\ntrials: 3")
    door = door_of(world.tracks, world.ledger)
    first = declare_study(door, asked(tmp_path, text), code(), by="ann")
    assert list(first.declared.search["priors"]) == [{"config": {"lr": 0.01}, "value": 1.0}]
    with source.open("a") as file:
        file.write('{"config": {"lr": 0.1}, "value": 2.0}\n')
    assert declare_study(door, asked(tmp_path, text), code(), by="ann").head.seq == 0
    other = text.replace("priors", "startup: 3, priors")
    with pytest.raises(InvalidInput, match="declared with another search"):
        declare_study(door, asked(tmp_path, other), code(), by="ann")
    source.unlink()  # and whatever becomes of it
    assert declare_study(door, asked(tmp_path, text), code(), by="ann").head.seq == 0


def test_a_larger_cap_counts_though_the_study_has_gone_on_meanwhile(
    study: StudyState, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_study = Tracks.decide_study

    def decide_late(tracks: Tracks, name: str, choose: Any) -> Any:
        monkeypatch.setattr(Tracks, "decide_study", decide_study)
        decided(world)  # as a daemon does between what was read and what is written
        return decide_study(tracks, name, choose)

    monkeypatch.setattr(Tracks, "decide_study", decide_late)
    larger = asked(tmp_path, f"{TEXT}max_device_hours: 9\n")
    declare_study(door_of(world.tracks, world.ledger), larger, code(), by="ann")
    assert world.tracks.study("lr").declared.max_device_hours == 9.0


def test_a_file_without_a_cap_that_the_study_has_changes_nothing(
    study: StudyState, world: World, tmp_path: Path
) -> None:
    door = door_of(world.tracks, world.ledger)
    declare_study(door, asked(tmp_path, f"{TEXT}max_device_hours: 9\n"), code(), by="ann")
    again = declare_study(door, asked(tmp_path), code(), by="ann")
    assert (again.head.seq, again.declared.max_device_hours) == (1, 9.0)


def test_trials_pass_the_gates_that_their_study_passed_and_what_it_draws_is_left_out(
    world: World, tmp_path: Path
) -> None:
    full = replace(SHIPPED[FULL], needs=(SMOKE,))
    strict = replace(STRICT, rules={**SHIPPED, FULL: full})
    policy = replace(DEFAULT_POLICY, stages=strict)
    tracks, ledger = world.tracks, world.ledger
    declaring = partial(declare, tracks, ledger=ledger, policy=policy)
    world = replace(world, policy=policy, declare=declaring)
    door = Door(
        tracks=tracks,
        ledger=ledger,
        policy=policy,
        plan=partial(plan_run, tracks, policy=policy, ledger=ledger),
        prices=lambda: None,
    )
    with pytest.raises(InvalidInput, match="smoke: there is none of this project"):
        declare_study(door, asked(tmp_path, f"{TEXT}stage: full\n"), code(), by="ann")
    given = {"run_id": "smoke-1", "stage": SMOKE, "intent": "Show the wiring.", "owner": "ann"}
    smoke = prepare(given, {}, code(), family="gpt", origin=None, policy=policy, otherwise={})
    declaring(smoke)
    train(world, "smoke-1", 1.0)
    study = declare_study(door, asked(tmp_path, f"{TEXT}stage: full\n"), code(), by="ann")
    assert study.declared.run.passed_gates == {SMOKE: "smoke-1"}
    decided(world)
    # The fresh days of the smoke are over, and the trials of the study still pass by it.
    clock = tracks.now
    tracks.now = lambda: clock() + timedelta(days=30)  # type: ignore[method-assign]
    for run_id, loss in (("lr-t000-r0", 3.0), ("lr-t001-r0", 1.0)):
        train(world, run_id, loss)
    decided(world)
    train(world, "lr-t002-r0", 2.0)
    decided(world)
    for run_id in ("lr-t000-r0", "lr-t002-r0", "lr-t001-r1"):
        run = tracks.run(run_id).declared
        assert run.passed_gates == {SMOKE: "smoke-1"}
        assert run.gate_key != study.declared.run.gate_key
    other = prepare(
        {"run_id": "alone", "intent": "Train.", "owner": "ann", "stage": FULL},
        {"lr": 0.1},
        code(),
        family="gpt",
        origin=None,
        policy=policy,
        otherwise={},
    )
    with pytest.raises(InvalidInput, match="smoke: none with this key"):
        declaring(other)
    # Nor is the study refused what it goes on with, while a new one is, by the command that renews.
    larger = asked(tmp_path, f"{TEXT}stage: full\nmax_device_hours: 9\n")
    study = declare_study(door, larger, replace(code(), archive=b"edited since"), by="ann")
    assert study.declared.max_device_hours == 9.0
    other_study = asked(tmp_path, f"{TEXT}stage: full\n".replace("name: lr", "name: lr2"))
    with pytest.raises(InvalidInput, match=r"smoke-1, is 30.0 d old, and 7 d count; `tracks smoke"):
        declare_study(door, other_study, code(), by="ann")


def test_repeats_need_a_seed_that_can_be_changed(world: World, tmp_path: Path) -> None:
    asked_for = f"{TEXT}repeat: {{best: 2, seeds: 1}}\n"
    space = asked_for.replace("{lr: [0.1, 0.01, 0.001]}", "{seed: [1, 2]}")
    assert "repeat: seed is drawn from the space already" in refusal(world, tmp_path, space)
    pbt = asked_for.replace("halving", "pbt").replace("search: grid", "search: random\ntrials: 4")
    assert "repeat: a trial of pbt changes its config" in refusal(world, tmp_path, pbt)
    keys, roles = dict(example().keys), dict(example().roles)
    del keys["seed"], roles["seed"]
    none = replace(example(), keys=keys, roles=roles)
    words = refusal(world, tmp_path, asked_for, project=none)
    assert "repeat: no key of gpt has the role seed" in words
    assert "seeds is missing" in refusal(world, tmp_path, f"{TEXT}repeat: {{best: 2}}\n")


def test_a_repeat_is_declared_from_step_0_with_another_seed(world: World, tmp_path: Path) -> None:
    door = door_of(world.tracks, world.ledger)
    text = f"{TEXT}repeat: {{best: 1, seeds: 1}}\n"
    study = declare_study(door, asked(tmp_path, text), code(), by="ann")
    proposed = TrialProposed(
        trial=2,
        rung=2,
        run_id="lr-t002-r2",
        config={"lr": 0.001},
        steps=30,
        repeat=1,
        why="again",
        decided_by="tests",
    )
    prepared = prepared_of(world.tracks, study, proposed, DEFAULT_POLICY)
    assert prepared.body.config["seed"] == study.declared.run.config["seed"] + 1
    assert prepared.body.config["lr"] == 0.001
    assert prepared.body.branched_from is None
    assert "again, with another seed" in prepared.body.intent


def test_runs_start_in_off_peak_hours_alone_which_may_be_changed(
    world: World, clock: FakeClock, tmp_path: Path
) -> None:
    door = door_of(world.tracks, world.ledger)
    later, hour = clock() + timedelta(hours=2), timedelta(hours=1)
    hours = f"{later:%H:%M}-{later + hour:%H:%M}"
    night = asked(tmp_path, f"{TEXT}off_peak: {hours}\n")
    study = declare_study(door, night, code(), by="ann")
    assert decided(world) == []
    assert f"off-peak is {hours}." in summary(study, world.tracks.now())
    clock.advance(2.5 * 3600)
    decided(world)
    assert len(world.tracks.study("lr").trials) == 2
    assert "off-peak" not in summary(study, world.tracks.now())
    for run_id in ("lr-t000-r0", "lr-t001-r0"):
        train(world, run_id, 1.0)
    clock.advance(3600)
    decided(world)  # they are judged, and nothing starts
    assert len(world.tracks.study("lr").trials) == 2
    study = declare_study(door, asked(tmp_path), code(), by="ann")
    assert study.declared.off_peak == ""
    decided(world)
    assert len(world.tracks.study("lr").trials) == 3


def test_outside_of_the_hours_no_run_is_declared_or_resumed(
    world: World, clock: FakeClock, tmp_path: Path
) -> None:
    tracks, door, hour = world.tracks, door_of(world.tracks, world.ledger), timedelta(hours=1)
    hours = f"{clock() - hour:%H:%M}-{clock() + hour:%H:%M}"
    night = asked(tmp_path, f"{TEXT}off_peak: {hours}\n")
    declare_study(door, night, code(), by="ann")
    decided(world)
    drained = stopped_and_drained(world)
    clock.advance(2 * 3600)
    declare_study(door, night, code(), by="ann")
    proposed = TrialProposed(  # by a tick that died before it declared the run
        trial=2,
        rung=0,
        run_id="lr-t002-r0",
        config={"lr": 0.001},
        steps=10,
        why="the third",
        decided_by="tests",
    )
    tracks.decide_study("lr", lambda state: tracks.draft(Kind.TRIAL_PROPOSED, proposed))
    tick = decide_due(world, [TuneStudies()], kind=OF_STUDIES)
    assert (tick.decided, tick.problems) == ((), ())
    assert f"off-peak is {hours}." in tick.waiting[0]
    assert tracks.find_run("lr-t002-r0") is None
    assert {run_status(tracks.run(run_id)).state for run_id in drained} == {RunLifecycle.WAITING}
    clock.advance(22 * 3600)
    decided(world)
    for run_id in (*drained, "lr-t002-r0"):
        assert run_status(tracks.run(run_id)).state == RunLifecycle.RUNNING


def waits_of(world: World) -> str:
    """Tick; return what the study waits for, in words."""
    tick = decide_due(world, [TuneStudies()], kind=OF_STUDIES)
    assert tick.problems == ()
    return " ".join(tick.waiting)


def test_a_drained_trial_that_cannot_be_resumed_keeps_no_other_waiting(
    study: StudyState, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracks = world.tracks
    decided(world)
    first, other = stopped_and_drained(world)
    declare_study(door_of(tracks, world.ledger), asked(tmp_path), code(), by="ann")
    monkeypatch.setattr(
        "tracks_dagster.attempts.effects.manual_retry.over_stage_time",
        lambda state, now: "its stage has used 10 min" if state.run_id == first else None,
    )
    for _ in range(2):
        words = waits_of(world)
        assert f"1 of 2 slots train: {other}; {first} waits for a person: it cannot be" in words
        assert "its stage has used 10 min" in words
    assert run_status(tracks.run(first)).state == RunLifecycle.WAITING
    assert run_status(tracks.run(other)).state == RunLifecycle.RUNNING


def test_a_study_names_the_trial_that_a_person_drained_and_does_not_count_it_as_training(
    study: StudyState, world: World
) -> None:
    decided(world)
    history = taken_up(world.tracks, "lr-t000-r0")
    history.stop("drain").place().restore().commit(5).end("user_cancelled", last_step=5)
    history.write_to(world.tracks.store)
    world.tracks.project(history.name)
    words = waits_of(world)
    assert "1 of 2 slots train: lr-t001-r0; lr-t000-r0 waits for a person: Attempt 1" in words
    assert "tracks retry lr-t000-r0" in words
    assert trials_for_a_person(world.tracks, ["lr-t000-r0", "lr-t001-r0"]) == [
        f"lr-t000-r0 waits for a person: {run_status(world.tracks.run('lr-t000-r0')).why}"
    ]
    [shown] = waiting_studies(world.tracks, world.ledger)
    assert shown.startswith("lr: lr-t000-r0 waits for a person: Attempt 1 ended")
    assert shown.removeprefix("lr: ") in summary(
        study, world.tracks.now(), [shown.removeprefix("lr: ")]
    )


def test_a_stopped_study_ends_a_trial_that_never_had_an_attempt(
    study: StudyState, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracks = world.tracks
    with monkeypatch.context() as patch:
        patch.setattr(
            "tracks_dagster.attempts.effects.runs.open_first_attempt", lambda *a, **k: None
        )
        decided(world)
    run_ids = [rung.proposed.run_id for rung in tracks.study("lr").open_rungs]
    assert all(not tracks.run(run_id).attempts for run_id in run_ids)
    body = StudyStopped(by="bob", why="the machine is needed")
    tracks.decide_study("lr", lambda state: tracks.draft(Kind.STUDY_STOPPED, body))
    assert f"{run_ids[0]}: Declared; tune_studies asked to stop" in waits_of(world)
    assert [stop.body.mode for stop in tracks.run(run_ids[0]).stops] == ["stop"]
    assert waits_of(world)  # and asks once
    for run_id in run_ids:
        history = taken_up(tracks, run_id).finish("user")
        history.write_to(tracks.store)
        tracks.project(history.name)
    decided(world)
    assert tracks.study("lr").finished is not None


def test_a_study_whose_search_cannot_be_made_here_obeys_a_stop_and_says_what_is_missing(
    study: StudyState, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(declared: object) -> None:
        raise InvalidInput("The extra tune is not installed.")

    tracks = world.tracks
    monkeypatch.setattr("tracks_dagster.studies.effects.deciding.search_of", missing)
    assert "The extra tune is not installed" in waits_of(world)
    body = StudyStopped(by="bob", why="the machine is needed")
    tracks.decide_study("lr", lambda state: tracks.draft(Kind.STUDY_STOPPED, body))
    decided(world)
    assert tracks.study("lr").finished is not None


def test_a_trial_for_which_the_code_of_its_study_is_lost_counts_as_failed_with_the_words(
    study: StudyState, world: World, store: FakeObjectStore
) -> None:
    del store.objects[study.declared.run.trainer]
    decided(world)
    judged = [trial.last.judged for trial in world.tracks.study("lr").trials]
    assert all(each is not None and each.outcome == "failed" for each in judged)
    assert judged[0] is not None
    assert "Its run was refused" in judged[0].why
