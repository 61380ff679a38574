"""What is known of one gang's job, from the rows of Slurm's tables. Pure.

squeue knows what waits and runs, and for some minutes what ended; accounting knows how it ended, later.
Both may lack it: a database that was reset, a site without accounting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tracks_dagster.attempts.ports import GangPhase
from tracks_dagster.reasons.evidence import CANNOT_START, Condition, RankEnd
from tracks_dagster.track.names import EXIT_DRAINED
from tracks_dagster.track.records import format_time
from tracks_dagster.track.text.units import about, duration
from tracks_dagster.wings.slurm.rows import JobRow

REQUEUED = "JobRequeued"  # the type of the condition of a job that Slurm started again
TIME_LIMIT = "TimeLimit"  # and of one that was asked to end before its limit
LOST = "JobLost"  # and of one that Slurm knows no more
UNWATCHED = "Unwatched"
SIGNAL_EARLY_S = 60.0  # Slurm may send --signal so much earlier than asked for
LAUNCH = "launch failed"  # how the reason of a job begins whose node could not start it
WAITS = ("PENDING", "RESV_DEL_HOLD")  # states of a job that has not begun
BOOTS = "CONFIGURING"  # and of one whose nodes boot, for which Slurm has a bound of its own
# Reasons by which a job that waits can never begin as it is, by Slurm's own names.
NEVER = ("BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS")
# What a person can do about a reason, by how Slurm's names for it begin.
CURES = {
    "JobHeldUser": "somebody holds it, `scontrol release {id}` lets it start",
    "JobHeldAdmin": "an administrator holds it, and has to release it",
    "Dependency": "another job of its name is not over yet",
    "QOS": "a limit of its QOS",
    "Assoc": "a limit of its account",
    "Partition": "its partition takes no such job now",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "its reservation has not begun",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """One gang's job. state: as evidence has it, None where it goes on or we ended it.

    waits: what Slurm says that it waits for, in words; empty once it has begun.
    """

    phase: GangPhase
    state: str | None = None
    conditions: tuple[Condition, ...] = ()
    waits: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    limit_s: float | None = None
    row: JobRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked of Slurm. scheduling_s: how long the job may wait."""

    notice_s: float
    scheduling_s: float


def fold(
    queue: JobRow | None,
    accounts: Sequence[JobRow],
    now: datetime,
    asked: Asked,
    *,
    ended_by_us: bool,
) -> JobSeen | None:
    """Return the job; None where neither table has it.

    accounts: its rows, in order. ended_by_us: whether a supervisor has cancelled it.
    """
    rows = [*accounts, *([] if queue is None else [queue])]
    if not rows:
        return None
    first = accounts[0] if accounts else rows[0]
    again = max((row.restarts for row in rows), default=0) > 0 or first.word == "REQUEUED"
    if again or len(accounts) > 1:
        return _started_again(first, rows, ended_by_us=ended_by_us)
    if queue is None and first.is_live:
        return lost(first.id, now)  # accounting missed its end: what runs the controller knows
    best = (
        first if accounts and not first.is_live and (queue is None or not queue.is_live) else queue
    )
    assert best is not None
    if best.is_live:
        return _live(best, now, asked)
    preempted_at = next((row.preempted_at for row in rows if row.preempted_at), None)
    return _ended(best, preempted_at, ended_by_us=ended_by_us)


def lost(job_id: str, at: datetime, problem: str = "") -> JobSeen:
    """Return a job that neither the controller nor accounting knows any more. problem: why accounting
    could not be asked, for long enough."""
    message = (
        f"Slurm knows job {job_id} of this attempt no more, neither in its queue nor in its "
        "accounting: how it ended is not known from there."
    )
    if problem:
        message = (
            f"Slurm's queue knows job {job_id} of this attempt no more, and its accounting could not "
            f"be asked how it ended. {problem}"
        )
    found = Condition(type=LOST, reason="", message=message, at=format_time(at), source="slurm")
    return JobSeen(phase=GangPhase.GONE, conditions=(found,))


def before_the_limit(seen: JobSeen, ranks: Sequence[RankEnd], asked: Asked) -> JobSeen:
    """Add that its ranks saved and ended because its time limit came, where that is so.

    Slurm says of such a job only that it failed, or did not: nobody but the ranks ended it.
    """
    if seen.phase is not GangPhase.GONE or seen.state is None or seen.conditions:
        return seen
    if seen.limit_s is None or seen.started_at is None or seen.ended_at is None:
        return seen
    limit_at = seen.started_at + timedelta(seconds=seen.limit_s)
    signal_at = limit_at - timedelta(seconds=asked.notice_s + SIGNAL_EARLY_S)
    is_own_end = seen.state.startswith(("FAILED", "COMPLETED"))
    if not is_own_end or seen.ended_at < signal_at:
        return seen
    if not any(rank.exit_code == EXIT_DRAINED for rank in ranks):
        return seen
    found = Condition(
        type=TIME_LIMIT,
        reason="SignalBeforeLimit",
        message=(
            f"Slurm asked the job to end {duration(asked.notice_s)} before its time limit of "
            f"{duration(seen.limit_s)}; its ranks saved and ended."
        ),
        at=format_time(signal_at),
        source="slurm",
    )
    return replace(seen, conditions=(found,))


def _live(row: JobRow, now: datetime, asked: Asked) -> JobSeen:
    if row.word == BOOTS:
        words = f"job {row.id} has its nodes, which are not ready yet ({row.word})"
        return JobSeen(phase=GangPhase.ALIVE, waits=words, row=row)
    if row.word not in WAITS:
        return JobSeen(
            phase=GangPhase.ALIVE, started_at=row.started_at, limit_s=row.limit_s, row=row
        )
    reason = row.reason or "no reason yet"
    waited_s = 0.0 if row.submitted_at is None else (now - row.submitted_at).total_seconds()
    start = ""
    if row.started_at is not None and row.started_at > now:
        start = f", which expects to start it in {about((row.started_at - now).total_seconds())}"
    cure = next((words for name, words in CURES.items() if reason.startswith(name)), "")
    cure = f" ({cure.format(id=row.id)})" if cure else ""
    waits = f"job {row.id} waits in Slurm's queue: {reason}{cure}{start}"
    is_hopeless = reason.startswith(NEVER)
    conditions: tuple[Condition, ...] = ()
    if is_hopeless or waited_s > asked.scheduling_s:
        kind = "FailedScheduling" if not is_hopeless else "BadConstraints"
        words = f"Slurm did not start job {row.id} within {about(waited_s)}: {reason}"
        conditions = (
            Condition(
                type=CANNOT_START,
                reason=kind,
                message=words,
                at=format_time(now),
                source="slurm",
            ),
        )
    return JobSeen(phase=GangPhase.ALIVE, conditions=conditions, waits=waits, row=row)


def _ended(row: JobRow, preempted_at: datetime | None, *, ended_by_us: bool) -> JobSeen:
    state = row.state
    if any(step.startswith("OUT_OF_ME") for step in row.steps) and row.word == "FAILED":
        state = "OUT_OF_MEMORY"  # of a step; of its job Slurm says that it failed
    conditions: tuple[Condition, ...] = ()
    if preempted_at is not None and row.word != "PREEMPTED":
        # A job that ends within its partition's GraceTime has whatever state its script left.
        message = f"Slurm took its nodes for another job; within its grace it ended as {row.state}."
        conditions = (
            Condition(
                type="DisruptionTarget",
                reason="PreemptionByScheduler",
                message=message,
                at=format_time(preempted_at),
                source="slurm",
            ),
        )
    return JobSeen(
        phase=GangPhase.GONE,
        state=None if ended_by_us and row.word == "CANCELLED" else state,
        conditions=conditions,
        started_at=row.started_at,
        ended_at=row.ended_at,
        limit_s=row.limit_s,
        row=row,
    )


def _started_again(first: JobRow, rows: Sequence[JobRow], *, ended_by_us: bool) -> JobSeen:
    """Return the first time that the job ran: that was the attempt, whatever Slurm does with it now."""
    at = first.ended_at or rows[-1].submitted_at
    message = (
        f"Slurm started job {first.id} again, though it was submitted with --no-requeue: somebody "
        "asked for that, or the site does. The attempt has had its launch; the next one resumes."
    )
    known = first.word not in ("REQUEUED", "CANCELLED") and not first.is_live
    # A prolog failed, or a node did not answer: Slurm holds the job, whatever --no-requeue says, and
    # accounting has NODE_FAIL of it.
    has_not_launched = any(row.reason.replace("_", " ").startswith(LAUNCH) for row in rows)
    state = first.state if known else "NODE_FAIL" if has_not_launched else None
    found = Condition(
        type=REQUEUED,
        reason=first.reason,
        message=message,
        at=None if at is None else format_time(at),
        source="slurm",
    )
    return JobSeen(
        phase=GangPhase.GONE,
        state=state,
        conditions=() if state is not None else (found,),
        started_at=first.started_at if not first.is_live else None,
        ended_at=first.ended_at if not first.is_live else None,
        row=first,
    )
