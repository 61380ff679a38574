"""Evals are opened exactly once, run to an end that is always recorded, and can be waived."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.bodies import EVAL_RESULT, declared
from tests.deciders import opened_evals
from tests.fakes import FakeClock, FakeEvaluator, FakeObjectStore, Fault, SequentialUids
from tests.histories import History
from tracks_dagster.evals.effects import running as evals
from tracks_dagster.evals.effects.running import run_eval, waive
from tracks_dagster.evals.promotion import newest_completed
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import CodeVersion, EvalOpened, MemoryPeak, Program
from tracks_dagster.track.errors import (
    GangError,
    InvalidInput,
    StoreUnavailable,
    TracksError,
    UnknownRun,
)
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.evals import evals_settled, needs_device, unsettled
from tracks_dagster.track.states.run_state import find_at


@pytest.fixture(autouse=True)
def trained(store: FakeObjectStore) -> History:
    """r-1 has all its steps; its micro-batch was changed on the way."""
    heldout = replace(declared().evals[0], timeout_s=90.0)
    history = History().declare(evals=(heldout,)).open().place().restore().commit(20)
    history.end("gpu_oom", last_step=23).open(
        config={"steps": 40, "micro_batch": 2}
    ).place().restore().commit(40)
    history.end("completed", last_step=40).write_to(store)
    return history


def open_evals(tracks: Tracks) -> list[EvalOpened]:
    return opened_evals(tracks, "r-1")


def kinds(tracks: Tracks) -> list[Kind]:
    return [record.kind for record in tracks.records("runs/r-1")]


def test_what_is_open_is_returned_again_until_it_has_ended(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    (opened,) = open_evals(tracks)
    assert (opened.eval_id, opened.number) == ("heldout-loss@40", 1)
    assert open_evals(tracks) == [opened]
    run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), "r-1", opened.eval_id, 1)
    assert open_evals(tracks) == []
    assert kinds(tracks).count(Kind.EVAL_OPENED) == 1


def test_many_deciders_at_once_open_each_eval_once(
    store: FakeObjectStore, clock: FakeClock
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    uids = SequentialUids()
    barrier = threading.Barrier(4)
    found: list[list[EvalOpened]] = []

    def decide(lost_reply: int) -> None:
        tracks = Tracks(store, now=clock, new_uid=uids, project=lambda track: None)
        tracks.run("r-1")
        barrier.wait(timeout=60)
        if lost_reply:
            store.fail("create", lost_reply, Fault.LOST_AFTER)
        found.append(open_evals(tracks))

    threads = [threading.Thread(target=decide, args=(rng.randrange(4),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(found) == 4
    assert all(each == found[0] for each in found)
    last = Tracks(store, now=clock, new_uid=uids, project=lambda track: None)
    assert kinds(last).count(Kind.EVAL_OPENED) == 1


def test_a_decider_that_saw_an_older_state_finds_nothing_left_to_do(
    tracks: Tracks, store: FakeObjectStore, clock: FakeClock, new_uid: SequentialUids
) -> None:
    other = Tracks(store, now=clock, new_uid=new_uid, project=lambda track: None)
    other.run("r-1")
    (first,) = open_evals(tracks)
    assert open_evals(other) == [first]
    assert kinds(tracks).count(Kind.EVAL_OPENED) == 1


def test_the_result_is_recorded_with_everything_that_it_rests_on(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    (opened,) = open_evals(tracks)
    measured = {**EVAL_RESULT, "memory": {"reserved_bytes": 7}}
    evaluator = FakeEvaluator(store, measured)
    ended = run_eval(tracks, evaluator, "r-1", opened.eval_id, 1, dagster_run_id="dagster-9")
    assert ended.reason == "completed"
    assert ended.memory == MemoryPeak(reserved_bytes=7)
    assert ended.metrics == EVAL_RESULT["metrics"]
    assert (ended.sample_count, ended.device_seconds) == (512, 5.0)
    assert ended.environment_sha256 == EVAL_RESULT["environment_sha256"]
    assert ended.dagster_run_id == "dagster-9"
    (spec,) = evaluator.specs
    assert spec.checkpoint == opened.checkpoint
    assert spec.config == {"steps": 40, "micro_batch": 2}  # of the attempt that wrote it
    assert (spec.suite, spec.suite_version, spec.seed) == ("heldout-loss", "1", 7)
    assert spec.timeout_s == 90.0
    assert spec.result_key == "runs/r-1/evals/heldout-loss@40/1/result.json"
    assert evals_settled(tracks.run("r-1"))


def test_an_eval_that_needs_no_device_sees_none(tracks: Tracks, store: FakeObjectStore) -> None:
    without = replace(declared().evals[0], needs_device=False)
    history = History("r-2").declare(evals=(without,)).open().place().restore().commit(40)
    history.end("completed", last_step=40).write_to(store)
    evaluator = FakeEvaluator(store, EVAL_RESULT)
    [opened] = opened_evals(tracks, "r-2")
    assert run_eval(tracks, evaluator, "r-2", opened.eval_id, 1).held is None
    assert evaluator.specs[0].environment["CUDA_VISIBLE_DEVICES"] == ""


def test_a_scorer_can_be_asked_for_again_and_is_given_what_the_inference_left(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    infer = declared().evals[0]
    score = replace(infer, suite="score", of=infer.suite, needs_device=False)
    history = History("r-2").declare(evals=(infer, score)).open().place().restore().commit(40)
    history.end("completed", last_step=40).write_to(store)
    ref = find_at(tracks.run("r-2"), 40).ref
    with pytest.raises(InvalidInput, match=r"score of .* it waits for heldout-loss@40 with seed 7"):
        evals.ask_for_evals(tracks, ref, by="ada", why="", suite="score")
    [asked] = evals.ask_for_evals(tracks, ref, by="ada", why="")
    assert asked.opened.suite == infer.suite
    left = {"name": "answers.json", "size_bytes": 2, "sha256": "a" * 64}
    evaluator = FakeEvaluator(store, {**EVAL_RESULT, "artifacts": [left]})
    run_eval(tracks, evaluator, "r-2", "heldout-loss@40", 1)
    [_, asked] = evals.ask_for_evals(tracks, ref, by="ada", why="")
    run_eval(tracks, evaluator, "r-2", "score@40", 1)
    scored = evaluator.specs[-1].scored
    assert scored == asked.opened.scored
    assert scored is not None
    assert (scored.eval_id, scored.number) == ("heldout-loss@40", 1)
    assert [(each.name, each.sha256) for each in scored.artifacts] == [("answers.json", "a" * 64)]


def test_a_scorer_of_later_code_runs_without_a_device_and_no_promotion_rests_on_it(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    infer = declared().evals[0]
    score = replace(infer, suite="score", of=infer.suite, needs_device=False)
    history = History("r-2").declare(evals=(infer, score)).open().place().restore().commit(40)
    history.end("completed", last_step=40).write_to(store)
    ref = find_at(tracks.run("r-2"), 40).ref
    program = Program(entry=("lenient.py",))
    same = replace(score, program=program)
    later = replace(score, suite_version="2", program=program, timeout_s=9.0)
    code = CodeVersion(git_commit=None, branch=None, dirty=None, package_version="1")
    brought = evals.BroughtCode(scorers=(later,), archive=b"code", code=code)

    def ask(suite: str | None = None) -> list[evals.RequestedEval]:
        return evals.ask_for_evals(tracks, ref, by="ada", why="", suite=suite, brought=brought)

    with pytest.raises(InvalidInput, match=r"score of .* waits for heldout-loss@40"):
        ask()
    with pytest.raises(InvalidInput, match=r"no scorer heldout-loss, .*; it has: score"):
        ask("heldout-loss")
    assert not list(store.list("runs/r-2/trainer/"))
    evals.ask_for_evals(tracks, ref, by="ada", why="")
    run_eval(tracks, evaluator := FakeEvaluator(store, EVAL_RESULT), "r-2", "heldout-loss@40", 1)
    [asked] = ask()
    run_eval(tracks, evaluator, "r-2", "score@40", 1)
    spec = evaluator.specs[-1]
    assert (spec.program, spec.suite_version, spec.timeout_s) == (program, "2", 9.0)
    assert store.get(spec.code_key or "") == b"code"
    assert spec.scored == asked.opened.scored
    state = tracks.run("r-2")
    assert not needs_device(state, asked.opened)
    assert newest_completed(state, "score", ref) is None
    assert [each.suite for each in unsettled(state)] == ["score"]
    [again] = ask()
    assert not again.is_new
    brought = replace(brought, scorers=(same,))
    assert ask()[0].opened.brought is None  # the same version: what the run itself declared
    assert len(list(store.list("runs/r-2/trainer/"))) == 1


def test_an_eval_that_has_ended_is_not_run_again(tracks: Tracks, store: FakeObjectStore) -> None:
    (opened,) = open_evals(tracks)
    evaluator = FakeEvaluator(store, EVAL_RESULT)
    first = run_eval(tracks, evaluator, "r-1", opened.eval_id, 1)
    assert run_eval(tracks, evaluator, "r-1", opened.eval_id, 1) == first
    assert len(evaluator.specs) == 1
    assert kinds(tracks).count(Kind.EVAL_ENDED) == 1


def test_a_result_that_a_killed_process_left_is_used(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    (opened,) = open_evals(tracks)
    evaluator = FakeEvaluator(store, EVAL_RESULT)
    store.fail("create", 1, Fault.FAILS)  # the record of the end
    with pytest.raises(StoreUnavailable):
        run_eval(tracks, evaluator, "r-1", opened.eval_id, 1)
    ended = run_eval(tracks, evaluator, "r-1", opened.eval_id, 1)
    assert ended.metrics == EVAL_RESULT["metrics"]
    assert len(evaluator.specs) == 1


@pytest.mark.parametrize(
    ("answer", "reason"), [(EVAL_RESULT, "completed"), ("nothing", "evaluator_error")]
)
def test_an_evaluator_whose_exit_nobody_saw_has_ended_by_the_result_that_it_left(
    tracks: Tracks, store: FakeObjectStore, answer: dict[str, Any] | str, reason: str
) -> None:
    (opened,) = open_evals(tracks)
    evaluator = FakeEvaluator(store, answer)
    evaluator.is_seen = False
    assert run_eval(tracks, evaluator, "r-1", opened.eval_id, 1).reason == reason


def test_a_failed_evaluator_ends_the_attempt_and_the_next_is_opened_within_its_budget(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    evaluator = FakeEvaluator(store, "Traceback …\nValueError: no such suite")
    for number in (1, 2, 3):
        (opened,) = open_evals(tracks)
        assert opened.number == number
        ended = run_eval(tracks, evaluator, "r-1", opened.eval_id, number)
        assert ended.reason == "evaluator_error"
        assert "no such suite" in ended.message
    assert open_evals(tracks) == []
    assert len(tracks.run("r-1").attempts) == 2  # training is untouched


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metrics": {"loss": float("nan")}}, "NaN is not a number of JSON"),
        ({"metrics": {"loss": float("inf")}}, "Infinity is not a number of JSON"),
        ({"metrics": {}}, "0 metrics"),
        ({"metrics": {f"m{n}": 1.0 for n in range(101)}}, "101 metrics"),
        ({"metrics": {"loss": "low"}}, "could not convert"),
        ({"metrics": None}, "'NoneType'"),
        ({"sample_count": 0}, "no sample"),
        ({"environment_sha256": ""}, "in which environment"),
        ({"started_at": "yesterday"}, "yesterday"),
        (
            {"artifacts": [{"name": "../../x", "size_bytes": 1, "sha256": "a" * 64}]},
            "names a file '../../x', which is not an artifact's name",
        ),
    ],
)
def test_a_result_that_cannot_be_used_is_an_evaluator_error(
    tracks: Tracks, store: FakeObjectStore, change: dict[str, Any], said: str
) -> None:
    (opened,) = open_evals(tracks)
    ended = run_eval(
        tracks, FakeEvaluator(store, {**EVAL_RESULT, **change}), "r-1", opened.eval_id, 1
    )
    assert ended.reason == "evaluator_error"
    assert said in ended.message
    assert ended.metrics == {}


def test_an_eval_whose_evaluator_cannot_be_started_stays_open(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    (opened,) = open_evals(tracks)
    evaluator = FakeEvaluator(store, GangError("no process can be started"))
    with pytest.raises(GangError, match="no process"):
        run_eval(tracks, evaluator, "r-1", opened.eval_id, 1)
    assert open_evals(tracks) == [opened]


def checkpoint(tracks: Tracks, step: int) -> CheckpointRef:
    return find_at(tracks.run("r-1"), step).ref


def test_a_person_asks_for_an_eval_of_any_checkpoint_with_any_seed_once(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    best = checkpoint(tracks, 20)
    [asked] = evals.ask_for_evals(tracks, best, by="ada", why="it looked better")
    assert asked.is_new
    assert (asked.opened.eval_id, asked.opened.number) == ("heldout-loss@20", 1)
    assert (asked.opened.seed, asked.opened.decided_by) == (7, "ada")
    assert asked.opened.decision == "ada asked for it: it looked better"
    [again] = evals.ask_for_evals(tracks, best, by="bob", why="")
    assert (again.is_new, again.opened, again.ended) == (False, asked.opened, None)
    run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), "r-1", "heldout-loss@20", 1)
    [done] = evals.ask_for_evals(tracks, best, by="bob", why="")
    assert not done.is_new
    assert done.ended is not None
    assert done.ended.metrics == EVAL_RESULT["metrics"]
    [other] = evals.ask_for_evals(tracks, best, by="bob", why="", seed=8)
    assert (other.is_new, other.opened.number, other.opened.seed) == (True, 2, 8)


def test_after_the_budget_of_the_daemon_a_person_may_ask_again(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    for number in (1, 2, 3):
        open_evals(tracks)
        run_eval(tracks, FakeEvaluator(store, "no"), "r-1", "heldout-loss@40", number)
    assert open_evals(tracks) == []
    [asked] = evals.ask_for_evals(tracks, checkpoint(tracks, 40), by="ada", why="")
    assert asked.opened.number == 4
    run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), "r-1", "heldout-loss@40", 4)
    assert evals_settled(tracks.run("r-1"))


def test_what_cannot_be_evaluated_is_refused_and_nothing_is_written(
    tracks: Tracks, trained: History
) -> None:
    before = kinds(tracks)
    with pytest.raises(InvalidInput, match="no eval accuracy; it has: heldout-loss"):
        evals.ask_for_evals(tracks, checkpoint(tracks, 40), by="ada", why="", suite="accuracy")
    ref = checkpoint(tracks, 20)
    bad = trained.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref).drafts[-1]
    tracks.decide_run("r-1", lambda _: bad)
    with pytest.raises(TracksError, match=r"r-1@20 .*cannot be read any more"):
        evals.ask_for_evals(tracks, ref, by="ada", why="")
    assert kinds(tracks) == [*before, Kind.CHECKPOINT_QUARANTINED]


def test_a_promotion_rests_on_the_seed_that_the_run_requires(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    ref = checkpoint(tracks, 40)
    for number, seed in ((1, None), (2, 8)):
        evals.ask_for_evals(tracks, ref, by="ada", why="", seed=seed)
        run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), "r-1", "heldout-loss@40", number)
    found = newest_completed(tracks.run("r-1"), "heldout-loss", ref)
    assert found is not None
    assert found.opened.seed == 7


def test_a_very_long_message_keeps_its_end(tracks: Tracks, store: FakeObjectStore) -> None:
    (opened,) = open_evals(tracks)
    evaluator = FakeEvaluator(store, "x" * 100_000 + " the cause")
    ended = run_eval(tracks, evaluator, "r-1", opened.eval_id, 1)
    assert len(ended.message) == evals.MESSAGE_CHARACTERS_MAX
    assert ended.message.endswith("the cause")


def test_the_first_of_two_ends_counts(tracks: Tracks, store: FakeObjectStore) -> None:
    (opened,) = open_evals(tracks)
    lost = evals.failed_end(
        opened,
        "lost",
        started_at="2026-01-31T02:00:00.000000Z",
        finished_at="2026-01-31T02:00:00.000000Z",
        dagster_run_id=None,
    )
    evals.end_eval(tracks, "r-1", lost)
    late = run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), "r-1", opened.eval_id, 1)
    assert late == lost


def test_an_attempt_at_an_eval_that_nobody_opened_is_refused(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    open_evals(tracks)
    with pytest.raises(UnknownRun, match="it has: heldout-loss@40"):
        run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), "r-1", "heldout-loss@20", 1)


def test_a_waiver_is_recorded_once_and_settles_the_suite(tracks: Tracks) -> None:
    waived = waive(tracks, "r-1", "heldout-loss", by="ann", why="the suite is being rewritten")
    assert waive(tracks, "r-1", "heldout-loss", by="bob", why="again") == waived
    assert kinds(tracks).count(Kind.EVAL_WAIVED) == 1
    assert evals_settled(tracks.run("r-1"))
    assert open_evals(tracks) == []


@pytest.mark.parametrize(
    ("suite", "by", "why", "said"),
    [
        ("other", "ann", "because", "requires no eval 'other'; it requires: heldout-loss"),
        ("heldout-loss", " ", "because", "say who waives it and why"),
        ("heldout-loss", "ann", "", "say who waives it and why"),
    ],
)
def test_a_waiver_without_words_or_for_nothing_is_refused(
    tracks: Tracks, suite: str, by: str, why: str, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        waive(tracks, "r-1", suite, by=by, why=why)
    assert Kind.EVAL_WAIVED not in kinds(tracks)
