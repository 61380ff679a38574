"""What `squeue` and `sacct` print of jobs, as rows. Pure.

Both are asked with TZ=UTC and plain times. A row that cannot be read is left out: another program's
words among them hide no job of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tracks_dagster.reasons.slurm_rows import NO_TIMES, time_in

# Of squeue --Format, each with its width: what is longer is cut. Names of ours have at most 70.
QUEUE_FIELDS = {
    "JobID": 14,
    "Name": 90,
    "State": 16,
    "Reason": 80,
    "SubmitTime": 21,
    "StartTime": 21,
    "EndTime": 21,
    "TimeLimit": 16,
    "RestartCnt": 6,
    "PreemptTime": 21,
    "NodeList": 120,
    "Comment": 120,  # the last one: another's may have anything in it
}
QUEUE_FORMAT = ",".join(f"{name}:{width}|" for name, width in QUEUE_FIELDS.items())
ACCOUNT_FIELDS = (
    "JobIDRaw,JobName,State,ExitCode,Submit,Start,End,Timelimit,NodeList,AllocTRES,Reason"
)
NO_NODES = ("(null)", "None assigned")
# States of jobs that are over, also as they are cut; in one that we do not know a job may still run.
ENDS = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
    | {"OUT_OF_ME", "PREEMPTED", "REQUEUED", "REVOKED", "TIMEOUT"}
)
_LIMIT = re.compile(r"(?:(\d+)-)?(\d+):(\d+)(?::(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job as one of Slurm's programs shows it, or one of the times that it ran.

    state: in full, "CANCELLED by 1000" where accounting says who. reason: why it waits, or what ended
    it; empty for none. times: aware; of a job that waits started_at is when Slurm means to start it.
    limit_s: None where it has none. restarts: how often Slurm started it again. preempted_at: when
    Slurm chose it to make room. steps: the states of its steps, which accounting alone has; comment:
    the queue alone.
    """

    id: str
    name: str
    state: str
    reason: str = ""
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    limit_s: float | None = None
    restarts: int = 0
    preempted_at: datetime | None = None
    nodes: str = ""
    exit: str = ""
    tres: str = ""
    steps: tuple[str, ...] = ()
    comment: str = ""
    is_of_accounting: bool = False

    @property
    def word(self) -> str:
        """The state's first word."""
        return self.state.partition(" ")[0].rstrip("+")

    @property
    def is_live(self) -> bool:
        """Whether the job waits, runs, or is still ending."""
        return self.word not in ENDS


def read_queue(text: str) -> list[JobRow]:
    """Return the rows of squeue, as QUEUE_FORMAT asks for them."""
    found = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split("|")]
        if len(values) < len(QUEUE_FIELDS):
            continue
        row = _row(dict(zip(QUEUE_FIELDS, values, strict=False)))
        if row is not None:
            found.append(row)
    return found


def read_accounts(text: str) -> list[JobRow]:
    """Return the rows of `sacct -D -P`, in its order: one for each time that a job ran."""
    found: list[JobRow] = []
    names: Sequence[str] = ()
    for line in text.splitlines():
        values = line.split("|")
        if not names:  # a login shell may print its own words before
            names = values if "JobIDRaw" in values else ()
            continue
        fields = dict(zip(names, (value.strip() for value in values), strict=False))
        id_, dot, _ = fields.get("JobIDRaw", "").partition(".")
        if dot:
            if found and found[-1].id == id_:
                found[-1] = replace(found[-1], steps=(*found[-1].steps, fields.get("State", "")))
            continue
        row = _row(fields)
        if row is not None:
            found.append(replace(row, is_of_accounting=True))
    return found


# Our names for theirs: the two call the same things differently.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "id": ("JobIDRaw", "JobID"),
    "name": ("Name", "JobName"),
    "state": ("State",),
    "submitted": ("SubmitTime", "Submit"),
    "started": ("StartTime", "Start"),
    "ended": ("EndTime", "End"),
    "limit": ("TimeLimit", "Timelimit"),
    "restarts": ("RestartCnt", "Restarts"),
    "exit": ("ExitCode",),
    "tres": ("AllocTRES",),
}


def _row(given: Mapping[str, str]) -> JobRow | None:
    fields = {
        name: next((given[each] for each in theirs if each in given), "")
        for name, theirs in _NAMES.items()
    }
    if not fields["id"].isdecimal() or not fields["state"]:
        return None
    reason = given.get("Reason", "")
    try:
        return JobRow(
            id=fields["id"],
            name=fields["name"],
            state=fields["state"],
            reason="" if reason in NO_TIMES else reason,
            submitted_at=time_in(fields["submitted"], UTC),
            started_at=time_in(fields["started"], UTC),
            ended_at=time_in(fields["ended"], UTC),
            limit_s=limit_s(fields["limit"]),
            restarts=int(fields["restarts"]) if fields["restarts"].isdecimal() else 0,
            preempted_at=time_in(given.get("PreemptTime", ""), UTC),
            nodes=nodes if (nodes := given.get("NodeList", "")) not in NO_NODES else "",
            exit=fields["exit"],
            tres=fields["tres"],
            comment=given.get("Comment", ""),
        )
    except (ValueError, OverflowError):
        return None


def limit_s(limit: str) -> float | None:
    """Return a time limit in seconds, as Slurm writes it: `1-00:00:00`, `30:00`; None for none."""
    match = _LIMIT.fullmatch(limit)
    if match is None:
        return None
    days, first, second, third = (int(each or 0) for each in match.groups())
    if match[4] is None and match[1] is None:
        return first * 60.0 + second
    return days * 86_400.0 + first * 3600.0 + second * 60.0 + third
