"""The truth after a reboot, a lost daemon or a lost cluster: the state of every unfinished run.

From tracks, store, this machine and the cluster, and without a daemon. Reads only; what is done about
it is `triage_apply`'s. The verdicts are `recovery.triage`'s, the order of restarts that of the queue,
`scheduling.rules`.
"""

from __future__ import annotations

import time
from collections import Counter
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
from tracks_dagster.scheduling.devices_given import CPU
from tracks_dagster.scheduling.model import LATER, NEVER, Demand, Device, Plan, Running, Waits
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.scheduling.rules import PlanContext, plan
from tracks_dagster.track.names import LOCAL, AttemptRef, attempt_key, run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.evals import HAS_ALL_STEPS
from tracks_dagster.track.states.lifecycle import FINISHED_AS
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.track.track import log_key
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wings.triage.effects.line import Line, line_of
from tracks_dagster.wings.triage.effects.reading import (
    Daemon,
    Gangs,
    RunRead,
    daemon_of,
    find_runs,
    read_runs,
    unread,
)
from tracks_dagster.wings.triage.judging import AttemptObservation, Judgement, Sign, Verdict, judge

OVER = frozenset(state.value for state in FINISHED_AS.values())
GPU = "gpu"  # the kind of an accelerator
FINAL = "final"  # the trigger of the save after the last step


@dataclass(frozen=True, slots=True, kw_only=True)
class Triage:
    """The answer. lines: one a run, oldest declaration first; plan: of the queue, by run.

    room: the devices that the plan is made for, in words; devices: what this machine has; more: whether
    there are more runs than `reading.RUNS_MAX`, which are not in it. unfinished_more: whether there are
    more that are not over, which were not looked at and may hold devices that the plan gives away.
    took_s: from the question to the answer.
    """

    at: str
    node: str
    boot_id: str
    booted_at: str | None
    daemon: Daemon
    lines: tuple[Line, ...]
    room: str
    plan: Plan
    devices: Devices
    orphan_memory: tuple[OrphanMemory, ...]
    more: bool
    unfinished_more: bool
    took_s: float

    def line(self, run_id: str) -> Line:
        """Return the line of a run that is in it."""
        return next(line for line in self.lines if line.run_id == run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What triage looks at: the store and its ledger, the launchers, the machine, and the clock.

    scheduling: the daemon's policy of the queue. clock_s: of seconds that never go back.
    """

    store: ObjectStore
    ledger: Ledger
    launcher_of: LauncherOf
    machine: Machine
    now: Callable[[], datetime]
    clean: Redact
    scheduling: SchedulingPolicy
    clock_s: Callable[[], float] = time.monotonic


def triage(
    sources: Sources, asked: GivenDevices, *, run_ids: Sequence[str] = (), family: str | None = None
) -> Triage:
    """Return the state of these runs, or of a family, or of all that are not over.

    Runs that were not asked for are looked at too: they may hold what a restart would take. Writes
    nothing. Raises UnknownRun, LedgerError and StoreUnavailable.
    """
    began_s = sources.clock_s()
    wanted, more = find_runs(sources.ledger, sources.store, run_ids, family)
    unfinished, unfinished_more = wanted, more
    if run_ids or family is not None:
        unfinished, unfinished_more = find_runs(sources.ledger, sources.store, (), None)
    asked_for = list(dict.fromkeys((*wanted, *unfinished)))
    runs = list(map(_sound, read_runs(sources.ledger, sources.store, asked_for)))
    gangs = Gangs(sources.launcher_of, clean=sources.clean)
    reports = {read.run_id: _report(gangs, read) for read in runs}
    machine = sources.machine.look(pid for read in runs for pid in _pids(read))
    heartbeat, now = read_heartbeat(sources.store), sources.now()
    daemon_at, daemon = heartbeat.at if heartbeat else None, daemon_of(heartbeat, now)
    everyone = tuple(_line(r, reports[r.run_id], machine, daemon_at, now) for r in runs)
    devices, ranks = sources.machine.devices(), _ranks(runs, machine)
    lines = tuple(_with_memory(e, devices, ranks) for e in everyone if e.run_id in set(wanted))
    others = [line for line in everyone if line.run_id not in set(wanted)]
    orphans = orphan_memory(devices, ranks, _alive(everyone))
    room = find_room(devices, asked, orphans)
    plan = propose(lines, room, devices, sources.scheduling, others)
    plan = _as_queued(plan, lines, daemon)
    return Triage(
        at=format_time(now),
        node=machine.node,
        boot_id=machine.boot_id,
        booted_at=format_time(machine.booted_at) if machine.booted_at else None,
        daemon=daemon,
        lines=lines,
        room=room.words,
        plan=plan,
        devices=devices,
        orphan_memory=orphans,
        more=more,
        unfinished_more=unfinished_more,
        took_s=round(sources.clock_s() - began_s, 3),
    )


def _sound(read: RunRead) -> RunRead:
    """Return the run, or what is left of it where its open attempt cannot be looked at."""
    try:
        _pids(read)
    except Exception as error:  # noqa: BLE001 - of that run alone
        return unread(read.row, problem_of(error))
    return read


def _line(
    read: RunRead,
    looked: tuple[GangReport | None, str | None],
    machine: MachineNow,
    daemon_at: datetime | None,
    now: datetime,
) -> Line:
    """Return the line of a run; where nobody can judge it, that it was not seen and why."""
    try:
        return line_of(read, _judged(read, looked, machine, daemon_at, now), looked[0])
    except Exception as error:  # noqa: BLE001 - of that run alone
        rest = unread(read.row, problem_of(error))
        return line_of(rest, _without_attempt(rest), None)


def _open_attempt(read: RunRead) -> AttemptState | None:
    attempt = read.tail.attempt if read.tail is not None else None
    return attempt if attempt is not None and attempt.is_open else None


def _report(gangs: Gangs, read: RunRead) -> tuple[GangReport | None, str | None]:
    attempt = _open_attempt(read)
    if attempt is None:
        return None, None
    ref = AttemptRef(read.run_id, attempt.attempt_id)
    return gangs.look(attempt.opened.compute.launcher, ref)


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
) -> Judgement:
    """Return the verdict on a run: on its open attempt, or on the run without one."""
    attempt = _open_attempt(read)
    if attempt is None:
        return _without_attempt(read)
    report, problem = looked
    commits = read.tail.commits if read.tail is not None else ()
    seen = AttemptObservation(
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
    stop = read.asked_stop
    return None if stop is None else f"{stop.by} asked for a {stop.mode} ({stop.why})"


def _without_attempt(read: RunRead) -> Judgement:
    """Return the verdict on a run without an open attempt, with the record that shows it."""
    verdict, why, seq = _between_attempts(read)
    source = "the ledger, training_runs" if seq is None else log_key(run_track(read.run_id), seq)
    sign = Sign(cell="verdict", words=why, source=source)
    return Judgement(verdict=verdict, why=why, signs=(sign,))


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
        ending = "" if stop is None else f" {stop}: the run is about to be finished."
        return Verdict.NOT_STARTED, f"Declared; no attempt was ever opened.{ending}", 0
    if tail.refusal is not None and stop is None:
        why = f"{tail.refusal.decision} {tail.refusal.what_to_do}"
        return Verdict.REFUSED, why, tail.refusal_seq
    due = "what follows is due"
    retry = f'`tracks retry {read.run_id} --why "…"` continues it'
    if stop is not None:
        is_over = read.asked_stop is not None and read.asked_stop.mode == "stop"
        due = stop if is_over else f"{stop}; {retry}"
    elif attempt.reason in HAS_ALL_STEPS:
        due = "its evals, its promotion or its finish are due"
    elif attempt.reason is TerminationReason.USER_CANCELLED:
        due = f"it waits for a person: {retry}"
    why = f"Attempt {attempt.attempt_id} ended as {attempt.reason}; {due}."
    return Verdict.ENDED, why, attempt.ended_seq


def _with_memory(line: Line, devices: Devices, ranks: Mapping[int, str]) -> Line:
    """Add the device memory that the line's own ranks use now."""
    own = line.attempt_id is not None and attempt_key(line.run_id, line.attempt_id)
    memory = tuple(
        Sign(
            cell="memory",
            words=f"pid {each.pid} holds {describe_size(each.used_bytes)} of {each.uuid} now",
            source="nvidia-smi",
            data={"pid": each.pid, "device": each.uuid, "used_bytes": each.used_bytes},
        )
        for each in devices.holders
        if own and ranks.get(each.pid) == own
    )
    return replace(line, signs=(*line.signs, *memory))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDevices:
    """The accelerators that a person gave. slots: ranks at once on CPUs.

    hides_gpus: whether TRACKS_DEVICES gives these slots and nothing else.
    """

    devices: int | None = None
    memory_bytes: int | None = None
    slots: int
    hides_gpus: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The devices that a plan is made for, and what they are in words.

    This machine's accelerators: those given (`--devices`, `--device-memory`), else what `nvidia-smi`
    lists; for runs on CPUs the slots that there are. Runs on a cluster are not
    planned and take nothing here: it has its own queue.
    """

    devices: tuple[Device, ...]
    words: str

    def kind_of(self, line: Line) -> str:
        """Return the kind of device that a run takes: the one it ran on; before that what it asks for,
        and an accelerator where there is one, which a rank takes unasked."""
        if line.accelerator is not None:
            return CPU if line.accelerator == CPU else GPU
        has_gpus = any(device.kind == GPU for device in self.devices)
        return GPU if has_gpus or line.device_class != CPU else CPU


def find_room(found: Devices, asked: GivenDevices, orphans: Sequence[OrphanMemory] = ()) -> Room:
    """Return the devices to plan for. Memory that orphans hold is not there until they are gone."""
    slots = [Device(name=f"{CPU}:{number}", kind=CPU) for number in range(asked.slots)]
    gpus = _gpus(found, asked, orphans)
    words = f"{asked.slots} CPU slots"
    if asked.devices is not None:
        words = f"{_format(asked.devices, asked.memory_bytes, 'as given')}, and {words}"
    elif asked.hides_gpus:
        words = f"{asked.slots} slots by TRACKS_DEVICES"
    elif gpus:
        words = f"{_format(len(gpus), gpus[0].memory_bytes, 'by nvidia-smi')}, and {words}"
    elif found.problem:
        words = f"{words}; accelerators are not known: {found.problem}"
    else:
        words = f"no accelerator on this machine, and {words}"
    return Room(devices=(*gpus, *slots), words=words)


def _gpus(found: Devices, asked: GivenDevices, orphans: Sequence[OrphanMemory]) -> list[Device]:
    memory = asked.memory_bytes
    if asked.devices is not None:
        names = [f"device {number}" for number in range(1, asked.devices + 1)]
        return [Device(name=name, kind=GPU, memory_bytes=memory) for name in names]
    if asked.hides_gpus:
        return []
    used: Counter[str] = Counter()
    for each in orphans:
        if each.attempt is None:  # an orphaned attempt has its place in the plan
            used[each.uuid] += each.used_bytes or 0
    return [
        Device(
            name=gpu.uuid,
            kind=GPU,
            memory_bytes=None if total is None else max(0, total - used[gpu.uuid]),
        )
        for gpu in found.gpus
        for total in (memory if memory is not None else gpu.total_bytes,)
    ]


def propose(
    lines: Sequence[Line],
    room: Room,
    found: Devices,
    policy: SchedulingPolicy,
    others: Sequence[Line] = (),
) -> Plan:
    """Return in which order those of `lines` that are due start, where, and when that can be expected.

    others: were not named, and keep what they have of this machine anyway.
    """
    mine = [line for line in lines if line.launcher == LOCAL]
    theirs = [line for line in others if line.launcher == LOCAL]
    proposed = plan(
        [_demand(line, order, room) for order, line in enumerate(mine) if line.is_due],
        _running([line for line in (*mine, *theirs) if _has_devices(line)], room, found),
        room.devices,
        PlanContext(policy=policy, now_s=float(len(mine))),
    )
    if any(device.kind == GPU for device in room.devices):
        return proposed
    return replace(proposed, waits=tuple(map(_with_hint, proposed.waits)))


def _as_queued(plan: Plan, lines: Sequence[Line], daemon: Daemon) -> Plan:
    """Replace what was planned for an attempt in the daemon's queue by what that queue says: it also
    knows leases, quarantines and strangers."""
    queue = {
        line.run_id: daemon.queue[key]
        for line in lines
        if line.attempt_id is not None
        and (key := attempt_key(line.run_id, line.attempt_id)) in daemon.queue
    }
    waits = tuple(
        Waits(key=key, starts=LATER, why=queue[key]) for key in plan.order if key in queue
    )
    return replace(
        plan,
        starts=tuple(each for each in plan.starts if each.key not in queue),
        waits=(*waits, *(each for each in plan.waits if each.key not in queue)),
    )


def _with_hint(waits: Waits) -> Waits:
    """Add what to give where this machine's accelerators are not known."""
    if waits.starts != NEVER:
        return waits
    return replace(waits, why=f"{waits.why}: give --devices and --device-memory")


def _has_devices(line: Line) -> bool:
    return line.verdict in (Verdict.ALIVE.word, Verdict.ORPHANED.word)


def _demand(line: Line, order: int, room: Room) -> Demand:
    """Return what a run wants. order: its place by declaration, in place of when it began to wait."""
    kind = room.kind_of(line)
    return Demand(
        key=line.run_id,
        count=line.ranks,
        kind=kind,
        memory_bytes=None if kind == CPU else line.memory_bytes,
        workload_class=line.workload_class or "",
        team=line.team or "",
        owner=line.owner or "",
        since_s=float(order),
        work_s=line.left_s,
        is_interrupted=line.standing != "queued",
    )


def _running(lines: Sequence[Line], room: Room, found: Devices) -> list[Running]:
    """Give those that run the devices that they hold, by their pids, else the ones least taken: what a
    person gave has no name that a pid could be found on."""
    taken: Counter[str] = Counter({device.name: 0 for device in room.devices})
    running = []
    for order, line in enumerate(lines):
        demand = _demand(line, order, room)
        pids = {pid for sign in line.signs for pid in _living_pids(sign.data)}
        holds = [each for each in found.holders if each.pid in pids] if demand.kind == GPU else []
        names = [each.uuid for each in holds if each.uuid in taken]
        if not names:
            names = [d.name for d in room.devices if d.kind == demand.kind]
            names = sorted(names, key=lambda name: taken[name])[: demand.count]
        taken.update(names)
        sizes = [each.used_bytes for each in holds if each.used_bytes is not None]
        needs = replace(demand, memory_bytes=max(sizes, default=demand.memory_bytes))
        running.append(Running(demand=needs, devices=tuple(names), left_s=line.left_s))
    return running


def _living_pids(data: object) -> set[int]:
    """Return the pids of the ranks that live, from a verdict's evidence."""
    ranks = data.get("ranks", ()) if isinstance(data, dict) else ()
    return {rank["pid"] for rank in ranks if rank["lives"]}


def _format(count: int, memory_bytes: int | None, how: str) -> str:
    memory = "" if memory_bytes is None else f" of {memory_bytes / 2**30:.0f} GiB"
    return f"{count} device{'s' if count != 1 else ''}{memory} {how}"
