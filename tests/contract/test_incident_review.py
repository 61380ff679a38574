"""One day is reviewed from the ledger alone, and alike on SQLite and on Postgres."""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime, timedelta

import pytest

from tests.bodies import BEGIN, HELDOUT, TRAIN
from tests.fakes import FakeObjectStore
from tests.histories import DatasetHistory, Grown, History
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Cursor, Ledger
from tracks_dagster.reasons.endings import Ending
from tracks_dagster.review.daily import MatterKind, Review
from tracks_dagster.review.effects import daily as incident_review
from tracks_dagster.review.effects.daily import review_day
from tracks_dagster.review.effects.explain.reading import pick_failed
from tracks_dagster.track.records import Json, Kind

DAY = BEGIN.date()
NEXT_NIGHT = BEGIN + timedelta(days=1)
FIRST = Cursor(seq=0, sha256="0" * 64)


@pytest.fixture
def projector(store: FakeObjectStore, ledger: Ledger) -> Projector:
    return Projector(store, ledger)


def take_in(projector: Projector, store: FakeObjectStore, *tracks: Grown) -> None:
    for track in tracks:
        track.write_to(store)
        projector.project(track.name)


def run(run_id: str, reason: str, *, begin: datetime = BEGIN, **ended: object) -> History:
    """A run with one attempt that ended."""
    history = History(run_id, begin=begin).declare().open().supervise().place().restore().commit(20)
    return history.end(reason, last_step=23, **ended)


def completed(run_id: str, *, begin: datetime = BEGIN) -> History:
    """A run whose eval is done, which is finished and promoted."""
    history = History(run_id, begin=begin).declare().open().supervise().place().restore().commit(40)
    history.end("completed", last_step=40).open_eval(history.state.checkpoints[-1].ref)
    opened = history.state.evals[-1].opened
    return history.end_eval(opened).finish().promote(opened)


def quarantine(ledger: Ledger, source: str, called: str) -> dict[str, Json]:
    """Put one source into quarantine, on the day; return its row."""
    row: dict[str, Json] = {
        "seq": 0,
        "source": source,
        "called": called,
        "decided_by": "ann",
        "why": "it lies",
        "quarantined_at": BEGIN,
        "released_at": None,
        "released_by": None,
        "released_why": None,
    }
    ledger.apply("q", expected=None, advanced=FIRST, rows={"source_quarantines": [row]})
    return row


def review(ledger: Ledger, day: date = DAY) -> Review:
    return review_day(ledger, day, now=NEXT_NIGHT)


def test_a_day_on_which_nothing_happened_is_empty_and_no_bad_news(ledger: Ledger) -> None:
    quiet = review(ledger)
    assert (quiet.reasons, quiet.matter_count, quiet.is_bad_news) == ((), 0, False)
    assert quiet.is_over
    assert not review_day(ledger, DAY, now=BEGIN).is_over


def test_failures_come_first_and_the_dearest_of_each_kind_before_the_others(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    take_in(
        projector,
        store,
        run("p-1", "preempted", device_seconds=9000.0),
        run("p-2", "preempted", device_seconds=9000.0),
        run("d-1", "node_drained", device_seconds=1.0),
        run("o-1", "gpu_oom", device_seconds=10.0, root_message="CUDA out of memory"),
        run("c-1", "code_error", device_seconds=20.0),
        completed("ok"),
    )
    result = review(ledger)
    assert [each.reason for each in result.reasons] == [
        *("code_error", "gpu_oom"),
        *("preempted", "node_drained"),
        "completed",
    ]
    preempted = result.of(Ending.INTERRUPTION)[0]
    assert (preempted.attempt_count, preempted.run_count) == (2, 2)
    # Both ran 23 steps and saved at 20: what no checkpoint of an ended attempt holds is lost.
    assert (preempted.device_s, preempted.kept_steps, preempted.lost_steps) == (18000.0, 40, 6)
    assert [each.key for each in result.failures] == ["c-1/a01", "o-1/a01"]
    assert result.failures[1].message == "CUDA out of memory"
    assert (result.promoted_count, result.unevaluated) == (1, ())
    assert not result.is_bad_news


def test_an_attempt_belongs_to_the_day_on_which_its_end_was_recorded_and_to_no_other(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    # end() is the seventh record, 42 s after the first: 00:00:00 of the next day, which is not DAY.
    midnight = datetime.combine(DAY + timedelta(days=1), BEGIN.timetz().replace(hour=0))
    take_in(
        projector,
        store,
        run("late", "code_error", begin=midnight - timedelta(seconds=42)),
        run("last", "code_error", begin=midnight - timedelta(seconds=43)),
        run("open", "code_error", begin=BEGIN).open(),
    )
    assert {each.key for each in review(ledger).failures} == {"last/a01", "open/a01"}
    following = review_day(ledger, DAY + timedelta(days=1), now=NEXT_NIGHT)
    assert [each.key for each in following.failures] == ["late/a01"]


def test_a_failed_attempt_without_a_verdict_is_bad_news_until_it_is_read_again(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    unknown, guessed = run("u-1", "unknown"), run("g-1", "hang", confidence=0.0)
    cancelled = run("x-1", "user_cancelled", confidence=0.0)  # as meant: nobody has to look
    take_in(projector, store, unknown, guessed, cancelled)
    result = review(ledger)
    assert {each.key for each in result.unexplained} == {"u-1/a01", "g-1/a01"}
    assert result.is_bad_news
    take_in(projector, store, unknown.reclassify(1, "host_oom"), guessed.reclassify(1, "hang"))
    assert not review(ledger).is_bad_news


def test_a_promotion_whose_eval_is_not_completed_is_bad_news(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    history = History("r-1").declare().open().supervise().place().restore().commit(40)
    history.end("completed", last_step=40).open_eval(history.state.checkpoints[-1].ref)
    opened = history.state.evals[-1].opened
    earlier = completed("ok", begin=BEGIN - timedelta(hours=1))
    take_in(projector, store, history.promote(opened), earlier)
    result = review(ledger)
    assert result.promoted_count == 2
    [missing] = result.unevaluated
    assert (missing.run_id, missing.step, missing.eval_id) == ("r-1", 40, "heldout-loss@40")
    take_in(projector, store, history.end_eval(opened))
    assert not review(ledger).is_bad_news


def test_a_promotion_without_its_eval_is_bad_news_until_another_checkpoint_has_the_alias(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    history = History("r-1").declare().open().supervise().place().restore().commit(40)
    history.end("completed", last_step=40).open_eval(history.state.checkpoints[-1].ref)
    opened = history.state.evals[-1].opened
    take_in(projector, store, history.promote(opened, alias="candidate"), completed("other"))
    assert review(ledger).unevaluated_count == 1  # another alias is not its own
    better = completed("better", begin=BEGIN + timedelta(hours=1))
    take_in(projector, store, better.promote(better.state.evals[-1].opened, alias="candidate"))
    assert not review(ledger).is_bad_news


def test_what_needs_a_person_is_named_with_what_to_do(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    refused = run("r-1", "code_error").refuse()
    drained = History("r-2").declare().open().supervise().place().restore().stop("drain")
    drained.end("user_cancelled", last_step=3)
    noisy = run("r-3", "preempted").alert("first").alert("second")
    failing = History("r-4").declare().open().supervise().place().restore().commit(40)
    failing.end("completed", last_step=40).open_eval(failing.state.checkpoints[-1].ref)
    failing.end_eval(failing.state.evals[-1].opened, "evaluator_error")
    take_in(projector, store, refused, drained, noisy, failing)
    result = review(ledger)
    shown = [(m.kind, m.shown[0].who) for m in result.matters]
    assert shown == [
        (MatterKind.REFUSED, "r-1"),
        (MatterKind.WAITING, "r-2"),
        (MatterKind.EVAL, "r-4/heldout-loss@40"),
        (MatterKind.ALERT, "r-3"),
    ]
    assert result.matters[3].shown[0].what == "slow-saves (2 times): second"
    assert all("tracks" in each.to_do for matters in result.matters for each in matters.shown)
    following = review_day(ledger, DAY + timedelta(days=1), now=NEXT_NIGHT + timedelta(days=1))
    assert (following.matter_count, following.earlier_count) == (0, 2)
    take_in(projector, store, refused.open(cause="manual_retry"))
    assert review(ledger).matter_count == 3  # the refused run goes on, so it needs nobody


def test_a_run_that_goes_on_with_a_quarantined_snapshot_needs_a_person(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    data = DatasetHistory(TRAIN.dataset).declare().commit(TRAIN.snapshot_id)
    goes_on = History("r-1").declare().open().supervise().place().restore()
    over = run("r-2", "code_error").refuse()
    take_in(projector, store, data, goes_on, over, completed("ok"))
    assert review(ledger).matter_count_of(MatterKind.SOURCE) == 0
    take_in(projector, store, data.decide(Kind.SNAPSHOT_QUARANTINED, TRAIN.snapshot_id))
    result = review(ledger)
    [sources] = [m for m in result.matters if m.kind is MatterKind.SOURCE]
    assert [each.who for each in sources.shown] == ["ok", "r-1"]  # promoted, and running
    assert sources.shown[0].to_do == f"tracks blast snapshot:{TRAIN.dataset}@{TRAIN.snapshot_id}"
    assert "bad rows" in sources.shown[0].what


def test_a_promoted_checkpoint_in_quarantine_needs_a_person_until_another_has_its_alias(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    bad, better = completed("bad"), completed("better", begin=BEGIN + timedelta(hours=1))
    take_in(projector, store, bad)
    assert review(ledger).matter_count == 0
    ref = bad.state.checkpoints[0].ref
    take_in(projector, store, bad.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, ref))
    [held] = review(ledger).matters
    assert (held.kind, held.shown[0].who) == (MatterKind.ALIAS, "bad@40")
    assert "holds best" in held.shown[0].what
    assert "tracks promote" in held.shown[0].to_do
    take_in(projector, store, better)
    assert review(ledger).matter_count == 0
    sha = better.state.checkpoints[0].ref.manifest_sha256
    quarantine(ledger, f"checkpoint:{sha}", "better@40")
    assert review(ledger).matters[0].shown[0].who == "better@40"


@pytest.mark.parametrize("source", ["attempt:old/a01", "node:node-1", "code:c0ffee", "code:0"])
def test_what_a_promoted_checkpoint_rests_on_needs_a_person_on_the_day_of_its_quarantine(
    source: str, ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    week_ago = BEGIN - timedelta(days=7)
    take_in(projector, store, completed("old", begin=week_ago))
    row = quarantine(ledger, source, "that source")
    [held] = review(ledger).matters
    assert (held.kind, held.count, held.shown[0].who) == (MatterKind.ALIAS, 1, "old@40")
    assert "holds best" in held.shown[0].what
    assert "that source" in held.shown[0].what
    assert review(ledger, DAY - timedelta(days=1)).matter_count == 0
    also = {**row, "seq": 1, "source": "node:node-1", "called": "that node"}
    second = Cursor(seq=1, sha256="1" * 64)
    ledger.apply("q", expected=FIRST, advanced=second, rows={"source_quarantines": [also]})
    assert review(ledger).matters[0].count == 1  # one alias, whatever it rests on
    take_in(projector, store, completed("better", begin=BEGIN - timedelta(days=1)))
    assert review(ledger).matter_count_of(MatterKind.ALIAS) == 1  # the new holder ran there as well


def test_a_snapshot_put_in_quarantine_on_the_day_names_what_was_promoted_on_it_before(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    trained = completed("trained", begin=BEGIN - timedelta(days=7))
    data = DatasetHistory(TRAIN.dataset, begin=BEGIN - timedelta(days=9)).declare()
    data.commit(TRAIN.snapshot_id).commit("f" * 64)
    take_in(projector, store, trained, data)
    assert review(ledger).matter_count == 0
    data.at = BEGIN
    take_in(projector, store, data.decide(Kind.SNAPSHOT_QUARANTINED, TRAIN.snapshot_id))
    [held] = review(ledger).matters
    assert (held.kind, held.count, held.shown[0].who) == (MatterKind.ALIAS, 1, "trained@40")
    called = f"snapshot:{TRAIN.dataset}@{TRAIN.snapshot_id[:12]}"
    assert held.shown[0].what.startswith(f"holds best and descends from {called}, which is in")
    assert review(ledger, DAY - timedelta(days=1)).matter_count == 0
    data.at = BEGIN + timedelta(days=1)
    take_in(projector, store, data.decide(Kind.SNAPSHOT_RELEASED, TRAIN.snapshot_id))
    assert review(ledger).matter_count == 0


def test_a_promotion_whose_eval_was_on_a_snapshot_put_in_quarantine_on_the_day_is_named(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    measured = completed("measured", begin=BEGIN - timedelta(days=7))
    data = DatasetHistory(HELDOUT.dataset).declare().commit(HELDOUT.snapshot_id)
    data.decide(Kind.SNAPSHOT_QUARANTINED, HELDOUT.snapshot_id)
    take_in(projector, store, measured, data)
    [held] = review(ledger).matters
    assert (held.kind, held.shown[0].who) == (MatterKind.ALIAS, "measured@40")
    assert f"snapshot:{HELDOUT.dataset}@" in held.shown[0].what


def test_a_checkpoint_that_was_saved_before_the_first_step_is_not_of_its_attempt(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    history = run("r-1", "preempted", begin=BEGIN - timedelta(days=7))
    history.open().supervise().place().restore().commit(20)  # what was restored, saved again
    history.open_eval(history.state.checkpoints[-1].ref)
    history.end_eval(history.state.evals[-1].opened).promote(history.state.evals[-1].opened)
    history.end("completed", last_step=40)
    take_in(projector, store, history)
    quarantine(ledger, "attempt:r-1/a02", "attempt:r-1/a02")
    assert review(ledger).matter_count == 0


def test_an_attempt_without_a_verdict_whose_run_waits_for_a_person_is_one_thing(
    ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    twice = run("r-2", "unknown").open().supervise().place().restore().end("unknown").refuse()
    take_in(projector, store, run("r-1", "unknown").refuse(), twice, run("r-3", "unknown"))
    result = review(ledger)
    assert (result.unexplained_count, result.matter_count) == (4, 2)
    assert result.person_count == 4


def test_lists_are_bounded_and_what_is_left_out_is_counted(
    ledger: Ledger,
    projector: Projector,
    store: FakeObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(incident_review, "ROWS_MAX", 2)
    monkeypatch.setattr(incident_review, "FAILURES_MAX", 1)
    take_in(projector, store, *(run(f"r-{n}", "unknown").refuse() for n in range(3)))
    result = review(ledger)
    assert (len(result.unexplained), result.unexplained_count) == (2, 3)
    assert (len(result.failures), result.count(Ending.FAILURE)) == (1, 3)
    assert (len(result.matters[0].shown), result.matters[0].count) == (2, 3)
    assert result == review(ledger)  # the same day again is the same review


@pytest.mark.parametrize("kind", ["node", "checkpoint", "attempt", "code", "version"])
def test_every_kind_of_source_in_quarantine_is_found_where_it_is_used_and_not_once_released(
    kind: str, ledger: Ledger, projector: Projector, store: FakeObjectStore
) -> None:
    goes_on = run("r-1", "preempted").open().supervise().place().restore()
    take_in(projector, store, goes_on)
    commit = goes_on.state.checkpoints[0].ref.manifest_sha256
    source = {
        "node": "node:node-1",
        "checkpoint": f"checkpoint:{commit}",
        "attempt": "attempt:r-1/a01",
        "code": "code:c0ffee",
        "version": "code:0",
    }[kind]
    row = quarantine(ledger, source, f"that {kind}")
    [sources] = review(ledger).matters
    assert sources.kind is MatterKind.SOURCE
    assert sources.shown[0].what == f"uses that {kind}, which is in quarantine: it lies"
    assert sources.shown[0].to_do == f"tracks blast {source}"
    released = {**row, "released_at": BEGIN, "released_by": "ann", "released_why": "it does not"}
    second = Cursor(seq=1, sha256="1" * 64)
    ledger.apply("q", expected=FIRST, advanced=second, rows={"source_quarantines": [released]})
    assert review(ledger).matter_count == 0


# A failed attempt is picked at random by the ledger alone, on every database.


DAY_S = 86_400.0
NOW = BEGIN + timedelta(days=6)


def filled(ledger: Ledger, store: FakeObjectStore) -> None:
    """Two failed attempts of yesterday, one of last month, and one that ended as meant."""
    for run_id, days, reasons in (
        ("r-1", 5, ("preempted", "gpu_oom", "completed")),
        ("r-old", -30, ("hang",)),
    ):
        history = History(run_id, begin=BEGIN + timedelta(days=days)).declare()
        for reason in reasons:
            history.open().place().restore().end(reason, last_step=5)
        history.write_to(store)
    open_one = History("r-open", begin=BEGIN + timedelta(days=5)).declare().open()
    open_one.write_to(store)
    Projector(store, ledger).scan()


def test_only_attempts_that_failed_in_that_time_are_picked(
    ledger: Ledger, store: FakeObjectStore
) -> None:
    filled(ledger, store)
    picked = [pick_failed(ledger, now=NOW, last_s=7 * DAY_S, seed=seed) for seed in range(20)]
    found = Counter((p.run_id, p.attempt_id) for p in picked if p is not None)
    assert set(found) == {("r-1", 1), ("r-1", 2)}
    assert all(p is not None and p.count == 2 for p in picked)


def test_the_same_seed_picks_the_same(ledger: Ledger, store: FakeObjectStore) -> None:
    filled(ledger, store)
    first, again = (pick_failed(ledger, now=NOW, last_s=7 * DAY_S, seed=11) for _ in range(2))
    assert first == again


def test_a_longer_time_finds_the_older_ones(ledger: Ledger, store: FakeObjectStore) -> None:
    filled(ledger, store)
    picked = pick_failed(ledger, now=NOW, last_s=60 * DAY_S, seed=0)
    assert picked is not None
    assert picked.count == 3


def test_where_nothing_failed_nothing_is_picked(ledger: Ledger, store: FakeObjectStore) -> None:
    assert pick_failed(ledger, now=NOW, last_s=7 * DAY_S, seed=0) is None
