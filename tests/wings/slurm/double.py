"""A Slurm in memory, behind the programs' own words: what `SlurmClient` runs, answered at once.

It honours what the launcher counts on: a submit that reached it is a job, whatever became of the reply;
a name may have several; accounting keeps what the queue forgets. `fail` loses a call, or its reply.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tests.fakes import FakeClock, Fault
from tracks_dagster.wings.slurm.rows import ACCOUNT_FIELDS, QUEUE_FIELDS

AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


@dataclass(slots=True, kw_only=True)
class FakeJob:
    """A job of the double. rows: of accounting, of the times that it ran before."""

    id: int
    name: str
    options: tuple[str, ...]
    script: str
    submitted_at: datetime
    state: str = "PENDING"
    reason: str = "Resources"
    exit: str = "0:0"
    started_at: datetime | None = None
    ended_at: datetime | None = None
    limit: str = "1-00:00:00"
    restarts: int = 0
    preempted_at: datetime | None = None
    steps: tuple[str, ...] = ()
    before: list[str] = field(default_factory=list)


class FakeSlurm:
    """seconds of the clock pass only where a test says so. calls: every program, in order."""

    def __init__(self, clock: FakeClock, *, has_accounting: bool = True) -> None:
        self.clock, self.has_accounting = clock, has_accounting
        self.jobs: list[FakeJob] = []
        self.forgotten: set[int] = set()  # by the queue
        self.calls: list[tuple[str, ...]] = []
        self.is_away = False
        self.takes_s = 0.0  # each program, until it answers
        self.ends_nothing = False  # scancel is taken, and the job lives on
        self.lag_s = 0.0  # until accounting has the end of a job
        self.refusal = ""
        self.user = 1000
        self._next = 1
        self._counts: Counter[str] = Counter()
        self._faults: dict[tuple[str, int], Fault] = {}
        self._delayed: list[tuple[tuple[str, ...], str]] = []

    def fail(self, program: str, number: int, fault: Fault) -> None:
        """Make the `number`-th call of a program from now go wrong."""
        self._faults[program, self._counts[program] + number] = fault

    def run(self, argv: Sequence[str], **given: object) -> subprocess.CompletedProcess[str]:
        """Answer as the program would, in the place of `run_program`."""
        words, script = tuple(argv), str(given.get("given", ""))
        delayed, self._delayed = self._delayed, []
        for each in delayed:
            self._sbatch(*each)
        self.calls.append(words)
        self.clock.advance(self.takes_s)
        program = words[0]
        self._counts[program] += 1
        fault = self._faults.pop((program, self._counts[program]), None)
        if self.is_away or fault is Fault.FAILS:
            return _failed(AWAY)
        if fault is Fault.LOST_BEFORE:
            return _failed(TIMED_OUT)
        if fault is Fault.LOST_UNTIL_LATER:
            self._delayed.append((words, script))
            return _failed(TIMED_OUT)
        if program == "sbatch":
            if self.refusal:
                return _failed(f"sbatch: error: Batch job submission failed: {self.refusal}")
            done = self._sbatch(words, script)
        else:
            done = {"squeue": self._squeue, "sacct": self._sacct, "scancel": self._scancel}[
                program
            ](words)
        return _failed(TIMED_OUT) if fault is Fault.LOST_AFTER else done

    def job(self, number: int = -1) -> FakeJob:
        """Return a job, the newest by default."""
        return self.jobs[number]

    def start(self, job: FakeJob) -> None:
        """Let a job run."""
        job.state, job.reason, job.started_at = "RUNNING", "None", self.clock()

    def end(self, job: FakeJob, state: str, code: str = "0:0") -> None:
        """Let a job end."""
        job.state, job.exit, job.ended_at = state, code, self.clock()

    def forget(self, job: FakeJob) -> None:
        """Let the queue forget a job, as MinJobAge has it."""
        self.forgotten.add(job.id)

    def named(self, name: str) -> list[FakeJob]:
        """Return the jobs of a name."""
        return [job for job in self.jobs if job.name == name]

    def _sbatch(self, words: tuple[str, ...], script: str) -> subprocess.CompletedProcess[str]:
        name = _option(words, "--job-name")
        job = FakeJob(
            id=self._next,
            name=name,
            options=words[1:],
            script=script,
            submitted_at=self.clock(),
        )
        self._next += 1
        self.jobs.append(job)
        return _done(f"{job.id}\n")

    def _squeue(self, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        name, id_ = _option(words, "--name"), _option(words, "--jobs")
        if id_ and not any(str(j.id) == id_ and j.id not in self.forgotten for j in self.jobs):
            return _failed("slurm_load_jobs error: Invalid job id specified")
        rows = []
        for job in self.jobs:
            if job.id in self.forgotten or (name and job.name != name):
                continue
            if id_ and str(job.id) != id_:
                continue
            values = {
                "JobID": str(job.id),
                "Name": job.name,
                "State": job.state.partition(" ")[0],
                "Reason": job.reason,
                "SubmitTime": _time(job.submitted_at),
                "StartTime": _time(job.started_at),
                "EndTime": _time(job.ended_at),
                "TimeLimit": job.limit,
                "RestartCnt": str(job.restarts),
                "PreemptTime": _time(job.preempted_at),
                "NodeList": "n[1-2]",
                "Comment": _option(job.options, "--comment"),
            }
            rows.append("".join(f"{values[f]:<{w}}|" for f, w in QUEUE_FIELDS.items()))
        return _done("\n".join(rows) + "\n")

    def _sacct(self, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        if not self.has_accounting:
            return _failed("Slurm accounting storage is disabled")
        ids, name = _option(words, "--jobs").split(","), _option(words, "--name")
        lines = [ACCOUNT_FIELDS.replace(",", "|")]
        for job in self.jobs:
            if str(job.id) in ids or (name and job.name == name):
                lines += job.before
                ended_at, state = job.ended_at, job.state
                if ended_at and (self.clock() - ended_at).total_seconds() < self.lag_s:
                    ended_at, state = None, "RUNNING"
                times = [_time(at) or "Unknown" for at in (job.started_at, ended_at)]
                head = f"{job.id}|{job.name}|{state}|{job.exit}|{_time(job.submitted_at)}"
                lines.append(f"{head}|{'|'.join(times)}|{job.limit}|n[1-2]|gres/gpu=4|None")
                lines += [f"{job.id}.{n}|step|{s}|0:0||||||||" for n, s in enumerate(job.steps)]
        return _done("\n".join(lines) + "\n")

    def _scancel(self, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        job = next((job for job in self.jobs if str(job.id) == words[-1]), None)
        if job is None or job.ended_at is not None:
            return _failed("scancel: error: Kill job error on job id 1: Invalid job id specified")
        if "--signal=TERM" not in words and not self.ends_nothing:
            self.end(job, f"CANCELLED by {self.user}")
        return _done("")


def _time(at: datetime | None) -> str:
    return "N/A" if at is None else f"{at:%Y-%m-%dT%H:%M:%S}"


def _option(words: Sequence[str], name: str) -> str:
    given = (word.partition("=")[2] for word in words if word.startswith(f"{name}="))
    return next(given, "")


def _done(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], 0, stdout=text, stderr="")


def _failed(words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], 1, stdout="", stderr=words)
