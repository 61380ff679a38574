"""The fold of a run's track: what each record changes, and which records may not come next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.histories import History
from tracks_dagster.track.errors import InvalidDecision, TrackBroken
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Draft, Json, Kind, Record, parse, seal
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.run_fold import AFTER_FINISH

Build = Callable[[History], Any]


def declared(history: History) -> History:
    return history.declare()


def opened(history: History) -> History:
    return declared(history).open()


def placed(history: History) -> History:
    return opened(history).place("launch-1")


def trained(history: History) -> History:
    return placed(history).restore().commit(10).commit(20)


def ended(history: History) -> History:
    return trained(history).end("preempted", last_step=23)


def reopened(history: History) -> History:
    return ended(history).open()


def finished(history: History) -> History:
    return trained(history).end("completed").finish()


OTHERS = (
    *("dataset_", "snapshot_", "node_", "source_", "devices_", "lease_", "alerts_", "code_"),
    *("history_", "nodes_", "project_", "study_", "trial_", "view_"),
)
OF_OTHER_TRACKS = [k for k in Kind if k.value.startswith(OTHERS)]
LATE = sorted(set(Kind) - AFTER_FINISH - set(OF_OTHER_TRACKS) - {Kind.RUN_DECLARED})

ILLEGAL: list[tuple[Build, Kind, int | None, dict[str, Json], str]] = [
    (lambda h: h, Kind.NOTE, None, {}, "the first record of a run, and only the first"),
    (lambda h: h, Kind.ATTEMPT_OPENED, 1, {}, "the first record of a run, and only the first"),
    (declared, Kind.RUN_DECLARED, None, {}, "the first record of a run, and only the first"),
    *[(declared, kind, None, {}, "does not belong to a run's track") for kind in OF_OTHER_TRACKS],
    (declared, Kind.ATTEMPT_OPENED, 2, {}, "the next attempt is 1, not 2"),
    (declared, Kind.ATTEMPT_OPENED, None, {}, "the next attempt is 1, not None"),
    (opened, Kind.ATTEMPT_OPENED, 2, {}, "attempt 1 is still open"),
    (opened, Kind.ATTEMPT_OPENED, 1, {}, "attempt 1 is still open"),
    (ended, Kind.ATTEMPT_OPENED, 1, {}, "the next attempt is 2, not 1"),
    (ended, Kind.ATTEMPT_OPENED, 3, {}, "the next attempt is 2, not 3"),
    (ended, Kind.ATTEMPT_OPENED, 2, {"cause": "retry"}, "an automatic retry names its debit"),
    (ended, Kind.ATTEMPT_OPENED, 2, {"cause": "retry", "debit": None}, "names its debit"),
    (opened, Kind.RUN_FINISHED, None, {}, "attempt 1 is still open"),
    (ended, Kind.STAGE_JUDGED, None, {}, "the run is not finished"),
    (declared, Kind.ATTEMPT_SUPERVISED, 1, {}, "attempt 1 is not the open one"),
    (ended, Kind.ATTEMPT_SUPERVISED, 1, {}, "attempt 1 is not the open one"),
    (reopened, Kind.ATTEMPT_SUPERVISED, 1, {}, "attempt 1 is not the open one"),
    (opened, Kind.ATTEMPT_SUPERVISED, None, {}, "attempt None is not the open one"),
    (declared, Kind.ATTEMPT_ENDED, 1, {}, "attempt 1 is not the open one"),
    (ended, Kind.ATTEMPT_ENDED, 1, {}, "attempt 1 is not the open one"),
    (reopened, Kind.ATTEMPT_ENDED, 1, {}, "attempt 1 is not the open one"),
    (placed, Kind.ATTEMPT_PLACED, 1, {"launch_id": "b"}, "was placed by launch launch-1"),
    (placed, Kind.ATTEMPT_PLACED, 1, {"launch_id": "launch-1"}, "was placed by launch launch-1"),
    (ended, Kind.ATTEMPT_PLACED, 1, {"launch_id": "b"}, "attempt 1 is not the open one"),
    (opened, Kind.ATTEMPT_RESTORED, 1, {"launch_id": "b"}, "launch b is not the one"),
    (placed, Kind.ATTEMPT_RESTORED, 1, {"launch_id": "b"}, "launch b is not the one"),
    (opened, Kind.CHECKPOINT_COMMITTED, 1, {"launch_id": "b"}, "launch b is not the one"),
    (placed, Kind.CHECKPOINT_COMMITTED, 1, {"launch_id": "b"}, "launch b is not the one"),
    (placed, Kind.CHECKPOINT_COMMITTED, 1, {}, "launch None is not the one"),
    (ended, Kind.CHECKPOINT_COMMITTED, 1, {"launch_id": "launch-1"}, "is not the open one"),
    (reopened, Kind.CHECKPOINT_COMMITTED, 1, {"launch_id": "launch-1"}, "is not the open one"),
    (opened, Kind.ATTEMPT_RECLASSIFIED, 1, {}, "attempt 1 has not ended"),
    (ended, Kind.ATTEMPT_RECLASSIFIED, 2, {}, "attempt 2 has not ended"),
    (ended, Kind.ATTEMPT_RECLASSIFIED, None, {}, "attempt None has not ended"),
    (opened, Kind.RETRY_REFUSED, 1, {}, "attempt 1 has not ended"),
    (declared, Kind.RETRY_REFUSED, None, {}, "attempt None has not ended"),
    *[(finished, kind, 2, {}, "the run was finished .step_budget.") for kind in LATE],
]


def record_after(history: History, draft: Draft) -> Record:
    previous = history.records[-1].sha256 if history.records else None
    seq = len(history.records)
    return parse(seal(draft, seq=seq, at=history.at, prev_sha256=previous), seq=seq)


@pytest.mark.parametrize(("build", "kind", "attempt_id", "body", "words"), ILLEGAL)
def test_a_record_that_may_not_come_next_is_refused_before_and_after_it_is_written(
    build: Build, kind: Kind, attempt_id: int | None, body: dict[str, Json], words: str
) -> None:
    history = History()
    build(history)
    state = run_fold.fold(history.records)
    draft = Draft(uid="illegal", kind=kind, body=body, attempt_id=attempt_id)
    with pytest.raises(InvalidDecision, match=f"Cannot append {kind}: .*{words}"):
        run_fold.check(state, draft)
    with pytest.raises(TrackBroken, match=rf"Record {len(history.records)} \({kind}\).*{words}"):
        run_fold.fold([*history.records, record_after(history, draft)])


def test_after_the_end_of_a_run_only_afterthoughts_may_follow() -> None:
    """Design section 1: notes, evals, pins, promotions, checkpoint decisions, reclassifications."""
    assert {kind.value for kind in AFTER_FINISH} == {
        *("note", "alert", "eval_opened", "eval_ended", "eval_waived", "promotion_decided"),
        *("checkpoint_quarantined", "checkpoint_superseded", "checkpoint_deleted"),
        *("checkpoint_pinned", "checkpoint_unpinned", "checkpoint_verified"),
        *("attempt_reclassified", "stage_judged", "run_labelled"),
    }


@pytest.mark.parametrize("build", [declared, opened, placed, trained, ended, reopened, finished])
def test_a_draft_that_may_come_next_is_returned_as_it_is(build: Build) -> None:
    history = History()
    build(history)
    draft = Draft(uid="note", kind=Kind.NOTE, body={})
    assert run_fold.check(history.state, draft) is draft


def whole_story() -> History:
    history = reopened(History()).supervise().place("launch-2").restore().commit(30)
    history.note().alert().stop("drain").end("gpu_oom", last_step=31)
    history.reclassify(2, "host_oom").refuse()
    first, second, third = (c.ref for c in history.state.checkpoints)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, third)
    history.open().place("launch-3").restore().commit(40).end("completed", last_step=40)
    history.open_eval(history.state.checkpoints[-1].ref)
    history.end_eval(history.state.evals[0].opened, "evaluator_error")
    history.open_eval(history.state.checkpoints[-1].ref)
    history.end_eval(history.state.evals[1].opened)
    history.waive_eval("another").promote(history.state.evals[1].opened).finish()
    history.decide_checkpoint(Kind.CHECKPOINT_PINNED, second, pin="hold:ann")
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, first)
    return history.decide_checkpoint(Kind.CHECKPOINT_DELETED, first)


def test_a_track_folded_in_two_parts_gives_the_state_of_the_whole() -> None:
    records = whole_story().records
    whole = run_fold.fold(records)
    for cut in range(len(records) + 1):
        assert run_fold.fold(records[cut:], run_fold.fold(records[:cut])) == whole


def test_an_empty_track_has_no_state() -> None:
    assert run_fold.fold([]) is None


def test_the_head_is_the_last_record_folded() -> None:
    history = whole_story()
    for count in range(1, len(history.records) + 1):
        state = run_fold.fold(history.records[:count])
        assert state is not None
        assert state.head is history.records[count - 1]


def test_a_record_whose_body_lacks_a_field_is_a_broken_track() -> None:
    history = opened(History())
    draft = Draft(uid="u", kind=Kind.ATTEMPT_PLACED, body={"launch_id": "b"}, attempt_id=1)
    with pytest.raises(TrackBroken, match="is not AttemptPlaced"):
        run_fold.fold([*history.records, record_after(history, draft)])


def test_only_the_newest_attempt_can_be_open() -> None:
    history = History().declare()
    assert history.state.open_attempt is None
    assert history.state.last_attempt is None
    history.open()
    assert history.state.open_attempt is history.state.last_attempt
    history.end("preempted")
    assert history.state.open_attempt is None
    assert [attempt.attempt_id for attempt in reopened(History()).state.attempts] == [1, 2]


@pytest.mark.parametrize("attempt_id", [0, -1, 3])
def test_an_attempt_that_was_never_opened_is_not_one(attempt_id: int) -> None:
    assert reopened(History()).state.attempt(attempt_id) is None


def test_the_newest_reading_of_an_end_counts() -> None:
    history = ended(History())
    first = history.state.attempts[0]
    assert (first.reason, first.fingerprint) == (TerminationReason.PREEMPTED, "preempted:root")
    history.reclassify(1, "node_failure").reclassify(1, "gpu_hardware")
    first = history.state.attempts[0]
    assert (first.reason, first.fingerprint) == (
        TerminationReason.GPU_HARDWARE,
        "gpu_hardware:later",
    )
    assert first.ended is not None
    assert first.ended.reason == "preempted"


def test_a_reason_that_this_version_does_not_know_is_a_broken_track() -> None:
    with pytest.raises(TrackBroken, match="'teleported', which this version does not know"):
        opened(History()).end("teleported")


def test_an_attempt_begins_where_it_restored_not_where_it_was_asked_to() -> None:
    history = reopened(History())
    attempt = history.state.attempts[1]
    assert attempt.resumed_step == 20  # asked for
    older = history.state.checkpoints[0].ref
    history.place("launch-2").restore(older, fallback_why="a chunk was corrupt")
    assert history.state.attempts[1].resumed_step == 10
    assert history.state.attempts[0].resumed_step == 0  # fresh


def test_what_is_quarantined_or_deleted_is_not_resumed_from_and_what_is_superseded_is() -> None:
    history = trained(History()).commit(30).commit(40)
    refs = [checkpoint.ref for checkpoint in history.state.checkpoints]
    history.decide_checkpoint(Kind.CHECKPOINT_SUPERSEDED, refs[0])
    history.decide_checkpoint(Kind.CHECKPOINT_DELETED, refs[1])
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, refs[2])
    assert history.state.resumable == [refs[0], refs[3]]
    assert [c.status for c in history.state.checkpoints] == [
        "superseded",
        "deleted",
        "quarantined",
        "committed",
    ]


def test_pins_are_held_by_name_and_let_go_by_name() -> None:
    history = trained(History())
    ref = history.state.checkpoints[0].ref
    history.decide_checkpoint(Kind.CHECKPOINT_PINNED, ref, pin="hold:ann")
    history.decide_checkpoint(Kind.CHECKPOINT_PINNED, ref, pin="eval:x")
    history.decide_checkpoint(Kind.CHECKPOINT_UNPINNED, ref, pin="hold:ann")
    history.decide_checkpoint(Kind.CHECKPOINT_UNPINNED, ref, pin="never:there")
    assert [c.pins for c in history.state.checkpoints] == [{"eval:x"}, frozenset()]


def test_the_first_end_of_an_eval_counts() -> None:
    """`eval_ended` is fenced by nothing, so two writers may both leave one."""
    history = trained(History())
    history.open_eval(history.state.checkpoints[-1].ref)
    evaluation = history.state.evals[0]
    history.end_eval(evaluation.opened, "evaluator_error").end_eval(evaluation.opened)
    (evaluation,) = history.state.evals
    assert evaluation.ended is not None
    assert evaluation.ended.reason == "evaluator_error"


def test_a_refusal_stands_until_another_attempt_is_opened() -> None:
    history = ended(History())
    assert history.state.refusal is None
    history.refuse("device_hours")
    assert history.state.refusal is not None
    assert history.state.refusal.body.limit == "device_hours"
    history.open(cause="manual_retry")
    assert history.state.refusal is None
    history.end("code_error")
    assert history.state.refusal is None


def test_a_stop_concerns_the_newest_attempt_when_it_was_asked_for_and_no_other() -> None:
    history = opened(History()).end("preempted").open().stop("drain").end("user_cancelled").open()
    first, second, third = history.state.attempts
    stop = history.state.stop_for(second)
    assert stop is not None
    assert stop.body.mode == "drain"
    assert history.state.stop_for(first) is None
    assert history.state.stop_for(third) is None
    history.end("preempted").stop("stop")
    assert history.state.stop_for(third) is not None  # also when it had ended already


def test_a_checkpoint_is_found_by_its_manifest() -> None:
    state = trained(History()).state
    ref = state.checkpoints[1].ref
    found = state.checkpoint(ref.manifest_sha256)
    assert found is not None
    assert found.ref == ref
    assert state.checkpoint("0" * 64) is None


def test_a_record_whose_body_is_another_is_named() -> None:
    history = History().declare().open().place()
    broken = replace(history.records[1], body={"cause": "first"})
    with pytest.raises(TrackBroken, match=r"Record 1 \(attempt_opened\) cannot be read.*decision"):
        run_fold.fold([history.records[0], broken])
