"""Every interleaving of what happens to the devices of one machine, with the product's own decisions.

A world is: the pool's leases, which jobs have ended by their own tracks, which processes live, where
each worker stands. Any worker may be killed at any step, any clock may be wrong, and any knowledge of
an end may be old. Two steps are one here: to decide on the pool's track and to append. A decision takes
effect on the very log that it was made on or not at all (`tests/model/explorer.py` shows that of the
appends themselves), so one that waits adds nothing to one that is made when it takes effect. Which job
comes first is left open: what holds here holds under every policy.

Where persons act, they may give a lease back once nothing of its job lives, no worker either. Elsewhere
nobody does: nothing may wait for that.

A job is an attempt, whose gang outlives its workers, or an eval, which one worker at a time is at. A
worker goes through its phases:

    ASKED      a Dagster run was asked for; it looks for its lease, and goes without one
    CONFIRMS   confirms it in the pool's track, or goes
    STARTS     starts the processes, or adopts those that there are
    WATCHES    until they are gone, or somebody wants the end
    KILLS      ends what lives, and sees to it that nothing is started any more
    RECORDS    appends the end to the job's own track
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import IntEnum
from functools import cache
from itertools import combinations, product
from typing import NamedTuple

from tests.bodies import BEGIN
from tests.histories import History
from tracks_dagster.scheduling.leases import (
    LEASE_S_MAX,
    GivenBy,
    Here,
    Holder,
    lease_body,
    why_over,
)
from tracks_dagster.scheduling.model import Demand, Start
from tracks_dagster.track.bodies import DevicesLeased, LeaseConfirmed, LeaseReleased
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidDecision
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.states import pool_state
from tracks_dagster.track.states.pool_state import Lease, PoolState

HERE = Here(node="box", boot_id="boot", machine_id="machine")
NOBODY = GivenBy(store="", work="", by="")


class Phase(IntEnum):
    """Where a worker stands."""

    ASKED = 0
    CONFIRMS = 1
    STARTS = 2
    WATCHES = 3
    KILLS = 4
    RECORDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something that takes devices. is_eval: its processes are a worker's own, and are not adopted."""

    key: str
    count: int
    is_eval: bool = False


class Worker(NamedTuple):
    """One process that works on a job; devices: those that its lease had when it was confirmed."""

    job: int
    phase: Phase
    devices: tuple[str, ...] = ()


class Held(NamedTuple):
    """A lease, as the pool's track has it."""

    key: str
    devices: tuple[str, ...]
    confirmed: bool


class World(NamedTuple):
    """One state of everything, by job where it is a tuple of as many.

    alive: devices that the processes of a job are on; started, barred: whether it ever had processes,
    and whether it never will again. workers: sorted.
    """

    leases: tuple[Held, ...]
    ended: tuple[bool, ...]
    alive: tuple[frozenset[str], ...]
    started: tuple[bool, ...]
    barred: tuple[bool, ...]
    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The product's rules; a mutant replaces one. bars: a close keeps later starts out; ends_left: what
    a lost eval left is ended before its end is recorded; confirms: a start needs a confirmation;
    by_device: a gang gets one device after the other, and keeps those that it has; looks: a person
    gives a lease back only where no worker of its job lives."""

    why_over: Callable[[Holder, Here, object], str | None] = why_over  # type: ignore[assignment]
    check: Callable[[PoolState | None, str, Draft], Draft] = pool_state.check
    bars: bool = True
    ends_left: bool = True
    confirms: bool = True
    by_device: bool = False
    looks: bool = True


@dataclass(slots=True, kw_only=True)
class Report:
    """What a search found; `broken` holds, by property, one world that breaks it."""

    states: int = 0
    steps: int = 0
    broken: dict[str, World] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One search. devices: how many there are; workers: of one job at once. stale: devices are given to
    attempts too that had their gang meanwhile. persons: whether they give leases back."""

    jobs: tuple[Job, ...]
    devices: int = 2
    workers: int = 2
    stale: bool = False
    persons: bool = False
    rules: Rules = Rules()

    def run(self, until: str | None = None) -> Report:
        """Search all that can be reached, or until the property that `until` names is broken.

        A world that breaks one is not followed further.
        """
        report, jobs = Report(), len(self.jobs)
        none: tuple[frozenset[str], ...] = (frozenset(),) * jobs
        start = World((), (False,) * jobs, none, (False,) * jobs, (False,) * jobs, ())
        before: dict[World, list[World]] = {start: []}
        stack, over = [start], []
        while stack and until not in report.broken:
            world = stack.pop()
            if all(world.ended) and not any(world.alive):
                over.append(world)
            for after in self._steps(world):
                report.steps += 1
                if after in before:
                    before[after].append(world)
                    continue
                before[after] = [world]
                if (wrong := self._wrong(after)) is not None:
                    report.broken.setdefault(wrong, after)
                else:
                    stack.append(after)
        report.states = len(before)
        self._judge_ends(before, over, report)
        return report

    def _judge_ends(
        self, before: dict[World, list[World]], over: list[World], report: Report
    ) -> None:
        """Find a world from which not everything can end any more, however lucky it is."""
        can_end, stack = set(over), list(over)
        while stack:
            for world in before[stack.pop()]:
                if world not in can_end:
                    can_end.add(world)
                    stack.append(world)
        broken = set(report.broken.values())
        stuck = next((w for w in before if w not in can_end and w not in broken), None)
        if stuck is not None and not report.broken:
            report.broken["something waits for ever"] = stuck

    def _wrong(self, world: World) -> str | None:
        on = [name for devices in world.alive for name in devices]
        if len(on) > len(set(on)):
            return "two are on one device"
        held = [name for lease in world.leases for name in lease.devices]
        if len(held) > len(set(held)):
            return "two leases hold one device"
        for job, devices in zip(self.jobs, world.alive, strict=True):
            own = [lease.devices for lease in world.leases if lease.key == job.key]
            if not devices <= {name for names in own for name in names}:
                return "something is on a device that the record gives to nobody, or to another"
        return None

    # --- what may happen ---

    def _steps(self, world: World) -> Iterator[World]:
        yield from self._leases(world)
        if self.persons:
            yield from self._releases(world)
        for index in range(len(self.jobs)):
            yield from self._asks(world, index)
            if world.alive[index]:  # it ends by itself, or is killed
                yield _with(world, alive=_set(world.alive, index, frozenset()))
        for number, worker in enumerate(world.workers):
            others = world.workers[:number] + world.workers[number + 1 :]
            yield world._replace(workers=others)  # killed
            for after, moved in self._moves(world, worker):
                kept = others if moved is None else (*others, moved)
                yield after._replace(workers=tuple(sorted(kept)))

    def _asks(self, world: World, index: int) -> Iterator[World]:
        """A daemon asks for a worker: one that starts or adopts, or one that closes what is lost."""
        job = self.jobs[index]
        if sum(worker.job == index for worker in world.workers) >= self.workers:
            return
        phases = []
        if not world.ended[index] and self._has_its_devices(world, job):
            phases.append(Phase.ASKED)
        had_its_gang = world.started[index] or world.barred[index]
        is_gone = had_its_gang and not world.alive[index]
        if not world.ended[index] and not job.is_eval and is_gone:
            phases.append(Phase.KILLS)  # the watcher: it is gone, and nobody supervises it
        if not world.ended[index] and job.is_eval and not self._is_locked(world, index):
            phases.append(Phase.KILLS)  # its Dagster run is over, whether its processes live or not
        for phase in phases:
            workers = (*world.workers, Worker(index, phase))
            yield world._replace(workers=tuple(sorted(workers)))

    def _has_its_devices(self, world: World, job: Job) -> bool:
        own = [lease for lease in world.leases if lease.key == job.key]
        return sum(len(lease.devices) for lease in own) >= job.count

    def _moves(self, world: World, worker: Worker) -> Iterator[tuple[World, Worker | None]]:
        index, job = worker.job, self.jobs[worker.job]
        if worker.phase in (Phase.CONFIRMS, Phase.STARTS, Phase.WATCHES) and not job.is_eval:
            yield (
                world,
                worker._replace(phase=Phase.KILLS),
            )  # a person wants the end, or the scheduler
        match worker.phase:
            case Phase.ASKED if job.is_eval and self._is_locked(world, index):
                yield world, None
            case Phase.ASKED:
                has_lease = any(lease.key == job.key for lease in world.leases)
                goes_on = has_lease and not world.ended[index]
                if goes_on and job.is_eval and self.rules.ends_left:  # what a killed worker left
                    world = _with(world, alive=_set(world.alive, index, frozenset()))
                yield world, worker._replace(phase=Phase.CONFIRMS) if goes_on else None
            case Phase.CONFIRMS:
                yield self._confirmed(world, worker)
            case Phase.STARTS:
                yield self._started(world, worker), worker._replace(phase=Phase.WATCHES)
            case Phase.WATCHES:
                if world.ended[index]:
                    yield world, None
                elif not world.alive[index]:
                    yield world, worker._replace(phase=Phase.KILLS)
            case Phase.KILLS:
                yield self._killed(world, index), worker._replace(phase=Phase.RECORDS)
            case Phase.RECORDS:
                yield world._replace(ended=_set(world.ended, index, True)), None

    def _is_locked(self, world: World, index: int) -> bool:
        """Whether a worker of the eval lives that holds its lock, from its first step to the record."""
        return any(w.job == index and w.phase > Phase.ASKED for w in world.workers)

    def _started(self, world: World, worker: Worker) -> World:
        """At most one gang of an attempt, ever; an eval again, after what is left of it was ended."""
        index, job = worker.job, self.jobs[worker.job]
        if world.barred[index] or (world.started[index] and not job.is_eval):
            return world
        return _with(
            world,
            alive=_set(world.alive, index, frozenset(worker.devices)),
            started=_set(world.started, index, True),
        )

    def _killed(self, world: World, index: int) -> World:
        if self.jobs[index].is_eval and not self.rules.ends_left:
            return world
        after = _with(world, alive=_set(world.alive, index, frozenset()))
        if not self.rules.bars or self.jobs[index].is_eval:
            return after
        return after._replace(barred=_set(after.barred, index, True))

    # --- decisions on the pool's track ---

    def _confirmed(self, world: World, worker: Worker) -> tuple[World, Worker | None]:
        key = self.jobs[worker.job].key
        found = next((lease for lease in world.leases if lease.key == key), None)
        if found is None:
            return world, None
        if not self.rules.confirms:
            return world, worker._replace(phase=Phase.STARTS, devices=found.devices)
        state = _state_of(world.leases)
        assert state is not None
        lease = state.lease_of(key)
        assert lease is not None
        body = LeaseConfirmed(pool=HERE.pool, lease_seq=lease.seq, dagster_run_id="d")
        after = self._appended(state, Draft(uid="u", kind=Kind.LEASE_CONFIRMED, body=to_json(body)))
        return (
            world._replace(leases=after),
            worker._replace(phase=Phase.STARTS, devices=lease.body.devices),
        )

    def _leases(self, world: World) -> Iterator[World]:
        """A daemon of any home leases to any job, on what it may believe of those that have leases."""
        state = _state_of(world.leases)
        standing = state.leases if state is not None else ()
        beliefs = [self._beliefs(world, lease) for lease in standing]
        for chosen in product(*beliefs):
            over = [lease for lease, is_over in zip(standing, chosen, strict=True) if is_over]
            holding = [each for each in standing if each not in over]
            taken = {name for lease in holding for name in lease.body.devices}
            free = [name for name in _names(self.devices) if name not in taken]
            for index, job in enumerate(self.jobs):
                if self._is_to_start(world, index):
                    yield from self._given(world, state, job, free, holding, over)

    def _releases(self, world: World) -> Iterator[World]:
        """A person gives back what is leased to a job of which nothing lives."""
        state = _state_of(world.leases)
        for lease in state.leases if state is not None else ():
            index = next(i for i, job in enumerate(self.jobs) if job.key == lease.body.key)
            has_workers = any(worker.job == index for worker in world.workers)
            if world.alive[index] or (has_workers and self.rules.looks):
                continue
            body = LeaseReleased(pool=HERE.pool, lease_seq=lease.seq, by="ann", why="it is gone")
            draft = Draft(uid="u", kind=Kind.LEASE_RELEASED, body=to_json(body))
            yield world._replace(leases=self._appended(state, draft))

    def _is_to_start(self, world: World, index: int) -> bool:
        """Whether a daemon may lease to the job: as far as it knows, nothing of it has started."""
        if world.ended[index]:
            return False
        had_its_gang = world.started[index] or world.barred[index]
        return self.stale or self.jobs[index].is_eval or not had_its_gang

    def _given(
        self,
        world: World,
        state: PoolState | None,
        job: Job,
        free: list[str],
        holding: list[Lease],
        over: list[Lease],
    ) -> Iterator[World]:
        own = [lease for lease in holding if lease.body.key == job.key]
        if own and not self.rules.by_device:
            return
        if self.rules.by_device:  # a fault: a record for each device, until there are enough
            has = sum(len(lease.body.devices) for lease in own)
            sizes = [1] if has < job.count else []
        else:
            sizes = [job.count]
        for size in sizes:
            for devices in combinations(free, size):
                start = Start(key=job.key, devices=devices, why="")
                demand = Demand(key=job.key, count=size)
                body = lease_body(start, demand, HERE, NOBODY, over)
                draft = Draft(uid="u", kind=Kind.DEVICES_LEASED, body=to_json(body))
                after = self._appended(state, draft)
                if self.rules.by_device:  # what it has got it keeps
                    after = tuple(held._replace(confirmed=True) for held in after)
                yield world._replace(leases=after)

    def _beliefs(self, world: World, lease: Lease) -> tuple[bool, ...]:
        """Whether the lease is over, by any clock and by any knowledge of its run, old or new."""
        index = next(i for i, job in enumerate(self.jobs) if job.key == lease.body.key)
        has_ended = world.ended[index]
        is_gone = not world.alive[index] and (world.started[index] or world.barred[index])
        holders = [Holder(lease=lease, state=_run(lease.body.key, False))]
        if has_ended:
            holders.append(Holder(lease=lease, state=_run(lease.body.key, True)))
        if is_gone and not self.jobs[index].is_eval:
            holders.append(replace(holders[0], is_gone=True))
        nows = (lease.at, lease.at + timedelta(seconds=2 * LEASE_S_MAX))
        found = {
            self.rules.why_over(holder, HERE, now) is not None for holder in holders for now in nows
        }
        return tuple(sorted(found))

    def _appended(self, state: PoolState | None, draft: Draft) -> tuple[Held, ...]:
        """Return the leases after the record; one that the product refuses changes nothing."""
        try:
            self.rules.check(state, HERE.pool, draft)
        except InvalidDecision:
            return _held(state)
        return _held(
            pool_state.apply(state, _record(draft, 0 if state is None else state.head.seq + 1))
        )


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"pretended:{number}" for number in range(count))


def _record(draft: Draft, seq: int) -> Record:
    return Record(
        seq=seq,
        uid=draft.uid,
        at=BEGIN,
        kind=draft.kind,
        attempt_id=None,
        prev_sha256=None,
        body=draft.body,
        sha256="",
    )


@cache
def _state_of(leases: tuple[Held, ...]) -> PoolState | None:
    """Return the product's state with these leases, numbered again: no decision rests on numbers."""
    state: PoolState | None = None
    for lease in leases:
        body = DevicesLeased(
            pool=HERE.pool,
            key=lease.key,
            run_id="",
            devices=lease.devices,
            store="",
            why="",
            by="",
            boot_id=HERE.boot_id,
            machine_id=HERE.machine_id,
        )
        draft = Draft(uid="u", kind=Kind.DEVICES_LEASED, body=to_json(body))
        leased = pool_state.apply(state, _record(draft, 0 if state is None else state.head.seq + 1))
        state = leased
        if lease.confirmed:
            confirmed = LeaseConfirmed(
                pool=HERE.pool, lease_seq=leased.head.seq, dagster_run_id="d"
            )
            draft = Draft(uid="u", kind=Kind.LEASE_CONFIRMED, body=to_json(confirmed))
            state = pool_state.apply(leased, _record(draft, leased.head.seq + 1))
    return state


def _held(state: PoolState | None) -> tuple[Held, ...]:
    return tuple(
        Held(lease.body.key, lease.body.devices, lease.confirmed_at is not None)
        for lease in (state.leases if state is not None else ())
    )


@cache
def _run(key: str, has_ended: bool) -> object:
    """Return a run's state in which what `key` names is open, or has ended."""
    run_id = key.partition("/")[0]
    history = History(run_id).declare().open().supervise().place()
    if "@" not in key:
        return (history.end("unknown") if has_ended else history).state
    history.restore().commit(40)
    history.open_eval(history.state.checkpoints[-1].ref)
    if has_ended:
        history.end_eval(history.state.evals[-1].opened)
    return history.state


def _with(world: World, **changes: object) -> World:
    return world._replace(**changes)  # type: ignore[arg-type]


def _set(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])
