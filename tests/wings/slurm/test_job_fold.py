"""What became of a gang's job, by the rows of queue and accounting."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tracks_dagster.attempts.ports import GangPhase
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import CANNOT_START, Evidence, RankEnd
from tracks_dagster.track.names import EXIT_DRAINED
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import format_time
from tracks_dagster.wings.slurm.job_fold import Asked, JobSeen, before_the_limit, fold
from tracks_dagster.wings.slurm.rows import JobRow

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
BEGAN = NOW - timedelta(hours=1)
ASKED = Asked(notice_s=120.0, scheduling_s=7200.0)
RUNNING = JobRow(id="7", name="a", state="RUNNING", submitted_at=BEGAN, started_at=BEGAN)
ENDED = replace(RUNNING, ended_at=NOW)
PENDING = replace(RUNNING, state="PENDING", started_at=None, reason="Resources")
R = TerminationReason


def look(queue: JobRow | None, *accounts: JobRow, ended_by_us: bool = False) -> JobSeen:
    seen = fold(queue, accounts, NOW, ASKED, ended_by_us=ended_by_us)
    assert seen is not None
    return seen


def ended(state: str, **changes: object) -> JobRow:
    return replace(ENDED, state=state, **changes)  # type: ignore[arg-type]


def judged(seen: JobSeen, *ranks: RankEnd) -> str:
    """Return the reason that the classifier gives for what was seen."""
    seen = before_the_limit(seen, ranks, ASKED)
    evidence = Evidence(
        run_id="r",
        attempt_id=1,
        launch_id=None,
        ranks=ranks,
        conditions=seen.conditions,
        slurm_state=seen.state,
        placed=True,
        vanished=not any(rank.has_ended for rank in ranks),
    )
    return classify(evidence).reason


DRAINED = RankEnd(rank=0, exit_code=EXIT_DRAINED, ended_at=format_time(NOW))
KILLED = RankEnd(rank=0, signal=9, ended_at=format_time(NOW))


@pytest.mark.parametrize(
    ("seen", "ranks", "reason"),
    [
        (look(None, ended("PREEMPTED")), (KILLED,), R.PREEMPTED),
        # it saved within its partition's GraceTime, and left Slurm its own exit code
        (look(ended("FAILED", preempted_at=NOW), ended("FAILED")), (DRAINED,), R.PREEMPTED),
        (look(None, ended("NODE_FAIL")), (), R.NODE_FAILURE),
        (look(None, ended("BOOT_FAIL")), (), R.NODE_FAILURE),
        (look(None, ended("OUT_OF_MEMORY")), (KILLED,), R.HOST_OOM),
        (look(None, ended("FAILED", steps=("OUT_OF_MEMORY",))), (KILLED,), R.HOST_OOM),
        (look(None, ended("TIMEOUT")), (KILLED,), R.WALLTIME_TIMEOUT),
        (look(None, ended("DEADLINE")), (), R.WALLTIME_TIMEOUT),
        # it saved when Slurm said that its time was nearly up
        (look(None, ended("FAILED", limit_s=3660.0)), (DRAINED,), R.WALLTIME_TIMEOUT),
        (look(None, ended("CANCELLED by 1000")), (DRAINED,), R.USER_CANCELLED),
        # another cluster of the federation took it
        (look(None, ended("REVOKED", started_at=None)), (), R.SCHEDULING_TIMEOUT),
        (look(None, ended("REQUEUED"), RUNNING), (), R.NODE_DRAINED),
        (look(replace(PENDING, restarts=1)), (), R.NODE_DRAINED),
        (look(None, ended("NODE_FAIL"), PENDING), (), R.NODE_FAILURE),
        # a prolog failed, before accounting says so or where there is none
        (
            look(replace(PENDING, restarts=1, reason="launch_failed_requeued_held")),
            (),
            R.NODE_FAILURE,
        ),
    ],
)
def test_how_slurm_ended_a_job_is_its_reason(
    seen: JobSeen, ranks: tuple[RankEnd, ...], reason: TerminationReason
) -> None:
    assert seen.phase is GangPhase.GONE
    assert judged(seen, *ranks) == reason


def test_a_failure_in_the_last_minutes_is_not_a_time_limit() -> None:
    failed = RankEnd(rank=0, exit_code=1, ended_at=format_time(NOW), log_tail="KeyError: 'x'")
    seen = look(None, ended("FAILED", limit_s=3660.0))
    assert judged(seen, failed) != R.WALLTIME_TIMEOUT


def test_a_job_that_drains_long_before_its_limit_was_not_ended_by_it() -> None:
    seen = look(None, ended("FAILED", limit_s=86_400.0))
    assert before_the_limit(seen, (DRAINED,), ASKED) == seen


def test_what_a_supervisor_cancelled_no_person_did() -> None:
    assert look(None, ended("CANCELLED by 1000"), ended_by_us=True).state is None
    assert look(None, ended("TIMEOUT"), ended_by_us=True).state == "TIMEOUT"


def test_a_job_is_live_while_the_queue_says_so_whatever_accounting_has() -> None:
    assert look(RUNNING, ended("COMPLETED")).phase is GangPhase.ALIVE
    assert look(replace(RUNNING, state="COMPLETING")).phase is GangPhase.ALIVE


def test_accounting_that_missed_an_end_holds_no_attempt_open() -> None:
    seen = look(None, RUNNING)
    assert seen.phase is GangPhase.GONE
    assert "Slurm knows job 7 of this attempt no more" in seen.conditions[0].message


def test_a_job_that_nobody_has_is_not_an_answer() -> None:
    assert fold(None, (), NOW, ASKED, ended_by_us=False) is None


def test_what_waits_says_slurms_own_reason_and_when_it_may_start() -> None:
    seen = look(replace(PENDING, reason="QOSMaxJobsPerUserLimit"))
    assert seen.waits == (
        "job 7 waits in Slurm's queue: QOSMaxJobsPerUserLimit (a limit of its QOS)"
    )
    assert (
        "`scontrol release 7` lets it start" in look(replace(PENDING, reason="JobHeldUser")).waits
    )
    soon = look(replace(PENDING, started_at=NOW + timedelta(hours=3)))
    assert soon.waits.endswith("Resources, which expects to start it in 3.0 h")
    assert not soon.conditions


def test_a_job_whose_nodes_boot_has_not_begun() -> None:
    """In a cloud that takes minutes, in which no rank says anything: it does not hang."""
    seen = look(replace(RUNNING, state="CONFIGURING"))
    assert (seen.phase, seen.started_at) == (GangPhase.ALIVE, None)
    assert seen.waits == "job 7 has its nodes, which are not ready yet (CONFIGURING)"


def test_what_waits_too_long_or_for_ever_is_given_up() -> None:
    late = look(replace(PENDING, submitted_at=NOW - timedelta(hours=3)))
    never = look(replace(PENDING, reason="BadConstraints"))
    assert [each.conditions[0].type for each in (late, never)] == [CANNOT_START, CANNOT_START]
    assert judged(late) == R.SCHEDULING_TIMEOUT
    assert judged(never) == R.CONFIG_ERROR
