"""What a tick of a project's schedule looks at: the newest snapshot, and the schedule's last run.

`projects.schedule` decides on it; the run is declared as any other, by `runs.declare`. Every home that
has the store ticks for a stored project: the one whose record comes first declares the run.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tracks_dagster.data.effects.snapshots import find_snapshot
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.projects.project import Project
from tracks_dagster.projects.schedule import (
    LastRun,
    Retrain,
    decide_snapshot,
    decide_tick,
    run_of_snapshot,
)
from tracks_dagster.track.bodies import ProjectScheduled, SnapshotRef
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import SCHEDULE_OWNER
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.lifecycle import run_status
from tracks_dagster.track.states.project_state import ProjectState

TAKEN_MAX = timedelta(minutes=15)  # from a home's record to its declaration
_LAST = """
    select run_id from training_runs where model_family = :name and owner = :owner
    order by declared_at desc, run_id desc limit 1
"""


def look_at_tick(tracks: Tracks, ledger: Ledger, project: Project, at: datetime) -> Retrain | str:
    """Return the run that the cron's tick of `at` (UTC) declares, or why it is skipped.

    Raises InvalidInput for a project whose file has no cron any more.
    """
    schedule = project.schedule
    if schedule is None or schedule.cron is None:
        raise InvalidInput(f"The file of {project.name} has no cron any more; {_RELOAD}.")
    newest = None
    if project.dataset is not None:
        try:
            newest = find_snapshot(tracks, project.dataset)
        except InvalidInput as error:
            return f"skipped: {error}"
    return decide_tick(
        project.name,
        schedule,
        at=at,
        newest=newest,
        last=_last_run(tracks, ledger, project.name),
        is_declared=_is_declared(tracks, project.name, newest),
    )


def look_at_snapshot(
    tracks: Tracks, ledger: Ledger, project: Project, seen: str | None
) -> tuple[Retrain | str, str]:
    """Return the run that a new snapshot declares, or why it is skipped; and what is seen from now on.

    seen: as the look before returned it, None of the first: what is there then is not new. Raises
    InvalidInput for a project that asks for no snapshots any more.
    """
    schedule = project.schedule
    if schedule is None or not schedule.on_new_snapshot or project.dataset is None:
        raise InvalidInput(f"The file of {project.name} names no snapshots any more; {_RELOAD}.")
    try:
        newest = find_snapshot(tracks, project.dataset)
    except InvalidInput as error:
        return f"skipped: {error}", seen or _NOTHING
    if seen is None:
        seen = newest.snapshot_id
    answer = decide_snapshot(
        project.name,
        newest=newest,
        seen=seen,
        last=_last_run(tracks, ledger, project.name),
        is_declared=_is_declared(tracks, project.name, newest),
    )
    return answer, seen


def take_run(tracks: Tracks, project: str, run_id: str, *, home: str, where: str) -> str | None:
    """Take a run of a project's schedule upon this home; return why that is not to be, in words.

    None where this home declares it: it took the run, now or before, or the project is not stored, and
    no other home has it. What another one took and did not declare within TAKEN_MAX is taken over.
    """
    body = ProjectScheduled(project=project, run_id=run_id, home=home, where=where)
    draft = tracks.draft(Kind.PROJECT_SCHEDULED, body)

    def choose(state: ProjectState | None) -> Draft | None:
        if state is None or state.newest is None:
            return None
        taken = state.scheduled
        if taken is None or taken.body.run_id != run_id:
            return draft
        has_lapsed = tracks.now() - taken.at > TAKEN_MAX and tracks.find_run(run_id) is None
        return draft if has_lapsed and taken.body.home != home else None

    tracks.decide_project(project, choose)
    state = tracks.find_project(project)
    taken = None if state is None else state.scheduled
    if taken is None or taken.body.run_id != run_id or taken.body.home == home:
        return None
    return f"skipped: {run_id} is declared by another home of this store, on {taken.body.where}"


_NOTHING = "none"  # so that the first snapshot of all is a new one
_RELOAD = "reload the code location"


def _is_declared(tracks: Tracks, name: str, newest: SnapshotRef | None) -> bool:
    return newest is not None and tracks.find_run(run_of_snapshot(name, newest)) is not None


def _last_run(tracks: Tracks, ledger: Ledger, name: str) -> LastRun | None:
    """Return the newest run that the schedule declared, in this home by its ledger, or in another one
    by the project's track; read from its own track."""
    rows = ledger.query(_LAST, {"name": name, "owner": SCHEDULE_OWNER})
    found = {row["run_id"] for row in rows}
    project = tracks.find_project(name)
    if project is not None and project.scheduled is not None:
        found.add(project.scheduled.body.run_id)
    states = [state for run_id in found if (state := tracks.find_run(run_id)) is not None]
    state = max(states, key=lambda each: (each.declared_at, each.run_id), default=None)
    if state is None:
        return None
    snapshot = state.declared.snapshot
    return LastRun(
        run_id=state.run_id,
        state=run_status(state).state,
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
    )
