"""What `sacct -D -P` printed, of any version: rows of jobs, each followed by those of its steps. Pure.

A job that was requeued has a row for each time that it ran (`-D`; without it Slurm shows the last one
alone). Columns are found by their names. Read with 22.05; other versions name some differently, see
COLUMNS.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import product

from tracks_dagster.reasons.evidence import Evidence, RankEnd
from tracks_dagster.reasons.slurm_rows import (
    NO_TIMES,
    UNTIL_THE_END,
    exit_in,
    gpus_in,
    hosts,
    time_in,
)
from tracks_dagster.track.bodies import AUTOMATIC, MANUAL
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.history.source import BadRow, NotEnded, Read, SourceAttempt, aware

FIELDS = (
    "JobIDRaw,JobID,JobName,User,Account,Partition,Cluster,State,ExitCode,DerivedExitCode,Submit,Start,"
    "End,ElapsedRaw,NNodes,AllocTRES,ReqTRES,NodeList,Reason,Comment,WorkDir,SubmitLine"
)
COMMAND = f"sacct -D -P -a -S 2026-01-01 --format={FIELDS}"

# What is read, by the names that versions have given it; the first that is there counts.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "id": ("JobIDRaw", "JobID"),
    "shown": ("JobID",),
    "name": ("JobName",),
    "user": ("User",),
    "account": ("Account",),
    "partition": ("Partition",),
    "cluster": ("Cluster",),
    "state": ("State",),
    "exit": ("ExitCode",),
    "submit": ("Submit",),
    "start": ("Start",),
    "end": ("End",),
    "elapsed": ("ElapsedRaw",),
    "nodes": ("NNodes", "AllocNodes"),
    "tres": ("AllocTRES", "AllocGRES", "AllocGres"),
    "asked": ("ReqTRES", "ReqGRES"),
    "node_list": ("NodeList",),
    "submit_line": ("SubmitLine",),
    "work_dir": ("WorkDir",),
}
NEEDED = ("id", "state", "submit", "start", "end")
ZONES_S = 900  # zones differ by a multiple of it
STEPS_MAX = 10_000  # of one job that are read

# Options without a value of sbatch, srun and salloc; after every other one a value may come.
_FLAG = re.compile(
    r"-[HIklOQsuvWXE]|--(?:hold|immediate|no-kill|overcommit|oversubscribe|share|quiet|verbose|wait"
    r"|requeue|no-requeue|parsable|exclusive|contiguous|spread-job|use-min-nodes|reboot|test-only"
    r"|propagate|get-user-env|ignore-pbs|label|unbuffered|disable-status|preserve-env|no-shell|pty)"
)
_STEP = re.compile(r"\d+(?:_\d+|\+\d+)?\.")
_UNKNOWN = {
    "last_step": "Slurm knows no training steps",
    "checkpoints": "Slurm knows no checkpoints",
    "config": "Slurm knows no config of a job",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """fields: by our names; raw: every column that is not empty, by Slurm's."""

    line: int
    fields: Mapping[str, str]
    raw: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sacct:
    """Reads lines of sacct. zone: of the times in it, which name none. by_name: rows of one name, user
    and folder are one run, each submission a restart by a person; else every job is a run."""

    zone: tzinfo
    by_name: bool = False

    def read(self, lines: Iterable[str]) -> Iterator[Read]:
        """Yield each row of a job with its steps; raises InvalidInput without a usable header."""
        job: _Row | None = None
        steps: list[_Row] = []
        running_until: dict[str, datetime] = {}
        for row in _rows(lines):
            if isinstance(row, BadRow):
                yield row
            elif _STEP.match(row.fields["id"]):
                if job is not None and _is_of(row, job) and len(steps) < STEPS_MAX:
                    steps.append(row)
            else:
                if job is not None:
                    yield self._job(job, steps, running_until)
                job, steps = row, []
        if job is not None:
            yield self._job(job, steps, running_until)

    def _job(self, job: _Row, steps: Sequence[_Row], running_until: dict[str, datetime]) -> Read:
        state = job.fields["state"].partition(" ")[0]
        if state in UNTIL_THE_END or (job.fields["end"] in NO_TIMES and state != "CANCELLED"):
            return NotEnded(line=job.line)
        try:
            return self._attempt(job, steps, running_until)
        except ValueError as error:
            return BadRow(line=job.line, why=str(error))

    def _attempt(
        self, job: _Row, steps: Sequence[_Row], running_until: dict[str, datetime]
    ) -> SourceAttempt:
        fields = job.fields
        submitted_at = self._time(fields["submit"], "Submit")
        started_at, ended_at = self._span(fields)
        submitted_at = submitted_at or started_at or ended_at
        devices, device_class = _devices(fields)
        run, cause = f"{fields.get('id')}", AUTOMATIC
        if self.by_name:
            parts = (fields.get(each, "") for each in ("name", "user", "work_dir"))
            named = "/".join(parts).rstrip("/")
            if (started_at or ended_at) >= running_until.get(named, submitted_at):
                run, cause = named or run, MANUAL
                running_until[named] = ended_at
        code, by_signal = exit_in(fields.get("exit", ""))
        end = RankEnd(
            rank=0,
            exit_code=code,
            signal=by_signal,
            oom_killed=any(s.fields["state"].startswith("OUT_OF_ME") for s in (job, *steps)),
        )
        return SourceAttempt(
            # Without its cluster, which not every file names: two jobs of one second and id are rare.
            id=f"{fields['id']}/{submitted_at}/{started_at or ''}",
            in_any_zone="/".join(
                (
                    fields["id"],
                    fields["state"],
                    f"{submitted_at.timestamp() % ZONES_S:.0f}",
                    f"{started_at and started_at - submitted_at}",
                    f"{ended_at - submitted_at}",
                )
            ),
            run=run,
            title=fields.get("name", ""),
            owner=fields.get("user", ""),
            team=fields.get("account", ""),
            submitted_at=submitted_at,
            started_at=started_at,
            ended_at=ended_at,
            cause=cause,
            evidence=Evidence(
                run_id="",
                attempt_id=0,
                launch_id=None,
                ranks=(end,) if started_at is not None else (),
                slurm_state=fields["state"],
            ),
            row=[dict(each.raw) for each in (job, *steps)],
            devices=devices,
            device_class=device_class,
            nodes=_nodes(fields.get("node_list", "")),
            excluded_nodes=_excluded(fields.get("submit_line", "")),
            config={"partition": fields["partition"]} if fields.get("partition") else {},
            succeeded="Slurm state: COMPLETED" if fields["state"] == "COMPLETED" else None,
            unknown=_UNKNOWN,
        )

    def _span(self, fields: Mapping[str, str]) -> tuple[datetime | None, datetime]:
        """Return when it ran; raises ValueError where it ended before it started."""
        started_at = self._time(fields["start"], "Start")
        ended_at = self._time(fields["end"], "End") or started_at
        if ended_at is None:
            raise ValueError("it has neither Start nor End")
        if started_at is None:
            return None, ended_at
        # In the hour that a clock is put back, local times come twice: ElapsedRaw tells which one it
        # was.
        elapsed = fields.get("elapsed", "")
        elapsed_s = float(elapsed) if elapsed.isdecimal() else None
        if (ended_at - started_at).total_seconds() == elapsed_s:
            return started_at, ended_at
        starts = (started_at, self._time(fields["start"], "Start", fold=1) or started_at)
        ends = (ended_at, self._time(fields["end"], "End", fold=1) or ended_at)
        for start, end in product(starts, ends):
            if (end - start).total_seconds() == elapsed_s:
                return start, end
        if ended_at >= started_at:
            return started_at, ended_at
        if elapsed_s is not None and started_at - ended_at <= timedelta(hours=1):
            return started_at, started_at + timedelta(seconds=elapsed_s)
        raise ValueError(f"it ends ({fields['end']}) before it starts ({fields['start']})")

    def _time(self, text: str, column: str, *, fold: int = 0) -> datetime | None:
        """Return a time of sacct; None where it has none yet. fold: 1 for the later of two that have
        one local time."""
        try:
            at = time_in(text, self.zone)
            return None if at is None else aware(at.replace(fold=fold))
        except (ValueError, OverflowError):
            raise ValueError(
                f"its {column} is {text[:40]!r}, no time as 2026-01-31T02:00:00: unset "
                "SLURM_TIME_FORMAT"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """What the rows below a line of titles hold.

    at: the column of each of our names; lacking: the needed ones that have none, for people.
    """

    separator: str
    titles: Sequence[str]
    at: Mapping[str, int]
    lacking: str


def _rows(lines: Iterable[str]) -> Iterator[_Row | BadRow]:
    """Yield the rows by our names of the columns; raises InvalidInput without a header.

    Files in a row have a header each, which counts for the rows below it.
    """
    header: _Header | None = None
    header_line = 0
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        if header is None:
            header, header_line = _header(text), number
            if header.lacking:
                raise InvalidInput(
                    f"Its first line names no column {header.lacking}; it begins "
                    f"{'|'.join(header.titles)[:80]!r}. Make it with: {COMMAND}"
                )
            continue
        # The first test is quick, for a million rows.
        if "JobID" in text and _is_header(new := _header(text)):
            header, header_line = new, number
            if header.lacking:
                yield BadRow(line=number, why=f"it is a header without column {header.lacking}")
            continue
        yield _row(header, text, number, header_line)
    if header is None:
        raise InvalidInput(f"There is no line in it. Make it with: {COMMAND}")


def _row(header: _Header, text: str, number: int, header_line: int) -> _Row | BadRow:
    if header.lacking:
        why = f"it is below line {header_line}, a header without column {header.lacking}"
        return BadRow(line=number, why=why)
    titles, separator = header.titles, header.separator
    values, count = text.split(separator), len(titles)
    if len(values) < count:
        why = f"it has {len(values)} of {count} columns: it is cut, or a name holds a line break"
        return BadRow(line=number, why=why)
    if len(values) > count:
        why = f"it has {len(values)} columns, the header {count}: a name holds {separator!r}"
        return BadRow(line=number, why=f"{why}; print it with --delimiter=$'\\x1f'")
    row = {name: values[at].strip() for name, at in header.at.items()}
    if not row["id"]:
        return BadRow(line=number, why="it has no job id")
    raw = {title: text for title, text in zip(titles, values, strict=True) if text}
    return _Row(line=number, fields=row, raw=raw)


def _header(text: str) -> _Header:
    """Return the columns that a line names, as far as they are known."""
    text = text.removeprefix("\ufeff")
    separator = next((c for c in text if not c.isalnum() and c not in "_ "), "|")
    titles = [title.strip() for title in text.split(separator)]
    at = {title: index for index, title in enumerate(titles)}
    names = {
        name: next(at[title] for title in known if title in at)
        for name, known in COLUMNS.items()
        if any(title in at for title in known)
    }
    lacking = ", ".join(" or ".join(COLUMNS[name]) for name in NEEDED if name not in names)
    return _Header(separator=separator, titles=titles, at=names, lacking=lacking)


def _is_header(line: _Header) -> bool:
    """Return whether it is one: a job may be called as a column, but not its times and state too."""
    return "id" in line.at and len({*NEEDED} & {*line.at}) > 2


def _is_of(step: _Row, job: _Row) -> bool:
    return step.fields["id"].partition(".")[0] in (job.fields["id"], job.fields.get("shown"))


def _devices(fields: Mapping[str, str]) -> tuple[int, str]:
    """Return how many devices it had, or asked for, and of which class: nodes where it had no GPU."""
    text = fields.get("tres") or fields.get("asked") or ""
    count, device_class = gpus_in(text)
    if count:
        return count, device_class
    nodes = fields.get("nodes", "")
    return max(1, int(nodes)) if nodes.isdecimal() else 1, "cpu"


def _nodes(text: str) -> tuple[str, ...]:
    return () if text in ("", "None assigned", "(null)") else hosts(text)


def _excluded(submit_line: str) -> tuple[str, ...]:
    """Return the nodes that the options before the script exclude; none where they cannot be read."""
    if "-x" not in submit_line and "--exclude" not in submit_line:  # as most of a million
        return ()
    try:
        words = shlex.split(submit_line)[1:]
    except ValueError:  # it was cut, or printed without its quotes
        words = submit_line.replace("'", "").replace('"', "").split()[1:]
    found = ""
    left = iter(words)
    for word in left:
        name, is_given, value = word.partition("=")
        if not word.startswith("-"):
            break
        if (
            name == "--wrap" and " " not in value
        ):  # without its quotes: what follows is of the script
            break
        if not word.startswith("--") and len(word) > 2:
            name, is_given, value = word[:2], "=", word[2:]
        if not is_given and _FLAG.fullmatch(name) is None:
            value = next(left, "")
        if name in ("-x", "--exclude"):
            found = value
    try:
        return hosts(found)
    except ValueError:
        return ()
