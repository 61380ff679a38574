"""The truth after a reboot, a lost daemon or a lost cluster: how every run that is not over stands.

From tracks, store, this machine and the cluster, and without a daemon. Reads only; what is done about
it is `triage_apply`'s. The verdicts are `core.triage`'s, the order of restarts `core.restart_plan`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.core.device_memory import OrphanMemory, orphan_memory
from tracks_dagster.core.evals import HAS_ALL_STEPS
from tracks_dagster.core.lifecycle import FINISHED_AS, RunLifecycle
from tracks_dagster.core.machine import MachineNow
from tracks_dagster.core.names import attempt_key
from tracks_dagster.core.ports import GangReport, LauncherOf, Ledger, Machine, ObjectStore
from tracks_dagster.core.records import format_time
from tracks_dagster.core.redact import Redact
from tracks_dagster.core.restart_plan import Planned
from tracks_dagster.core.run_state import AttemptState
from tracks_dagster.core.track import log_key, run_track
from tracks_dagster.core.triage import Judged, Verdict, judge
from tracks_dagster.core.triage_signs import Seen, Sign
from tracks_dagster.services.status import read_heartbeat
from tracks_dagster.services.triage.gangs import Gangs
from tracks_dagster.services.triage.line import Line, line_of
from tracks_dagster.services.triage.reading import RunRead, find_runs, read_runs
from tracks_dagster.services.triage.room import Asked, find_room, propose

OVER = frozenset(state.value for state in FINISHED_AS.values())
FINAL = "final"  # the trigger of the save after the last step


@dataclass(frozen=True, slots=True, kw_only=True)
class Triage:
    """The answer. lines: one a run, the one declared first first; plan: in the order proposed.

    daemon_at: when a daemon ticked last; room: the devices that the plan is made for, in words;
    more: whether there are more runs than `triage_reading.RUNS_MAX`, which are not in it.
    """

    at: str
    node: str
    boot_id: str
    booted_at: str | None
    daemon_at: str | None
    lines: tuple[Line, ...]
    room: str
    plan: tuple[Planned, ...]
    orphan_memory: tuple[OrphanMemory, ...]
    more: bool

    def line(self, run_id: str) -> Line:
        """Return the line of a run that is in it."""
        return next(line for line in self.lines if line.run_id == run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What triage looks at: the store and its ledger, the launchers, the machine, and the clock."""

    store: ObjectStore
    ledger: Ledger
    launcher_of: LauncherOf
    machine: Machine
    now: Callable[[], datetime]
    clean: Redact


def triage(
    sources: Sources, asked: Asked, *, run_ids: Sequence[str] = (), family: str | None = None
) -> Triage:
    """Return how these runs stand, or all of a family, or all that are not over.

    Writes nothing. Raises UnknownRun, LedgerError and StoreUnavailable.
    """
    wanted, more = find_runs(sources.ledger, sources.store, run_ids, family)
    runs = read_runs(sources.ledger, sources.store, wanted)
    gangs = Gangs(sources.launcher_of, clean=sources.clean)
    reports = {read.run_id: _report(gangs, read) for read in runs}
    machine = sources.machine.look(pid for read in runs for pid in _pids(read))
    heartbeat = read_heartbeat(sources.store)
    daemon_at, now = heartbeat.at if heartbeat else None, sources.now()
    judged = {r.run_id: _judged(r, reports[r.run_id], machine, daemon_at, now) for r in runs}
    lines = tuple(line_of(r, judged[r.run_id], reports[r.run_id][0]) for r in runs)
    devices = sources.machine.devices()
    orphans = orphan_memory(devices, _ranks(runs, machine), _alive(lines))
    room = find_room(devices, asked, orphans)
    return Triage(
        at=format_time(now),
        node=machine.node,
        boot_id=machine.boot_id,
        booted_at=format_time(machine.booted_at) if machine.booted_at else None,
        daemon_at=format_time(daemon_at) if daemon_at else None,
        lines=lines,
        room=room.words,
        plan=propose(lines, room, devices),
        orphan_memory=orphans,
        more=more,
    )


def _open_attempt(read: RunRead) -> AttemptState | None:
    attempt = read.tail.attempt if read.tail is not None else None
    return attempt if attempt is not None and attempt.is_open else None


def _report(gangs: Gangs, read: RunRead) -> tuple[GangReport | None, str | None]:
    attempt = _open_attempt(read)
    if attempt is None:
        return None, None
    return gangs.look(attempt.opened.compute.launcher, read.run_id, attempt.attempt_id)


def _pids(read: RunRead) -> list[int]:
    """Return the pids that the records of the open attempt name."""
    attempt = _open_attempt(read)
    if attempt is None:
        return []
    ranks = attempt.placed.ranks if attempt.placed is not None else ()
    claimed = [claim.body.pid for claim in attempt.claims if claim.body.pid is not None]
    return [*(place.pid for place in ranks if place.pod is None), *claimed]


def _judged(
    read: RunRead,
    looked: tuple[GangReport | None, str | None],
    machine: MachineNow,
    daemon_at: datetime | None,
    now: datetime,
) -> Judged:
    """Return the verdict on a run: on its open attempt, or on where it stands without one."""
    attempt = _open_attempt(read)
    if attempt is None:
        return _without_attempt(read)
    report, problem = looked
    commits = read.tail.commits if read.tail is not None else ()
    seen = Seen(
        run_id=read.run_id,
        attempt=attempt,
        report=report,
        problem=problem,
        heartbeat_at=read.heartbeat_at,
        saved_last=bool(commits) and commits[-1].body.trigger == FINAL,
    )
    return judge(seen, machine, daemon_at, now)


def _without_attempt(read: RunRead) -> Judged:
    """Return where a run stands that has no open attempt, with the record that says so."""
    verdict, why, seq = _between_attempts(read)
    source = "the ledger, training_runs" if seq is None else log_key(run_track(read.run_id), seq)
    sign = Sign(cell="verdict", words=why, source=source)
    return Judged(verdict=verdict, why=why, signs=(sign,))


def _between_attempts(read: RunRead) -> tuple[Verdict, str, int | None]:
    row, tail = read.row, read.tail
    if tail is not None and tail.finished is not None:
        return Verdict.DONE, f"Finished: {tail.finished.why}", tail.head_seq
    if row["state"] in OVER:
        return Verdict.DONE, f"Finished: {row['state_why']}", None
    if tail is None:
        return Verdict.NOT_SEEN, f"Its track cannot be read: {read.problem}", None
    attempt = tail.attempt
    if attempt is None:
        return Verdict.NOT_STARTED, "Declared; no attempt was ever opened.", tail.head_seq
    if tail.refused:
        return Verdict.REFUSED, str(row["state_why"]), tail.head_seq
    due = "what follows is due"
    if row["state"] == RunLifecycle.WAITING:
        due = "it waits for a person"
    elif attempt.reason in HAS_ALL_STEPS:
        due = "its evals, its promotion or its finish are due"
    why = f"Attempt {attempt.attempt_id} ended as {attempt.reason}; {due}."
    return Verdict.ENDED, why, attempt.ended_seq


def _ranks(runs: Sequence[RunRead], machine: MachineNow) -> dict[int, str]:
    """Return pid → attempt of the ranks that live on this machine, as they were recorded."""
    found: dict[int, str] = {}
    for read in runs:
        attempt = _open_attempt(read)
        for place in attempt.placed.ranks if attempt and attempt.placed else ():
            is_it = machine.living.get(place.pid) == place.pid_started
            if is_it and place.boot_id == machine.boot_id and place.pod is None:
                found[place.pid] = attempt_key(read.run_id, attempt.attempt_id if attempt else 0)
    return found


def _alive(lines: Sequence[Line]) -> frozenset[str]:
    return frozenset(
        attempt_key(line.run_id, line.attempt_id)
        for line in lines
        if line.verdict == Verdict.ALIVE.word and line.attempt_id is not None
    )
