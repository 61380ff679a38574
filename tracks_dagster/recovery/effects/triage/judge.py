"""The truth after a reboot, a lost daemon or a lost cluster: how every run that is not over stands.

From tracks, store, this machine and the cluster, and without a daemon. Reads only; what is done about
it is `apply`'s. The verdicts are `recovery.triage`'s, the order of restarts `recovery.restart_plan`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.attempts.effects.heartbeat import read_heartbeat
from tracks_dagster.attempts.machine import (
    Devices,
    MachineNow,
    OrphanMemory,
    describe_size,
    orphan_memory,
)
from tracks_dagster.attempts.ports import GangReport, LauncherOf, Machine
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.recovery.effects.triage.line import Line, line_of
from tracks_dagster.recovery.effects.triage.reading import (
    Daemon,
    Gangs,
    RunRead,
    daemon_of,
    find_runs,
    read_runs,
)
from tracks_dagster.recovery.effects.triage.room import Asked, find_room, kept_by_nobody, propose
from tracks_dagster.recovery.restart_plan import Planned
from tracks_dagster.recovery.signs import Seen, Sign
from tracks_dagster.recovery.triage import Judged, Verdict, judge
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.evals import HAS_ALL_STEPS
from tracks_dagster.track.states.lifecycle import FINISHED_AS
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.track.track import log_key, run_track

OVER = frozenset(state.value for state in FINISHED_AS.values())
FINAL = "final"  # the trigger of the save after the last step


@dataclass(frozen=True, slots=True, kw_only=True)
class Triage:
    """The answer. lines: one a run, the one declared first first; plan: in the order proposed.

    room: the devices that the plan is made for, in words; devices: what this machine has; more: whether
    there are more runs than `reading.RUNS_MAX`, which are not in it. unfinished_more: whether there are
    more that are not over, which were not looked at and may hold devices that the plan gives away.
    unkept: the runs that the plan starts later, or nowhere, and that a daemon opens all the same,
    because it knows no devices.
    """

    at: str
    node: str
    boot_id: str
    booted_at: str | None
    daemon: Daemon
    lines: tuple[Line, ...]
    room: str
    plan: tuple[Planned, ...]
    unkept: tuple[str, ...]
    devices: Devices
    orphan_memory: tuple[OrphanMemory, ...]
    more: bool
    unfinished_more: bool

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

    Runs that were not asked for are looked at too: they may hold what a restart would take. Writes
    nothing. Raises UnknownRun, LedgerError and StoreUnavailable.
    """
    wanted, more = find_runs(sources.ledger, sources.store, run_ids, family)
    unfinished, unfinished_more = wanted, more
    if run_ids or family is not None:
        unfinished, unfinished_more = find_runs(sources.ledger, sources.store, (), None)
    runs = read_runs(sources.ledger, sources.store, list(dict.fromkeys((*wanted, *unfinished))))
    gangs = Gangs(sources.launcher_of, clean=sources.clean)
    reports = {read.run_id: _report(gangs, read) for read in runs}
    machine = sources.machine.look(pid for read in runs for pid in _pids(read))
    heartbeat = read_heartbeat(sources.store)
    daemon_at, now = heartbeat.at if heartbeat else None, sources.now()
    judged = {r.run_id: _judged(r, reports[r.run_id], machine, daemon_at, now) for r in runs}
    everyone = tuple(line_of(r, judged[r.run_id], reports[r.run_id][0]) for r in runs)
    devices, ranks = sources.machine.devices(), _ranks(runs, machine)
    lines = tuple(_holding(e, devices, ranks) for e in everyone if e.run_id in set(wanted))
    others = [line for line in everyone if line.run_id not in set(wanted)]
    orphans = orphan_memory(devices, ranks, _alive(everyone))
    room = find_room(devices, asked, orphans)
    plan = propose(lines, room, devices, others)
    return Triage(
        at=format_time(now),
        node=machine.node,
        boot_id=machine.boot_id,
        booted_at=format_time(machine.booted_at) if machine.booted_at else None,
        daemon=daemon_of(heartbeat, now),
        lines=lines,
        room=room.words,
        plan=plan,
        unkept=kept_by_nobody(plan, lines, room),
        devices=devices,
        orphan_memory=orphans,
        more=more,
        unfinished_more=unfinished_more,
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
    judged = judge(seen, machine, daemon_at, now)
    if (stop := _describe_stop(read)) is None:
        return judged
    return replace(judged, why=f"{judged.why} {stop[0].upper()}{stop[1:]}.")


def _describe_stop(read: RunRead) -> str | None:
    stop = read.held_by
    return None if stop is None else f"{stop.by} asked for a {stop.mode} ({stop.why})"


def _without_attempt(read: RunRead) -> Judged:
    """Return where a run stands that has no open attempt, with the record that says so."""
    verdict, why, seq = _between_attempts(read)
    source = "the ledger, training_runs" if seq is None else log_key(run_track(read.run_id), seq)
    sign = Sign(cell="verdict", words=why, source=source)
    return Judged(verdict=verdict, why=why, signs=(sign,))


def _between_attempts(read: RunRead) -> tuple[Verdict, str, int | None]:
    row, tail = read.row, read.tail
    if tail is not None and tail.finished is not None:
        return Verdict.DONE, f"Finished: {tail.finished.why}", tail.finished_seq
    if row["state"] in OVER:
        return Verdict.DONE, f"Finished: {row['state_why']}", None
    if tail is None:
        return Verdict.NOT_SEEN, f"Its track cannot be read: {read.problem}", None
    attempt, stop = tail.attempt, _describe_stop(read)
    if attempt is None:
        held = "" if stop is None else f" {stop}: the run is about to be finished."
        return Verdict.NOT_STARTED, f"Declared; no attempt was ever opened.{held}", 0
    if tail.refusal is not None and stop is None:
        why = f"{tail.refusal.decision} {tail.refusal.what_to_do}"
        return Verdict.REFUSED, why, tail.refusal_seq
    due = "what follows is due"
    retry = f'`tracks retry {read.run_id} --why "…"` goes on'
    if stop is not None:
        is_over = read.held_by is not None and read.held_by.mode == "stop"
        due = stop if is_over else f"{stop}; {retry}"
    elif attempt.reason in HAS_ALL_STEPS:
        due = "its evals, its promotion or its finish are due"
    elif attempt.reason is TerminationReason.USER_CANCELLED:
        due = f"it waits for a person: {retry}"
    why = f"Attempt {attempt.attempt_id} ended as {attempt.reason}; {due}."
    return Verdict.ENDED, why, attempt.ended_seq


def _holding(line: Line, devices: Devices, ranks: Mapping[int, str]) -> Line:
    """Add what the line's own ranks hold of devices now."""
    own = line.attempt_id is not None and attempt_key(line.run_id, line.attempt_id)
    held = tuple(
        Sign(
            cell="memory",
            words=f"pid {each.pid} holds {describe_size(each.used_bytes)} of {each.uuid} now",
            source="nvidia-smi",
            data={"pid": each.pid, "device": each.uuid, "used_bytes": each.used_bytes},
        )
        for each in devices.holders
        if own and ranks.get(each.pid) == own
    )
    return replace(line, signs=(*line.signs, *held))


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
