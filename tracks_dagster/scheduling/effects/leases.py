"""The devices of this machine and the track that says who has them: find, lease, confirm.

A lease is a decision at exactly the next seq of the pool's track, made on who holds what and on the
rules of the queue. Two sensors, two daemons or two homes that decide at once race for one record: one
of them has it, the others look again. Killed anywhere, nothing is left that somebody has to clean up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.scheduling.leases import (
    LEASE_S_MAX,
    NAMED_MAX,
    Found,
    GivenBy,
    Here,
    Holder,
    all_lost,
    demand_of,
    device_environment,
    find_name,
    has_lost,
    lease_body,
    two_machines,
    why_over,
    without_quarantined,
)
from tracks_dagster.scheduling.model import (
    LATER,
    Demand,
    Device,
    Move,
    Plan,
    Running,
    Start,
    Waits,
)
from tracks_dagster.track.bodies import DevicesLeased, HeldDevices, LeaseConfirmed, LeaseReleased
from tracks_dagster.track.errors import (
    InvalidDecision,
    InvalidInput,
    NoDevices,
    TrackBroken,
)
from tracks_dagster.track.records import Draft, Kind, Record, format_time
from tracks_dagster.track.states.pool_state import Lease, NodeState, PoolState
from tracks_dagster.track.text.safe_text import check_words
from tracks_dagster.track.unforeseen import problem_of

LEASES_MAX = 200  # of one tick; the next one continues

# Says what follows now: given who waits, who has devices, and the devices.
Decide = Callable[[Sequence[Demand], Sequence[Running], Sequence[Device]], Plan]
# Says more of a run that has devices than its lease does: how long it still takes, what a move loses.
Describe = Callable[[Holder, Running], Running]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What came of sharing out the devices. wanted: the keys of all that is to start; seqs: of these
    the ones that may start now, with the seqs of their leases.

    moves: what has to make room. waits: what has no lease, and why. problems: in words, what stays
    leased because nobody can tell whether it has ended.
    """

    wanted: frozenset[str] = frozenset()
    seqs: Mapping[str, int] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    waits: tuple[Waits, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def leased(self) -> frozenset[str]:
        """The keys of what may start now."""
        return frozenset(self.seqs)

    def may_start(self, key: str) -> bool:
        """Whether it has its devices, or needs none of this machine."""
        return key in self.leased or key not in self.wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLine:
    """One device of this machine, for people. model: empty where it has none; memory_bytes: None where
    nobody knows. islands: it reaches the other devices of one fast, the fastest link first. held_by:
    the keys of those that it is leased to; since: of the first of them. free_in_s: until the last of
    them ends, by its pace, None where nobody knows. strikes: those that no release forgave.
    quarantined_until: None outside of one. why: it is not given out, or of the lease.
    """

    device: str
    model: str
    memory_bytes: int | None
    islands: tuple[str, ...]
    held_by: tuple[str, ...]
    since: str | None
    free_in_s: float | None
    strikes: int
    quarantined_until: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePool:
    """One machine's devices. tracks: of the store that has the pool's track; runs: the tracks of the
    store at a URL, this home's or another's; store: the URL of this home's, whose runs are leased to;
    work: the folder of its gangs. is_gone: whether nothing of the gang that has a lease lives any more;
    lives: whether it is known to live. Both are False where nobody can tell.

    look: which devices there are, and which of those that nobody leased a stranger holds; bounded.
    gone: which of these devices are not on the machine any more, as far as anybody can tell; bounded.
    hides_gpus: whether what is leased must see no accelerator, though there may be some.
    first: the seq of the lease from which on `find` and `confirm` read the track, as `since` says.
    asked_to_save: when this process asked whom for a checkpoint.
    """

    here: Here
    tracks: Tracks
    runs: Callable[[str], Tracks]
    store: str
    look: Callable[[frozenset[str]], Found]
    work: str = ""
    gone: Callable[[Sequence[str]], tuple[str, ...]] = lambda names: ()
    is_gone: Callable[[DevicesLeased], bool] = lambda body: False
    lives: Callable[[DevicesLeased], bool] = lambda body: False
    hides_gpus: bool = False
    first: int = 0
    asked_to_save: dict[str, datetime] = field(default_factory=dict, compare=False)

    def since(self, seq: int, key: str) -> DevicePool:
        """Return the same pool, for a process that starts what has the lease of that seq.

        It reads nothing before the lease: a track grows by two records with each start, and a bucket
        gives some hundred a second. The pool as it is where the record is not a lease of `key` that
        holds. Raises StoreUnavailable.
        """
        with suppress(TrackBroken):
            state = self.tracks.find_pool(self.here.pool, first=seq)
            if state is not None and state.lease_of(key) is not None:
                return replace(self, first=seq)
        return self

    def find(self, key: str) -> Lease | None:
        """Return the lease of that attempt, or attempt at an eval; None where it has none.

        Raises TracksError where the pool's track cannot be read.
        """
        state = self.tracks.find_pool(self.here.pool, first=self.first)
        return None if state is None else state.lease_of(key)

    def confirm(self, key: str, dagster_run_id: str) -> Lease | None:
        """Record that what the lease of `key` was given for starts now; return the lease.

        None where it has none any more, or a device of it is gone: then nothing may start. Once it
        returns one, no time ends the lease. Idempotent. Raises TracksError where the store cannot be
        used.
        """
        given = self.find(key)
        if given is None or self.gone(given.body.devices):
            return None
        if given.confirmed_by == dagster_run_id:
            return given

        def choose(state: PoolState | None) -> Draft | None:
            lease = None if state is None else state.lease_of(key)
            if lease is None or lease.confirmed_by == dagster_run_id:
                return None
            body = LeaseConfirmed(
                pool=self.here.pool, lease_seq=lease.seq, dagster_run_id=dagster_run_id
            )
            return self.tracks.draft(Kind.LEASE_CONFIRMED, body)

        self.tracks.decide_pool(self.here.pool, choose, first=self.first)
        lease = self.find(key)
        return lease if lease is not None and lease.confirmed_by == dagster_run_id else None

    def release(self, key: str, *, by: str, why: str) -> Record | None:
        """Give back, in a person's name, the devices of `key`, whose run's track cannot be read.

        None where its lease is over already. Raises InvalidInput where it has none, or where anything
        else can tell when it ends, or something may run on its devices; and TracksError.
        """
        check_words({"why": why, "by": by})
        state, now = self.tracks.find_pool(self.here.pool), self.tracks.now()
        holding = {each.lease.body.key: each for each in self._holding(state, now)}
        holder = holding.get(key)
        if holder is None:
            if state is not None and state.lease_of(key) is not None:
                return None
            named = ", ".join(list(holding)[:NAMED_MAX]) or "none"
            raise InvalidInput(f"{key} has no devices; those that have: {named}.")
        lease = holder.lease
        if (problem := self._why_not_released(holder, state, list(holding.values()))) is not None:
            listed = ", ".join(lease.body.devices)
            raise InvalidInput(f"{listed} stay leased to {key}: {problem}.")
        body = LeaseReleased(pool=self.here.pool, lease_seq=lease.seq, by=by, why=why)
        draft = self.tracks.draft(Kind.LEASE_RELEASED, body)

        def choose(state: PoolState | None) -> Draft | None:
            there = None if state is None else state.lease_of(key)
            return draft if there is not None and there.seq == lease.seq else None

        return self.tracks.decide_pool(self.here.pool, choose)

    def _why_not_released(
        self, holder: Holder, state: PoolState | None, holding: Sequence[Holder]
    ) -> str | None:
        """Return why a person's word is not enough, or not needed, to give a lease back."""
        body = holder.lease.body
        if (two := two_machines([holder.lease], self.here)) is not None:
            return two
        if holder.unread is None:
            return (
                f"its track in {body.store} can be read, and says that it is open: the end that "
                f"`tracks up` or `tracks stop {body.run_id}` of its home records frees them"
            )
        if holder.lease.confirmed_at is None:
            return f"nobody came for them yet, so they are given on in at most {LEASE_S_MAX:g} s"
        if self.lives(body):
            return f"its gang lives on this machine, in {body.work}: end it first"
        others = frozenset(n for h in holding if h is not holder for n in h.lease.body.devices)
        found = self.look(others)
        busy = [each.out for each in found.devices if each.name in body.devices and each.out]
        return next(iter(busy), None) or found.problem

    def environment(self, lease: Lease) -> dict[str, str]:
        """Return the variables for what starts under the lease: it sees its devices and no others."""
        return device_environment(lease.body.devices, hides_gpus=self.hides_gpus)

    def devices_of(self, lease: Lease) -> HeldDevices:
        """Return the lease as the track of its own run has it."""
        body = lease.body
        return HeldDevices(pool=self.here.pool, seq=lease.seq, devices=body.devices, why=body.why)

    def leased(self) -> frozenset[str]:
        """Return the devices whose leases hold now. Raises TracksError where that cannot be read."""
        holding = self._holding(self.tracks.find_pool(self.here.pool), self.tracks.now())
        return frozenset(name for each in holding for name in each.lease.body.devices)

    def name_of(self, given: str) -> str:
        """Return the device of this machine with that name, or whose name begins so.

        Raises InvalidInput where there is none, or are several; where nobody can tell which there are,
        any whole name is taken.
        """
        state = self.tracks.find_pool(self.here.pool)
        found = self.look(frozenset())
        known = () if state is None else (each.node for each in state.devices)
        names = {*known, *(device.name for device in found.devices)}
        return find_name(given, sorted(names), is_known=found.problem is None)

    def view(
        self, describe: Describe = lambda _, running: running
    ) -> tuple[list[DeviceLine], list[str]]:
        """Return every device with who has it now, and what is wrong, in words.

        Raises TracksError where the pool's track cannot be read.
        """
        now, state = self.tracks.now(), self.tracks.find_pool(self.here.pool)
        holding = self._holding(state, now)
        found = self.find_devices(state, holding)
        problems = [_describe_unread(each) for each in holding if each.unread is not None]
        two = two_machines((each.lease for each in holding), self.here)
        running = [(each.lease, describe(each, _running(each, {}))) for each in holding]
        there = {device.name: device for device in found.devices}
        leased = {name for lease, _ in running for name in lease.body.devices}
        lines = [
            _device_line(
                there.get(name) or _missing(name, found),
                [pair for pair in running if name in pair[0].body.devices],
                None if state is None else state.device(name),
                now,
            )
            for name in sorted({*there, *leased}, key=_in_order)
        ]
        return lines, [*problems, *filter(None, (two, found.problem))]

    def share(
        self, waiting: Sequence[Demand], decide: Decide, describe: Describe, *, by: str
    ) -> Shared:
        """Lease to what waits as `decide` says, a record each; return what has a lease now.

        waiting: all that is to start, what has a lease already included. It is decided again whenever
        another record came first. Raises TracksError where the pool's track cannot be read or written.
        """
        turn = _Turn(pool=self, waiting=waiting, decide=decide, describe=describe, by=by)
        for _ in range(LEASES_MAX):
            try:
                record = self.tracks.decide_pool(self.here.pool, turn.choose)
            except InvalidDecision as error:  # the rules gave a device twice: nobody gets it
                turn.problems.append(str(error))
                break
            if record is None:
                break
            turn.made(record.seq)
        wanted = frozenset(demand.key for demand in waiting)
        return Shared(
            wanted=wanted,
            seqs={key: seq for key, seq in turn.leased.items() if key in wanted},
            moves=turn.plan.moves,
            waits=tuple(each for each in turn.plan.waits if each.key not in turn.leased),
            problems=tuple(turn.problems),
        )

    def find_devices(self, state: PoolState | None, holding: Sequence[Holder]) -> Found:
        """Return this machine's devices; `out` those of strangers and those in quarantine."""
        leased = frozenset(name for each in holding for name in each.lease.body.devices)
        return without_quarantined(self.look(leased), state, self.tracks.now())

    def _holding(self, state: PoolState | None, now: datetime) -> list[Holder]:
        return [each for each in self._holders(state) if why_over(each, self.here, now) is None]

    def _holders(self, state: PoolState | None) -> list[Holder]:
        return [self._holder(lease) for lease in (state.leases if state is not None else ())]

    def _holder(self, lease: Lease) -> Holder:
        is_gone = self.is_gone(lease.body)
        try:
            state = self.runs(lease.body.store).find_run(lease.body.run_id)
        except Exception as error:  # noqa: BLE001 - of that run alone
            return Holder(lease=lease, unread=problem_of(error), is_gone=is_gone)
        return Holder(lease=lease, state=state, is_gone=is_gone)


@dataclass(slots=True, kw_only=True)
class _Turn:
    """One sharing out: the plan that is being carried out, and the head that it was made on."""

    pool: DevicePool
    waiting: Sequence[Demand]
    decide: Decide
    describe: Describe
    by: str
    plan: Plan = field(default_factory=Plan)
    leased: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _starts: list[Start] = field(default_factory=list)
    _freed: list[Lease] = field(default_factory=list)
    _head_seq: int | None = None

    def choose(self, state: PoolState | None) -> Draft | None:
        """Return the next lease of the plan; of a new one where somebody else has written."""
        head_seq = -1 if state is None else state.head.seq
        if head_seq != self._head_seq:
            self._replan(state)
            self._head_seq = head_seq
        if not self._starts:
            return None
        start, pool = self._starts[0], self.pool
        demand = next(each for each in self.waiting if each.key == start.key)
        given = GivenBy(store=pool.store, work=pool.work, by=self.by)
        body = lease_body(start, demand, pool.here, given, self._freed)
        return pool.tracks.draft(Kind.DEVICES_LEASED, body)

    def made(self, seq: int) -> None:
        """Go on with the plan after its next lease was appended."""
        self.leased[self._starts[0].key] = seq
        self._starts, self._freed, self._head_seq = self._starts[1:], [], seq

    def _replan(self, state: PoolState | None) -> None:
        pool, now = self.pool, self.pool.tracks.now()
        holders = pool._holders(state)
        holding = [each for each in holders if why_over(each, pool.here, now) is None]
        is_new = any(each.lease.confirmed_at is None for each in holding)
        found = Found()
        keys = {each.lease.body.key for each in holding}
        if is_new or any(demand.key not in keys for demand in self.waiting):
            found = pool.find_devices(state, holding)
        holding = [each for each in holding if not has_lost(each, found.gone)]
        over = [each for each in holders if each not in holding]
        self._freed = [each.lease for each in over]
        self.problems = [_describe_unread(each) for each in holding if each.unread is not None]
        self.leased = {each.lease.body.key: each.lease.seq for each in holding}
        waiting = [demand for demand in self.waiting if demand.key not in self.leased]
        why = two_machines((each.lease for each in holding), pool.here) or found.problem
        leases = state.leases if state is not None else ()
        why = why or all_lost((name for each in leases for name in each.body.devices), found)
        if why is not None:
            nobody = tuple(Waits(key=each.key, starts=LATER, why=why) for each in waiting)
            self.plan = Plan(waits=nobody)
        elif not waiting:
            self.plan = Plan()
        else:
            kinds = {device.name: device.kind for device in found.devices}
            # Everything takes what this machine has: a rank uses an accelerator unasked.
            kind = next(iter(kinds.values()), "")
            waiting = [replace(demand, kind=kind) for demand in waiting]
            running = [self.describe(each, _running(each, kinds)) for each in holding]
            self.plan = self.decide(waiting, running, found.devices)
        self._starts = list(self.plan.starts)


def _missing(name: str, found: Found) -> Device:
    """Return a device that is leased and that this look did not find."""
    return Device(
        name=name, out="it is not on this machine any more" if name in found.gone else None
    )


def _device_line(
    device: Device,
    running: Sequence[tuple[Lease, Running]],
    health: NodeState | None,
    now: datetime,
) -> DeviceLine:
    leases = [lease for lease, _ in running]
    left_s = [each.left_s for _, each in running if each.left_s is not None]
    quarantine = None if health is None else health.quarantine_at(now)
    return DeviceLine(
        device=device.name,
        model=device.model,
        memory_bytes=device.memory_bytes,
        islands=device.islands,
        held_by=tuple(lease.body.key for lease in leases),
        since=format_time(leases[0].at) if leases else None,
        free_in_s=max(left_s) if left_s and len(left_s) == len(leases) else None,
        strikes=0 if health is None else len(health.standing),
        quarantined_until=None if quarantine is None else format_time(quarantine.until_at),
        why=device.out or (leases[0].body.why if leases else ""),
    )


def _in_order(name: str) -> tuple[str, int]:
    """Return what "cpu:2" is sorted by, before "cpu:10"."""
    kind, _, number = name.partition(":")
    return (kind, int(number)) if number.isdigit() else (name, 0)


def no_devices(key: str) -> NoDevices:
    """Return what a start without a lease is refused with."""
    return NoDevices(
        f"{key} was not started: its devices were given to somebody else, as nobody came for them in "
        f"{LEASE_S_MAX:g} s, or one of them is gone, or it was given none yet. It waits its turn; "
        "`tracks status` says why."
    )


def _running(holder: Holder, kinds: dict[str, str]) -> Running:
    lease = holder.lease
    return Running(
        demand=demand_of(lease.body, kind=kinds.get(lease.body.devices[0], "")),
        devices=lease.body.devices,
        began_s=(lease.confirmed_at or lease.at).timestamp(),
    )


def _describe_unread(holder: Holder) -> str:
    body = holder.lease.body
    return (
        f"{', '.join(body.devices)} stay leased to {body.key}: its track in {body.store} cannot be "
        f"read: {holder.unread} Where nothing of it runs any more, give them back: `tracks pool free "
        f'{body.pool} {body.key} --why "…"`'
    )
