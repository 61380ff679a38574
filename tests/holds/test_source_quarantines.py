"""A source in quarantine: what descends from it shows it, nothing new starts from it, and a release
undoes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.attempts.test_retry import CONFIG
from tests.attempts.test_runs import REQUEST
from tests.bodies import EVAL_RESULT, HELDOUT, TRAIN, placed
from tests.deciders import (
    decided_promotion,
    evals_wait_for,
    first_settled,
    opened_evals,
    retried,
    settled_run,
    world_of,
)
from tests.fakes import FakeClock, FakeEvaluator, FakeObjectStore
from tests.histories import DatasetHistory, History
from tracks_dagster.attempts.effects.branches import find_origin
from tracks_dagster.attempts.effects.manual_retry import AttemptChanges
from tracks_dagster.attempts.effects.runs import declare
from tracks_dagster.evals.effects.promoting import promote
from tracks_dagster.evals.effects.running import run_eval
from tracks_dagster.holds.effects.blast import blast
from tracks_dagster.holds.effects.holds import quarantined_sources
from tracks_dagster.holds.effects.quarantines import quarantine_source, release_source
from tracks_dagster.holds.hold import Hold
from tracks_dagster.holds.lineage import parse_thing
from tracks_dagster.ledger.effects.deciding import Settled
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.effects.explain.run import explain_attempt
from tracks_dagster.review.effects.status import read_status
from tracks_dagster.track.bodies import CodeVersion, ComputeRequest
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Kind, sha256_hex

WHY = "it flips bits"
SOURCE = b"a project as a tar"
SOURCE_SHA256 = sha256_hex(SOURCE)


@pytest.fixture
def run(store: FakeObjectStore, clock: FakeClock, ledger: Ledger) -> History:
    """Steps 10 and 20 by attempt 1 on node-1, 30 by attempt 2 on node-2, which was preempted."""
    for ref in (TRAIN, HELDOUT):
        DatasetHistory(ref.dataset).declare().commit(ref.snapshot_id).write_to(store)
    history = History("r-1").declare(config=CONFIG)
    history.open().place().restore().commit(10).commit(20).end("preempted", last_step=22)
    history.open().place(ranks=on("node-2")).restore().commit(30).end("preempted", last_step=33)
    history.write_to(store)
    Projector(store, ledger).scan()
    clock.at = history.at
    clock.advance(600)
    return history


def on(node: str) -> Any:
    return tuple(replace(rank, node=node) for rank in placed("x").ranks)


def hold(tracks: Tracks, ledger: Ledger, thing: str) -> None:
    assert quarantine_source(tracks, ledger, parse_thing(thing), by="ann", why=WHY).record


def free(tracks: Tracks, ledger: Ledger, thing: str) -> None:
    assert release_source(tracks, ledger, parse_thing(thing), by="ann", why="ok").record


def settled(tracks: Tracks, run_id: str = "r-1") -> Settled:
    return settled_run(tracks, run_id)


def marks(tracks: Tracks, ledger: Ledger, thing: str) -> tuple[Hold, ...]:
    return quarantined_sources(tracks, ledger, parse_thing(thing))


def by_person(tracks: Tracks) -> Any:
    return retried(tracks, "r-1", by="bo", why="on with it")


@pytest.mark.parametrize("source", ["node:node-2", "attempt:r-1/a02", "checkpoint:r-1@30"])
def test_a_retry_goes_back_to_the_newest_checkpoint_that_does_not_descend(
    run: History, tracks: Tracks, ledger: Ledger, source: str
) -> None:
    hold(tracks, ledger, source)
    assert settled(tracks).what == "opened"
    opened = tracks.run("r-1").attempts[-1].opened
    assert opened.resume is not None
    assert (opened.resume.step, opened.resume.attempt_id) == (20, 1)
    for part in ("Step 30 (attempt 2) descends from", "record 0 of lineage/quarantines", WHY):
        assert part in opened.decision
    assert "It goes back to step 20 of attempt 1" in opened.decision
    assert [c.status for c in tracks.run("r-1").checkpoints] == ["committed"] * 3  # nothing copied


def test_what_the_same_attempt_saved_before_and_after_does_not_rest_on_a_checkpoint(
    run: History, tracks: Tracks, ledger: Ledger
) -> None:
    """Step 30 was resumed from 20; step 10 was only saved by the same gang."""
    hold(tracks, ledger, "checkpoint:r-1@20")
    assert settled(tracks).what == "opened"
    opened = tracks.run("r-1").attempts[-1].opened
    assert opened.resume is not None
    assert opened.resume.step == 10


def test_a_person_goes_back_as_far(run: History, tracks: Tracks, ledger: Ledger) -> None:
    hold(tracks, ledger, "attempt:r-1/a02")
    by_person(tracks)
    opened = tracks.run("r-1").attempts[-1].opened
    assert opened.resume is not None
    assert opened.resume.step == 20
    assert opened.decision.startswith("on with it Step 30 (attempt 2) descends from")


def test_after_a_release_everything_is_as_before(
    run: History, tracks: Tracks, ledger: Ledger
) -> None:
    hold(tracks, ledger, "node:node-2")
    free(tracks, ledger, "node:node-2")
    assert marks(tracks, ledger, "run:r-1") == ()
    assert settled(tracks).what == "opened"
    opened = tracks.run("r-1").attempts[-1].opened
    assert opened.resume is not None
    assert opened.resume.step == 30


@pytest.mark.parametrize("source", ["node:node-1", "attempt:r-1/a01", "code:c0ffee"])
def test_a_retry_is_refused_where_nothing_is_left_and_never_begins_again(
    run: History, tracks: Tracks, ledger: Ledger, source: str
) -> None:
    hold(tracks, ledger, source)
    settling = settled(tracks)
    assert (settling.what, settling.record and settling.record.body["limit"]) == (
        "refused",
        "quarantine",
    )
    for part in ("descends from", "record 0 of lineage/quarantines", "tracks release"):
        assert part in settling.why
    with pytest.raises(InvalidInput, match=r"cannot be retried: .*tracks release"):
        by_person(tracks)
    free(tracks, ledger, source)
    assert settled(tracks).what == "waiting"  # a refusal stands until a person retries
    by_person(tracks)
    assert tracks.run("r-1").attempts[-1].opened.resume == run.state.checkpoints[-1].ref


def test_a_snapshot_in_quarantine_marks_what_used_samples_of_it(
    run: History, tracks: Tracks, ledger: Ledger
) -> None:
    hold(tracks, ledger, f"snapshot:aws-docs@{TRAIN.snapshot_id[:8]}")
    (mark,) = marks(tracks, ledger, "checkpoint:r-1@30")
    assert (mark.source, mark.by, mark.why) == (
        f"snapshot:aws-docs@{TRAIN.snapshot_id[:12]}",
        "ann",
        WHY,
    )
    assert (mark.track, mark.seq) == ("datasets/aws-docs", 2)
    assert mark.through == "attempt r-1/a02, which trained on it"  # the nearest, not a01
    settling = settled(tracks)
    assert settling.record is not None
    assert settling.record.body["limit"] == "snapshot"  # named for what it trains on


def test_the_why_of_a_quarantine_ends_its_sentence_once(
    run: History, tracks: Tracks, ledger: Ledger
) -> None:
    thing = parse_thing("node:node-2")
    quarantine_source(tracks, ledger, thing, by="ann", why="it flips bits.")
    (mark,) = marks(tracks, ledger, "checkpoint:r-1@30")
    assert "(it flips bits; record 0" in mark.words
    assert "is in quarantine: it flips bits (ann" in mark.words_of_source


def test_status_names_the_source_and_the_steps_that_nothing_starts_from(
    run: History, tracks: Tracks, ledger: Ledger
) -> None:
    def shown() -> tuple[str, ...]:
        return read_status(tracks, ledger, run_id="r-1")[0].quarantined

    assert shown() == ()
    hold(tracks, ledger, "checkpoint:r-1@20")
    (sentence,) = shown()
    assert "checkpoint:r-1/a01@20 is in quarantine: it flips bits (ann, record 0" in sentence
    assert "`tracks release checkpoint:r-1/a01@20" in sentence
    assert sentence.endswith("Nothing new starts from what was saved at step 20, 30.")
    free(tracks, ledger, "checkpoint:r-1@20")
    assert shown() == ()


def test_what_is_to_be_done_after_a_failure_names_the_quarantine_that_refuses_a_retry(
    run: History, tracks: Tracks, ledger: Ledger
) -> None:
    hold(tracks, ledger, "attempt:r-1/a02")  # step 20 is left to go back to
    assert "tracks release" not in explain_attempt(tracks, "r-1", 2).what_to_do
    free(tracks, ledger, "attempt:r-1/a02")
    hold(tracks, ledger, "attempt:r-1/a01")
    to_do = explain_attempt(tracks, "r-1", 2).what_to_do
    assert to_do.startswith("First the quarantine, which would refuse a retry: Step 30")
    assert '`tracks release attempt:r-1/a01 --why "…"`' in to_do
    assert "First the quarantine" not in explain_attempt(tracks, "r-1", 1).what_to_do  # it went on


def test_what_does_not_descend_shows_nothing(run: History, tracks: Tracks, ledger: Ledger) -> None:
    hold(tracks, ledger, "attempt:r-1/a02")
    assert marks(tracks, ledger, "checkpoint:r-1@20") == ()
    assert marks(tracks, ledger, "attempt:r-1/a01") == ()
    assert len(marks(tracks, ledger, "checkpoint:r-1@30")) == 1
    assert len(marks(tracks, ledger, "run:r-1")) == 1
    assert marks(tracks, None, "attempt:r-1/a02")[0].source == "attempt:r-1/a02"


def test_nothing_branches_from_what_descends_and_a_branch_before_it_does(
    run: History, tracks: Tracks, ledger: Ledger
) -> None:
    hold(tracks, ledger, "node:node-2")
    with pytest.raises(InvalidInput, match=r"Nothing can branch from r-1@30: .*tracks release"):
        find_origin(tracks, "r-1@30", run_id=None)
    assert find_origin(tracks, "r-1@20", run_id=None).ref.step == 20
    prepared = REQUEST.but(run_id="b-1").prepared()
    body = replace(prepared.body, branched_from=run.state.checkpoints[-1].ref)
    with pytest.raises(InvalidInput, match="b-1 cannot be declared: r-1@30 descends from"):
        declare(tracks, replace(prepared, body=body))
    assert tracks.find_run("b-1") is None  # nothing was written


def test_a_branch_descends_through_the_run_that_it_left(
    run: History, tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    branch = History("b-1", begin=run.at).declare(branched_from=run.state.checkpoints[-1].ref)
    branch.open().place(ranks=on("node-3")).restore().commit(40).end("preempted", last_step=41)
    branch.write_to(store)
    Projector(store, ledger).scan()
    hold(tracks, ledger, "attempt:r-1/a01")
    (mark,) = marks(tracks, ledger, "checkpoint:b-1@40")
    assert (mark.source, mark.through) == ("attempt:r-1/a01", "")
    assert settled(tracks, "b-1").what == "refused"


@pytest.mark.parametrize("saves", [True, False])
def test_explain_offers_no_start_that_a_lost_source_would_refuse(
    run: History, tracks: Tracks, ledger: Ledger, store: FakeObjectStore, saves: bool
) -> None:
    source = run.state.checkpoints[-1].ref
    branch = History("b-1", begin=run.at).declare(config=CONFIG, branched_from=source)
    branch.open().place(ranks=on("node-3")).restore()
    (branch.commit(40) if saves else branch).end("preempted", last_step=41).write_to(store)
    run.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, source).write_to(store)
    Projector(store, ledger).scan()
    if saves:
        hold(tracks, ledger, "node:node-3")  # it would go back to where it branched
    found = explain_attempt(tracks, "b-1", 1)
    assert found.resumes_from is None
    assert settled(tracks, "b-1").what == "refused"
    if not saves:
        assert found.rests_on.startswith(
            "resumes from: nothing: r-1@30 (attempt 2) was quarantined"
        )
        assert "First the quarantine" not in found.what_to_do


def test_a_first_attempt_waits_for_the_release_and_says_so_once(
    run: History, tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    branch = History("b-1", begin=run.at).declare(branched_from=run.state.checkpoints[-1].ref)
    branch.write_to(store)
    hold(tracks, ledger, "node:node-2")
    paused = first_settled(tracks, "b-1")
    assert paused.record is not None
    assert paused.record.kind is Kind.ALERT
    assert "tracks release node:node-2" in paused.why
    assert first_settled(tracks, "b-1").record is None
    free(tracks, ledger, "node:node-2")
    opened = first_settled(tracks, "b-1").record
    assert opened is not None
    assert opened.kind is Kind.ATTEMPT_OPENED


def test_no_run_is_declared_with_code_in_quarantine(
    run: History, tracks: Tracks, ledger: Ledger
) -> None:
    hold(tracks, ledger, "code:c0ff")  # the whole commit stands in the record
    code = CodeVersion(git_commit="c0ffee", branch=None, dirty=False, package_version="9")
    with pytest.raises(InvalidInput, match="r-9 cannot be declared: it descends from code:c0ffee"):
        declare(tracks, REQUEST.but(run_id="r-9", code=code).prepared())
    assert tracks.find_run("r-9") is None


@pytest.fixture
def finished(
    run: History, store: FakeObjectStore, ledger: Ledger, tracks: Tracks, clock: FakeClock
) -> History:
    """The run has all its steps."""
    run.open().place(ranks=on("node-3")).restore().commit(40).end("completed", last_step=40)
    run.write_to(store)
    Projector(store, ledger).scan()
    return run


def test_no_eval_is_opened_of_what_descends(
    finished: History, tracks: Tracks, ledger: Ledger
) -> None:
    hold(tracks, ledger, "node:node-2")
    assert opened_evals(tracks, "r-1") == []
    why = evals_wait_for(tracks, "r-1")
    assert why.startswith("heldout-loss@40 is not opened: r-1@40 (attempt 3) descends from")
    free(tracks, ledger, "node:node-2")
    assert opened_evals(tracks, "r-1")
    assert "is not opened" not in evals_wait_for(tracks, "r-1")


def test_no_eval_is_opened_on_data_in_quarantine(
    finished: History, tracks: Tracks, ledger: Ledger
) -> None:
    hold(tracks, ledger, f"snapshot:{HELDOUT.dataset}@{HELDOUT.snapshot_id[:8]}")
    assert opened_evals(tracks, "r-1") == []


def test_a_promotion_is_refused_by_policy_and_by_person_until_released(
    finished: History, tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    (opened,) = opened_evals(tracks, "r-1")
    run_eval(tracks, FakeEvaluator(store, EVAL_RESULT), "r-1", opened.eval_id, 1)
    hold(tracks, ledger, "attempt:r-1/a02")
    decided = decided_promotion(tracks, "r-1", by="tests")
    assert decided is not None
    assert not decided.promoted
    assert "descends from attempt:r-1/a02" in decided.why
    ref = tracks.run("r-1").checkpoints[-1].ref
    with pytest.raises(InvalidInput) as refused:
        promote(world_of(tracks), ref, alias="best", by="ann", why="it is good")
    for part in ("record 0 of lineage/quarantines", "tracks release attempt:r-1/a02"):
        assert part in str(refused.value)
    free(tracks, ledger, "attempt:r-1/a02")
    assert promote(world_of(tracks), ref, alias="best", by="ann", why="it is good").promoted


def test_a_quarantine_that_is_recorded_while_a_retry_is_decided_is_met_at_the_next_try(
    run: History, tracks: Tracks, ledger: Ledger
) -> None:
    """The decision reads the quarantines when it is made; another record makes it decide again."""
    found = tracks.find_quarantines
    calls = []

    def late() -> Any:
        calls.append(1)
        before = found()
        if len(calls) == 1:  # read, and only then quarantined: this is the window
            hold(tracks, ledger, "node:node-2")
        return before

    tracks.find_quarantines = late  # type: ignore[method-assign]
    settling = settled(tracks)
    assert settling.what == "opened"
    opened = tracks.run("r-1").attempts[-1]
    assert opened.opened.resume is not None
    assert opened.opened.resume.step == 30  # it was decided on what was known
    (mark,) = marks(tracks, ledger, "attempt:r-1/a03")  # and shows what it came to be
    assert mark.source == "node:node-2"


def test_a_node_in_quarantine_is_avoided_by_new_attempts_of_a_cluster(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger, run: History
) -> None:
    hold(tracks, ledger, "node:node-2")
    cluster = ComputeRequest(launcher="kubernetes", ranks=1, pool="h100")
    History("k-1", begin=run.at).declare(config=CONFIG, compute=cluster).write_to(store)
    first_settled(tracks, "k-1")
    opened = tracks.run("k-1").attempts[0].opened
    assert opened.compute.excluded_nodes == ("node-2",)
    assert opened.avoided_nodes == {"node-2": WHY}
    assert "so avoided: node-2 (it flips bits)" in opened.decision


def test_deciding_twice_writes_once(run: History, tracks: Tracks, ledger: Ledger) -> None:
    thing = parse_thing("node:node-2")
    assert quarantine_source(tracks, ledger, thing, by="ann", why=WHY).record is not None
    assert quarantine_source(tracks, ledger, thing, by="bo", why="too").record is None
    assert release_source(tracks, ledger, thing, by="ann", why="ok").record is not None
    assert release_source(tracks, ledger, thing, by="ann", why="ok").record is None
    rows = ledger.query("select source, released_why from source_quarantines")
    assert rows == [{"source": "node:node-2", "released_why": "ok"}]


@pytest.mark.parametrize("thing", ["run:r-1", "eval:r-1/heldout-loss@40"])
def test_only_a_source_can_be_put_in_quarantine(
    run: History, tracks: Tracks, ledger: Ledger, thing: str
) -> None:
    with pytest.raises(InvalidInput, match="what can: snapshot, checkpoint, node, code, attempt"):
        quarantine_source(tracks, ledger, parse_thing(thing), by="ann", why=WHY)


def test_two_damaged_tracks_that_name_each_other_are_not_an_endless_walk(
    tracks: Tracks, ledger: Ledger, store: FakeObjectStore
) -> None:
    one = History("r-1").declare().open().place().restore().commit(10)
    two = History("r-2").declare(branched_from=one.state.checkpoints[0].ref).open().place()
    two.restore().commit(20)
    loop = History("r-1").declare(branched_from=two.state.checkpoints[0].ref).open().place()
    loop.restore().commit(10)
    for history in (loop, two):
        history.write_to(store)
    assert marks(tracks, ledger, "checkpoint:r-2@20") == ()


@pytest.mark.parametrize("name", ["bad5ced", SOURCE_SHA256])
def test_code_that_a_retry_brought_is_held_where_it_ran_and_other_code_goes_on(
    run: History, tracks: Tracks, ledger: Ledger, store: FakeObjectStore, name: str
) -> None:
    code = CodeVersion(git_commit="bad5ced", branch=None, dirty=False, package_version="0")
    run.open(code=code, trainer=f"runs/r-1/trainer/{SOURCE_SHA256}.tar").place().restore()
    run.commit(40).end("preempted", last_step=44).write_to(store)
    Projector(store, ledger).scan()
    assert blast(tracks, ledger, parse_thing(f"code:{name}")).hit.attempts.count == 1
    hold(tracks, ledger, f"code:{name}")
    assert len(marks(tracks, ledger, "checkpoint:r-1@40")) == 1
    assert marks(tracks, ledger, "checkpoint:r-1@30") == ()
    assert settled(tracks).what == "refused"  # it would run the same code again
    other = replace(code, git_commit="600d")
    with pytest.raises(InvalidInput, match=f"cannot be retried: it descends from code:{name}"):
        retried(
            tracks, "r-1", by="bo", why="again", changes=AttemptChanges(code=code, archive=SOURCE)
        )
    retried(
        tracks,
        "r-1",
        by="bo",
        why="corrected",
        changes=AttemptChanges(code=other, archive=b"other"),
    )
    opened = tracks.run("r-1").attempts[-1].opened
    assert opened.resume is not None
    assert (opened.code, opened.resume.step) == (other, 30)
