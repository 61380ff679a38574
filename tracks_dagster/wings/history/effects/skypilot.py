"""SkyPilot's managed jobs, from its database `~/.sky/spot_jobs.db`, read only and without its package.

A task is a run; an attempt is what ran between two recoveries. Versions without a table `job_events` do
not tell them apart: there a task is one attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from tracks_dagster.reasons.evidence import Condition, Evidence, RankEnd
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.wings.history.effects.foreign import columns, database, rows
from tracks_dagster.wings.history.source import (
    BadRow,
    NotEnded,
    Read,
    SourceAttempt,
    aware,
    time_of,
)

NEEDED = {"spot_job_id", "task_id", "submitted_at", "status", "start_at", "end_at"}
NO_TABLE = "is not a database of SkyPilot's managed jobs: its table spot has no"
RUNNING, RECOVERING, SUCCEEDED, CANCELLED = "RUNNING", "RECOVERING", "SUCCEEDED", "CANCELLED"
OWN_FAILURE = "USER_JOB_FAILURE"  # the code of an event: the job's own program failed
UNKNOWN = {
    "last_step": "SkyPilot knows no training steps",
    "checkpoints": "SkyPilot knows no checkpoints",
    "config": "SkyPilot knows no config of a job",
}
_COUNT = re.compile(r"\s*(\d+)x")
_ACCELERATORS = re.compile(r"(?<![\w.-])([A-Za-z][\w-]*)'?\s*:\s*(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyPilot:
    """A file `spot_jobs.db`. zone: of the times of events, which name none. Implements `History`."""

    path: Path
    zone: tzinfo = UTC
    system: str = "skypilot"

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self) -> Iterator[Read]:
        with database(self.path) as opened:
            missing = NEEDED - columns(opened, "spot")
            if missing:
                raise InvalidInput(f"{self.path} {NO_TABLE} {', '.join(sorted(missing))}.")
            events: dict[tuple[Json, Json], list[Mapping[str, Json]]] = {}
            if columns(opened, "job_events"):
                for each in rows(opened, "job_events", "order by id"):
                    key = (each.get("spot_job_id"), each.get("task_id"))
                    events.setdefault(key, []).append(each)
            jobs = {}
            if columns(opened, "job_info"):
                jobs = {each["spot_job_id"]: each for each in rows(opened, "job_info")}
            for task in rows(opened, "spot", "order by job_id"):
                job_id, task_id = task["spot_job_id"], task["task_id"]
                own = [*events.get((job_id, None), ()), *events.get((job_id, task_id), ())]
                try:
                    yield from self._attempts(task, jobs.get(job_id, {}), own)
                except (ValueError, TypeError, KeyError) as error:
                    yield BadRow(line=0, why=str(error), file=f"job {job_id}, task {task_id}")

    def _attempts(
        self,
        task: Mapping[str, Json],
        job: Mapping[str, Json],
        events: Sequence[Mapping[str, Json]],
    ) -> Iterator[Read]:
        status = str(task["status"])
        started_at, ended_at = _time(task, "start_at"), _time(task, "end_at")
        times = sorted((self._event_time(each), each.get("new_status")) for each in events)
        if ended_at is None and status == CANCELLED:  # as it waited: the event alone has its time
            ended_at = next((at for at, new in reversed(times) if new == CANCELLED), None)
        submitted_at = _time(task, "submitted_at") or _time(task, "created_at")
        submitted_at = submitted_at or (times[0][0] if times else None)
        if submitted_at is None and ended_at is None:
            yield NotEnded()  # it waits for a machine, and has no time before one is asked for
            return
        if submitted_at is None:
            raise ValueError("it has no submitted_at")
        if ended_at is not None and started_at is not None and ended_at < started_at:
            raise ValueError(f"it ends ({task['end_at']}) before it starts ({task['start_at']})")
        begin, number = started_at, 0
        asked_at = submitted_at
        for event in sorted(events, key=self._event_time):
            at = self._event_time(event)
            if event.get("new_status") == RECOVERING and begin is not None:
                number += 1
                yield self._attempt(task, job, number, asked_at, begin, max(at, begin), event)
                begin, asked_at = None, at
            elif event.get("new_status") == RUNNING and begin is None and number:
                begin = at
        if ended_at is None:
            yield NotEnded()
            return
        reason = {"new_status": status, "reason": task.get("failure_reason")}
        end = max(ended_at, begin or ended_at)
        yield self._attempt(task, job, number + 1, asked_at, begin, end, reason)

    def _event_time(self, event: Mapping[str, Json]) -> datetime:
        text = str(event.get("timestamp") or "")
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"the time of its event {event.get('id')} is {text[:40]!r}") from None
        return aware(at if at.tzinfo is not None else at.replace(tzinfo=self.zone))

    def _attempt(
        self,
        task: Mapping[str, Json],
        job: Mapping[str, Json],
        number: int,
        submitted_at: datetime,
        started_at: datetime | None,
        ended_at: datetime,
        event: Mapping[str, Json],
    ) -> SourceAttempt:
        status, why = str(event.get("new_status") or ""), str(event.get("reason") or "")
        source, code = event.get("recovery_source"), str(event.get("code") or "")
        is_last = status != RECOVERING  # whose nodes are those that the job had at last
        has_failed = bool(why) and (is_last or code == OWN_FAILURE)
        words = ", ".join(
            filter(None, (f"SkyPilot status: {status}", str(source or ""), code, why))
        )
        stop = None
        if status == CANCELLED:
            stop = {"mode": "stop", "by": "a person", "why": words}
        condition = Condition(
            type="SkyPilot", reason=code or status, message=why, at=None, source="skypilot"
        )
        devices, device_class, nodes = _devices(task, job)
        job_id, task_id = task["spot_job_id"], task["task_id"]
        name = str(task.get("task_name") or task.get("job_name") or job.get("name") or job_id)
        raw = {k: v for k, v in job.items() if not k.endswith("_content") and v is not None}
        return SourceAttempt(
            id=f"{job_id}/{task_id}/{task['submitted_at']}/{number}",
            run=f"{job_id}.{task_id}" if task_id else str(job_id),
            title=name,
            owner=str(job.get("user_hash") or ""),
            team=str(job.get("workspace") or ""),
            submitted_at=submitted_at,
            started_at=started_at,
            ended_at=ended_at,
            devices=devices,
            device_class=device_class,
            nodes=nodes if is_last else (),
            evidence=Evidence(
                run_id="",
                attempt_id=0,
                launch_id=None,
                ranks=(RankEnd(rank=0, log_tail=why),) if has_failed else (),
                conditions=(condition,),
                stop=stop,
            ),
            row={
                "task": {k: v for k, v in task.items() if v is not None},
                "job": raw,
                "end": words,
            },
            succeeded=words if status == SUCCEEDED else None,
            failed=words,
            unknown=UNKNOWN,
        )


def _devices(task: Mapping[str, Json], job: Mapping[str, Json]) -> tuple[int, str, tuple[str, ...]]:
    """Return devices, their class and the nodes that are named: "2x[A100:8]" is 16 of A100; of
    one without an accelerator, its nodes count, as cpu."""
    asked = str(task.get("resources") or "")
    count, found = _COUNT.match(asked), _ACCELERATORS.search(asked)
    node_count = int(count[1]) if count else 1
    nodes = _nodes(str(job.get("node_names") or ""))
    if found is None:
        return max(1, len(nodes)), "unknown", nodes
    device_class = found[1].lower()
    return node_count * (1 if device_class == "cpu" else int(found[2])), device_class, nodes


def _nodes(names: str) -> tuple[str, ...]:
    """Return the newest name of each node of `[["node-1"], ["node-2", "node-3"]]`, each with its names
    over the recoveries; older versions wrote `node-1,node-3`."""
    try:
        found = [each[-1] for each in parse_json(names) if each]
    except (ValueError, TypeError, KeyError, IndexError):
        found = names.split(",")
    return tuple(filter(None, (str(each).strip() for each in found)))


def _time(row: Mapping[str, Json], key: str) -> datetime | None:
    found = row.get(key)
    if found is None or found == -1:
        return None
    try:
        return time_of(float(found))
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"its {key} is {str(found)[:40]!r}, not seconds since 1970") from None
