"""What one process knows of one gang on Slurm, and what still has to be asked about its job."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracks_dagster.attempts.effects.gang_files import GangFiles
from tracks_dagster.reasons.evidence import Condition
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import parse_time
from tracks_dagster.wings.slurm.effects.board import Tables
from tracks_dagster.wings.slurm.effects.marks import Job, Marks
from tracks_dagster.wings.slurm.rows import JobRow

UNSEEN_S = 60.0  # a job that is not in the queue so long after its submit has left it
ASKED_MAX = 12  # times that accounting is asked about a job whose end it does not have


@dataclass(slots=True, kw_only=True)
class Gang:
    """What this process knows of one gang. never_s: when it was seen never to have been started."""

    ref: AttemptRef
    marks: Marks
    files: GangFiles
    job: Job | None = None
    never_s: float | None = None
    tokens: set[str] = field(default_factory=set)  # of its submits, once they were asked for
    accounts: tuple[JobRow, ...] = ()
    last: JobRow | None = None  # the newest row of the queue that had it
    asked: int = 0  # how often accounting was, in vain but for the last time
    unanswered_s: float | None = None  # since when accounting, asked about it, has failed
    is_gone: bool = False  # by an answer about it alone, which may be newer than that for all
    drained_s: float | None = None  # when, on a steady clock, as what follows
    cancelled_s: float | None = None
    end_by_s: float | None = None  # or it cannot be ended
    settle_by_s: float | None = None  # for accounting to have its end
    is_cancelled: bool | None = None  # by a supervisor; None: not looked up yet
    found: list[Condition] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the job's end is known, and nothing of it will run again."""
        if len(self.accounts) == 1 and not self.accounts[0].is_live:
            return self.accounts[0].word != "REQUEUED"
        return self.last is not None and not (self.last.is_live or self.last.restarts)

    @property
    def is_settled(self) -> bool:
        """Whether accounting has the end too, which it gets later than the queue."""
        return self.is_over and bool(self.accounts) and not any(r.is_live for r in self.accounts)


def has_left(gang: Gang, tables: Tables | None) -> bool:
    """Whether the job has left the queue, or ended in it, and accounting does not say yet how."""
    job = gang.job
    if job is None or gang.asked >= ASKED_MAX or gang.is_settled:
        return False
    if gang.is_gone or tables is None:
        return gang.is_gone
    row = tables.jobs.get(job.id)
    if row is None or row.name != (job.name if gang.last is None else gang.last.name):
        return not is_newer(job, tables)
    return not row.is_live


def is_newer(job: Job, tables: Tables) -> bool:
    """Whether the job was submitted after the queue was read, or too shortly before."""
    return (tables.at - parse_time(job.at)).total_seconds() < UNSEEN_S
