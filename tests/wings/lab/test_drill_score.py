"""A drill's row says what was expected, what was found, and what is missing."""

from __future__ import annotations

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.attempts.drills import claim_note, parse_drill
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.receipts import read_receipts
from tracks_dagster.track.bodies import Alert, AlertCleared, Drill
from tracks_dagster.track.records import Kind
from tracks_dagster.wings.lab.effects.drill_score import DrillRow, score


def begun(text: str, *, fires: bool = True, skipped: str = "") -> tuple[History, Drill]:
    """A run whose first attempt has restored and met its drill."""
    drill = parse_drill(text)
    history = History("r-1").declare(drills=(drill,)).open().supervise().place().restore()
    if fires:
        history.add(Kind.NOTE, claim_note(0, drill, skipped=skipped), attempt_id=1)
    return history.commit(10), drill


def row(tracks: Tracks, store: FakeObjectStore, history: History, drill: Drill) -> DrillRow:
    history.write_to(store)
    return score(read_receipts(tracks, "r-1"), drill)


def completed(history: History) -> History:
    return history.commit(40, trigger="final").end(last_step=40).waive_eval().finish()


def test_a_drill_that_ended_one_attempt_and_was_retried_is_right(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history, drill = begun("nan@13")
    history.end("nan_loss", last_step=12, onset_step=13)
    completed(history.open().supervise().place().restore())
    found = row(tracks, store, history, drill)
    assert found.is_right, found.missing
    assert (found.expected_reason, found.found_reason) == ("nan_loss", "nan_loss")
    assert (found.expected_action, found.found_action) == ("retried", "retried")
    assert found.lost_steps == 2  # 11 and 12
    assert found.detection_s is not None
    assert found.decision_s is not None


@pytest.mark.parametrize(
    ("text", "reason", "missing"),
    [
        ("nan@13", "code_error", "ended as code_error"),
        ("nan@13", "nan_loss", "no onset step"),
        ("hang@13", "hang", "found by the rule"),
        ("corrupt_checkpoint@13", "preempted", "was not quarantined"),
    ],
)
def test_what_is_not_as_it_should_be_is_named(
    tracks: Tracks, store: FakeObjectStore, text: str, reason: str, missing: str
) -> None:
    history, drill = begun(text)
    history.end(reason, last_step=12)
    completed(history.open().supervise().place().restore())
    found = row(tracks, store, history, drill)
    assert not found.is_right
    assert missing in found.missing


def test_a_drill_that_never_fired_is_not_right_because_nothing_went_wrong(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history, drill = begun("spike@13", fires=False)
    found = row(tracks, store, completed(history), drill)
    assert found.missing == "it did not fire; no alert of loss_spike"


def test_a_spike_goes_on_with_an_alert(tracks: Tracks, store: FakeObjectStore) -> None:
    history, drill = begun("spike@13")
    history.add(Kind.ALERT, Alert(rule="loss_spike", text="a spike"), attempt_id=1)
    found = row(tracks, store, completed(history), drill)
    assert found.is_right, found.missing
    assert (found.found_reason, found.found_action) == ("–", "goes on")
    assert found.detection_s is not None
    assert found.detection_s > 0  # from the drill to its alert
    assert found.decision_s is None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("slow@13,rank=1", "slow_rank"),
        ("slow@13", "step_time"),
        ("data_slow@13", "data_wait"),
        ("flat_validation@13", "validation_flat"),
        ("idle_device@13", "device_underused"),
    ],
)
def test_what_ends_nothing_is_found_by_its_alert_and_stopped_then(
    tracks: Tracks, store: FakeObjectStore, text: str, rule: str
) -> None:
    history, drill = begun(text)
    about = {"about": ["rank 1"]} if rule == "slow_rank" else {}
    history.add(Kind.ALERT, Alert(rule=rule, text="found", data=about), attempt_id=1)
    history.end("user_cancelled", last_step=30).finish("user")
    found = row(tracks, store, history, drill)
    assert found.is_right, found.missing
    assert found.detection_s is not None
    assert found.found_reason == "–"


@pytest.mark.parametrize(
    ("ranks", "is_over", "is_right"),
    [
        ([0], False, False),  # another rank was slow
        ([1], True, False),  # it was, and no longer when the drill fired
        ([1], False, True),  # it was, and nobody can say when it would have been found
    ],
)
def test_an_alert_from_before_the_fault_finds_it_only_where_it_is_open_and_of_its_rank(
    tracks: Tracks, store: FakeObjectStore, ranks: list[int], is_over: bool, is_right: bool
) -> None:
    history, drill = begun("slow@13,rank=1", fires=False)
    about = [f"rank {rank}" for rank in ranks]
    early = Alert(rule="slow_rank", text="noise", data={"about": about})
    history.add(Kind.ALERT, early, attempt_id=1)
    if is_over:
        seq = history.state.alerts[0].seq
        over = AlertCleared(rule="slow_rank", alert_seq=seq, why="The rule no longer holds.")
        history.add(Kind.ALERT_CLEARED, over, attempt_id=1)
    history.add(Kind.NOTE, claim_note(0, drill), attempt_id=1)
    history.end("user_cancelled", last_step=30).finish("user")
    found = row(tracks, store, history, drill)
    assert found.is_right is is_right, found.missing
    assert found.detection_s is None


def test_a_slow_rank_is_found_by_its_own_alert_after_the_fault(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history, drill = begun("slow@13,rank=1")
    whole_gang = Alert(rule="step_time", text="Systemic.")
    others, own = (
        Alert(rule="slow_rank", text="Local.", data={"about": [f"rank {rank}"]}) for rank in (0, 1)
    )
    for alert in (whole_gang, others, own):
        history.add(Kind.ALERT, alert, attempt_id=1)
    history.end("user_cancelled", last_step=30).finish("user")
    found = row(tracks, store, history, drill)
    assert found.is_right, found.missing
    assert found.detection_s == 28.0  # the note, a commit and two alerts before it, 7 s each


def test_an_evaluator_that_crashed_is_found_by_the_end_of_its_eval(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    """Training ended before: the end of the attempt tells nothing of the eval."""
    history, drill = begun("evaluator_crash@40", fires=False)
    history.commit(40, trigger="final").end(last_step=40)
    ref = history.state.checkpoints[-1].ref
    history.open_eval(ref).add(Kind.NOTE, claim_note(0, drill))
    history.end_eval(history.state.evals[0].opened, "evaluator_error").open_eval(ref)
    history.end_eval(history.state.evals[1].opened).finish()
    found = row(tracks, store, history, drill)
    assert found.is_right, found.missing
    assert found.detection_s is not None
    assert found.decision_s is not None
    assert min(found.detection_s, found.decision_s) > 0


def test_a_supervisor_that_was_killed_must_have_been_followed_by_another(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history, drill = begun("kill_run_worker@13")
    history.supervise("dagster-2")
    found = row(tracks, store, completed(history), drill)
    assert found.is_right, found.missing
    assert found.recovery_s is not None


def test_a_refused_run_is_right_where_a_refusal_was_expected(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history, drill = begun("code_error@13", fires=False)
    history.end("code_error", last_step=12).refuse()
    found = row(tracks, store, history, drill)
    assert found.is_right, found.missing
    assert found.found_action == "refused"
    assert found.recovery_s is None


def test_a_skipped_drill_says_why_and_is_not_a_failure(
    tracks: Tracks, store: FakeObjectStore
) -> None:
    history, drill = begun("host_oom@13", skipped="no memory cgroup here.")
    found = row(tracks, store, completed(history), drill)
    assert found.is_right
    assert found.skipped == "no memory cgroup here."


def test_a_run_that_is_not_over_is_not_right(tracks: Tracks, store: FakeObjectStore) -> None:
    history, drill = begun("nan@13")
    found = row(tracks, store, history, drill)
    assert "the run is running" in found.missing
