"""A tick of run_evals asks for what is due once, closes what was lost, and decides the promotion."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from tests.bodies import EVAL_RESULT, declared
from tests.deciders import world_of
from tests.fakes import FakeClock, FakeEvaluator, FakeObjectStore, FakeOrchestrator
from tests.histories import History
from tracks_dagster.attempts.launch import FRUITLESS_RUNS_MAX, PendingLaunch
from tracks_dagster.evals.effects.running import ask_for_evals, run_eval
from tracks_dagster.evals.effects.tick import EvalRequest, close_lost_evals, tick_evals
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import PromotionDecided
from tracks_dagster.track.states.evals import result_key, started_key
from tracks_dagster.track.states.run_state import find_at
from tracks_dagster.track.track import log_key

KEY = "r-1/heldout-loss@40/1"


def trained(tracks: Tracks, store: FakeObjectStore, run_id: str = "r-1") -> None:
    history = History(run_id).declare().open().place().restore().commit(40)
    history.end("completed", last_step=40).write_to(store)
    tracks.project(history.name)


def test_a_commit_is_evaluated_while_the_run_trains_where_it_asks_for_that(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    for run_id, every in (("r-1", 2), ("r-2", None)):
        (required,) = declared().evals
        history = History(run_id).declare(evals=(replace(required, every=every),))
        history.open().place().restore().commit(20).commit(40).write_to(store)
        tracks.project(history.name)
    (request,) = tick(tracks, ledger, FakeOrchestrator()).requests
    assert request.attempt_key == KEY


@dataclass(frozen=True)
class Found:
    """What came of a tick, over all runs."""

    requests: list[EvalRequest]
    promotions: list[PromotionDecided]
    pending: list[PendingLaunch]
    waiting: list[str]
    problems: list[str]


def tick(
    tracks: Tracks,
    ledger: Ledger,
    orchestrator: FakeOrchestrator,
    evaluator: FakeEvaluator | None = None,
) -> Found:
    world = world_of(tracks, ledger, orchestrator=orchestrator)
    done = tick_evals(world, evaluator=evaluator)
    return Found(
        requests=[each for run in done.done for each in run.requests],
        promotions=[each for run in done.done for each in run.promotions],
        pending=[each for run in done.done for each in run.pending],
        waiting=list(done.waiting),
        problems=list(done.problems),
    )


def test_a_due_eval_is_asked_for_until_dagster_has_it(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    trained(tracks, store)
    dagster = FakeOrchestrator()
    for _ in range(2):  # the daemon may die between the record and the request
        (request,) = tick(tracks, ledger, dagster).requests
        assert (request.eval_key, request.run_key) == ("r-1/heldout-loss@40", KEY)
    dagster.put(KEY, "dagster-1")
    found = tick(tracks, ledger, dagster)
    assert found.requests == []
    assert found.waiting == ["r-1: heldout-loss@40: attempt 1 is under way"]


def test_a_completed_eval_leads_to_one_promotion(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    trained(tracks, store)
    dagster = FakeOrchestrator()
    tick(tracks, ledger, dagster)
    dagster.put(KEY, "dagster-1")
    run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), "r-1", "heldout-loss@40", 1)
    broken = tick_evals(world_of(tracks, ledger, orchestrator=dagster), is_promoting=False)
    assert [each for run in broken.done for each in run.promotions] == []  # nobody knows the policy
    (decided,) = tick(tracks, ledger, dagster).promotions
    assert decided.promoted
    assert tick(tracks, ledger, dagster).promotions == []


def begin(store: FakeObjectStore, number: int = 1) -> None:
    """Let the evaluator of that attempt run its first line."""
    store.put(started_key(result_key("r-1", "heldout-loss@40", number)), b"{}")


def test_an_eval_whose_dagster_run_died_is_ended_and_tried_again(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    trained(tracks, store)
    dagster, evaluator = FakeOrchestrator(), FakeEvaluator(store, {})
    tick(tracks, ledger, dagster)
    begin(store)
    dagster.put(KEY, "dagster-1", is_finished=True)
    evaluator.is_alone = False  # Dagster takes it for dead, and it works on
    tick(tracks, ledger, dagster, evaluator=evaluator)
    assert tracks.run("r-1").evals[0].ended is None
    assert evaluator.alone_at == [result_key("r-1", "heldout-loss@40", 1)]
    evaluator.is_alone = True
    (request,) = tick(tracks, ledger, dagster, evaluator=evaluator).requests
    assert request.run_key == "r-1/heldout-loss@40/2"
    first, second = tracks.run("r-1").evals
    assert first.ended is not None
    assert first.ended.reason == "evaluator_error"
    assert first.ended.message == "Dagster run dagster-1 is over and left no result."
    assert second.ended is None
    assert second.opened.decision.endswith(
        "failed: Dagster run dagster-1 is over and left no result."
    )


def test_an_eval_that_another_dagster_run_still_works_on_is_not_lost(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    trained(tracks, store)
    dagster = FakeOrchestrator()
    tick(tracks, ledger, dagster)
    dagster.put(KEY, "dagster-1", is_finished=True)
    dagster.put(KEY, "dagster-2")
    assert close_lost_evals(tracks, dagster, "r-1") == []


def test_an_end_that_was_recorded_while_dagster_was_asked_is_seen(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    trained(tracks, store)
    tick(tracks, ledger, FakeOrchestrator())

    class EndsWhileAsked(FakeOrchestrator):
        def runs_of_eval(self, eval_attempt_key: str):  # type: ignore[no-untyped-def]
            run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), "r-1", "heldout-loss@40", 1)
            return super().runs_of_eval(eval_attempt_key)

    dagster = EndsWhileAsked()
    dagster.put(KEY, "dagster-1", is_finished=True)
    assert close_lost_evals(tracks, dagster, "r-1") == []
    (only,) = tracks.run("r-1").evals
    assert only.ended is not None
    assert only.ended.reason == "completed"


def test_after_three_failures_the_tick_says_what_to_do(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    trained(tracks, store)
    dagster = FakeOrchestrator()
    for number in (1, 2, 3):
        (request,) = tick(tracks, ledger, dagster).requests
        begin(store, number)
        dagster.put(request.run_key, f"dagster-{number}", is_finished=True)
    found = tick(tracks, ledger, dagster)
    assert found.requests == []
    assert "failed 3 times" in found.waiting[0]


def test_an_eval_whose_evaluator_never_ran_costs_nothing_and_is_asked_for_later_each_time(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore, clock: FakeClock
) -> None:
    """As on a machine that is overloaded: three tries went in five minutes, and then none was left."""
    trained(tracks, store)
    dagster = FakeOrchestrator()
    tick(tracks, ledger, dagster)
    for died in range(1, FRUITLESS_RUNS_MAX):
        met = {"ended_at": clock(), "problem": "the code server did not answer"}
        dagster.put(KEY, f"dagster-{died}", is_finished=True, **met)
        found = tick(tracks, ledger, dagster)
        assert found.requests == []
        [pending] = found.pending
        assert (pending.key, pending.failed_count, pending.why) == (KEY, died, met["problem"])
        clock.advance(min(10 * 2 ** (died - 1), 300))
        [request] = tick(tracks, ledger, dagster).requests
        assert (request.run_key, request.attempt_key) == (f"{KEY}/{died}", KEY)
    [still_open] = tracks.run("r-1").evals
    assert still_open.ended is None
    dagster.put(KEY, "dagster-last", is_finished=True, ended_at=clock())
    [request] = tick(tracks, ledger, dagster).requests  # bounded: now it is a try that failed
    assert request.run_key == "r-1/heldout-loss@40/2"
    first, _ = tracks.run("r-1").evals
    assert first.ended is not None
    assert first.ended.message == (
        "20 Dagster runs died before the evaluator ran, the last was dagster-last."
    )


def test_what_a_lost_evaluator_measured_counts(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    trained(tracks, store)
    dagster = FakeOrchestrator()
    tick(tracks, ledger, dagster)
    begin(store)
    dagster.put(KEY, "dagster-1", is_finished=True)
    store.put(result_key("r-1", "heldout-loss@40", 1), json.dumps(EVAL_RESULT).encode())
    tick(tracks, ledger, dagster)
    [only] = tracks.run("r-1").evals
    assert only.ended is not None
    assert only.ended.reason == "completed"


def test_an_eval_that_a_person_asks_for_of_a_finished_run_is_run(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    history = History("r-1").declare().open().place().restore().commit(20).commit(40)
    history.end("completed", last_step=40).finish().write_to(store)
    tracks.project(history.name)
    assert tick(tracks, ledger, FakeOrchestrator()).requests == []
    ref = find_at(tracks.run("r-1"), 20).ref
    ask_for_evals(tracks, ref, by="ada", why="")
    [request] = tick(tracks, ledger, FakeOrchestrator()).requests
    assert (request.eval_key, request.run_key) == ("r-1/heldout-loss@20", "r-1/heldout-loss@20/1")


def test_one_runs_trouble_does_not_keep_the_others_waiting(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    trained(tracks, store, "r-1")
    trained(tracks, store, "r-2")
    store.put(log_key("runs/r-1", 3), b"broken")
    tracks = Tracks(store, now=tracks.now, new_uid=tracks.new_uid, project=tracks.project)
    found = tick(tracks, ledger, FakeOrchestrator())
    assert [request.run_id for request in found.requests] == ["r-2"]
    assert found.problems[0].startswith("r-1: Record 3 cannot be read")


def test_a_run_that_trains_costs_a_tick_no_look_at_its_track(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    history = History("r-1").declare().open().supervise().place()
    history.write_to(store)
    tracks.project(history.name)
    tick(tracks, ledger, FakeOrchestrator())
    store.calls.clear()
    tick(tracks, ledger, FakeOrchestrator())
    assert store.calls == []
