"""The stored versions of a project: a pure fold over its track, `projects/NAME`.

A version is the project's files as they were, with who stored them, when, and which commit they are of.
The newest one counts, unless the project was removed after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.track.bodies import ProjectRemoved, ProjectScheduled, ProjectStored
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Kind, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """One `project_stored`. number: 1-based."""

    number: int
    seq: int
    at: datetime
    body: ProjectStored


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """One `project_scheduled`."""

    at: datetime
    body: ProjectScheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectState:
    """Every version of one project, oldest first. `head` is the last record folded.

    removed: the newest `project_removed`, None where a version was stored since. scheduled: the newest
    run that a home's tick took upon itself.
    """

    head: Record
    project: str
    versions: tuple[StoredVersion, ...]
    removed: ProjectRemoved | None = None
    scheduled: ScheduledRun | None = None

    @property
    def newest(self) -> StoredVersion | None:
        """The version that counts; None for a project that was removed."""
        return None if self.removed is not None else self.versions[-1]


def fold(records: Iterable[Record], state: ProjectState | None = None) -> ProjectState | None:
    """Return the state after `records`, starting from `state`; None for an empty track."""
    for record in records:
        state = apply(state, record)
    return state


def apply(state: ProjectState | None, record: Record) -> ProjectState:
    """Return the state after one more record; raises TrackBroken for one that cannot come next."""
    match record.kind:
        case Kind.PROJECT_STORED:
            body = body_of(ProjectStored, record)
            if state is not None and body.project != state.project:
                raise TrackBroken(
                    f"Record {record.seq} is of the project {body.project}, those before it of "
                    f"{state.project}."
                )
            before = state.versions if state is not None else ()
            added = StoredVersion(number=len(before) + 1, seq=record.seq, at=record.at, body=body)
            return ProjectState(
                head=record,
                project=body.project,
                versions=(*before, added),
                scheduled=None if state is None else state.scheduled,
            )
        case Kind.PROJECT_REMOVED if state is not None:
            return replace(state, head=record, removed=body_of(ProjectRemoved, record))
        case Kind.PROJECT_SCHEDULED if state is not None:
            taken = ScheduledRun(at=record.at, body=body_of(ProjectScheduled, record))
            return replace(state, head=record, scheduled=taken)
        case Kind.NOTE | Kind.ALERT if state is not None:
            return replace(state, head=record)
        case _:
            raise TrackBroken(
                f"Record {record.seq} ({record.kind}) does not belong there in the track of a project."
            )
