"""What the rules of the queue go by: the order, what may pass, who makes room, the classes of work.

A person changes it in policy.yaml (docs/scheduling.md); here are the shipped values. Nothing here
decides: `rules` applies it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import counted, duration

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86_400.0


class Order(StrEnum):
    """Who comes first. In each of them what was interrupted comes before what never ran."""

    FIFO = "fifo"  # the longest wait first; classes count for nothing
    PRIORITY = "priority"  # by class, then the longest wait first
    FAIR = "fair"  # by class, then the team that had the fewest device seconds


class Placement(StrEnum):
    """Which of the free devices a gang gets."""

    PACK = "pack"  # the fullest node that holds all of it: whole nodes stay free
    SPREAD = "spread"  # on as many nodes as there are: a lost node takes one rank
    BALANCED = "balanced"  # each rank on the node with the smallest part in use
    GROUP = "group"  # beside the runs that it names: an eval beside its trainer
    LOCALITY = "locality"  # on the nodes that it names: they have its data


class Sharing(StrEnum):
    """Whether several may be on one device."""

    MEMORY = "memory"  # as long as their measured needs fit into its memory
    NONE = "none"


NO_TIME_SLICES = (
    "time slicing is not for gangs: every rank waits for all others at each step, so one that waits "
    "for its slice stops them all. Write memory, which shares a device where all needs are measured, "
    "or none; a class with a promise gets its devices from lower ones."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadClass:
    """How work of one class is treated. Devices are counted for each kind of device.

    priority: the greater comes first. queue_s, completion_s, recovery_s: objectives that `tracks slo`
    measures; none of them changes what is decided.
    promise_s: if it would wait longer than that, runs of lower classes make room; None: it waits.
    loss_s: its runs make room only if what they did since their newest commit took at most so long;
    None: they never do.
    wait_s_max: who has waited so long comes before every class without a promise; after twice of it
    before all, and nobody passes.
    reserved: devices that lower classes leave free for it.
    devices, devices_per_team, devices_per_owner: the most that it may have at once.
    money_per_day: nothing of it starts once so much was spent since midnight (UTC).
    ranks_min: its smallest gang, by which `tracks policy --check` finds what can never start.
    """

    priority: int = 0
    queue_s: float | None = None
    completion_s: float | None = None
    recovery_s: float | None = None
    promise_s: float | None = None
    loss_s: float | None = None
    wait_s_max: float = DAY_S
    reserved: int = 0
    devices: int | None = None
    devices_per_team: int | None = None
    devices_per_owner: int | None = None
    money_per_day: float | None = None
    ranks_min: int = 1

    def __post_init__(self) -> None:
        objectives = (self.queue_s, self.completion_s, self.recovery_s)
        if any(each is not None and each <= 0 for each in objectives):
            raise ValueError(
                "An objective is longer than nothing; leave it out where there is none."
            )
        if any(each is not None and each < 0 for each in (self.promise_s, self.loss_s)):
            raise ValueError("A promise or a loss bound cannot be negative.")
        if self.wait_s_max <= 0:
            raise ValueError(
                "wait_max is longer than nothing: everything would come first at once."
            )
        counts = (self.reserved, self.devices, self.devices_per_team, self.devices_per_owner)
        if any(each is not None and each < 0 for each in counts):
            raise ValueError("Devices cannot be fewer than 0.")
        if self.money_per_day is not None and self.money_per_day < 0:
            raise ValueError("Money for a day cannot be negative.")
        if self.ranks_min < 1:
            raise ValueError("The smallest gang has 1 rank.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one team or one owner may have. share: of a team, its weight in a fair order."""

    devices: int | None = None
    money_per_day: float | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        if any(each is not None and each < 0 for each in (self.devices, self.money_per_day)):
            raise ValueError("Devices and money cannot be negative.")
        if self.share <= 0:
            raise ValueError("A share is above 0: devices: 0 keeps a team from starting anything.")


EVAL = "eval"  # the class of every eval
SINGLE = "single"
SWEEP = "sweep"  # the class whose runs are trials

# As many as a team needs to begin with. Only evals and what is urgent make others move.
SHIPPED_CLASSES: Mapping[str, WorkloadClass] = {
    "urgent": WorkloadClass(
        priority=1000, queue_s=5 * MINUTE_S, recovery_s=5 * MINUTE_S, promise_s=0.0
    ),
    EVAL: WorkloadClass(
        priority=900, queue_s=MINUTE_S, completion_s=15 * MINUTE_S, promise_s=MINUTE_S
    ),
    "interactive": WorkloadClass(priority=800, queue_s=5 * MINUTE_S, recovery_s=5 * MINUTE_S),
    SINGLE: WorkloadClass(
        priority=500, queue_s=8 * HOUR_S, recovery_s=10 * MINUTE_S, loss_s=30 * MINUTE_S
    ),
    "distributed": WorkloadClass(
        priority=500, queue_s=DAY_S, recovery_s=15 * MINUTE_S, loss_s=30 * MINUTE_S, ranks_min=2
    ),
    SWEEP: WorkloadClass(
        priority=200, queue_s=DAY_S, recovery_s=30 * MINUTE_S, loss_s=30 * MINUTE_S
    ),
    "deferred": WorkloadClass(
        priority=0, queue_s=7 * DAY_S, recovery_s=DAY_S, loss_s=HOUR_S, wait_s_max=7 * DAY_S
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPolicy:
    """How the queue of one pool is kept.

    backfill: whether others may pass the first one that does not fit yet, as long as the start that it
    is promised stays (EASY). preemption: whether promises make others move. half_life_s: after which
    a team's device seconds count for half. move_rest_s: how long a run that was interrupted before
    runs at least before it makes room, unless a promise would break by that. default_class: of what
    names none.
    teams: those that there are; none: any name is one. owners: who has an allowance.
    """

    order: Order = Order.PRIORITY
    backfill: bool = True
    preemption: bool = True
    placement: Placement = Placement.PACK
    sharing: Sharing = Sharing.MEMORY
    half_life_s: float = 7 * DAY_S
    move_rest_s: float = 10 * MINUTE_S
    default_class: str = SINGLE
    classes: Mapping[str, WorkloadClass] = field(default_factory=lambda: dict(SHIPPED_CLASSES))
    teams: Mapping[str, Allowance] = field(default_factory=dict)
    owners: Mapping[str, Allowance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.half_life_s <= 0:
            raise ValueError("A half-life is longer than nothing; order: fifo forgets all use.")
        if self.move_rest_s < 0:
            raise ValueError("The rest between two moves cannot be negative.")
        if EVAL not in self.classes:
            raise ValueError("The class eval is missing: every eval is of it.")
        if self.default_class not in self.classes:
            raise ValueError(unknown("workload class", self.default_class, list(self.classes)))

    @property
    def moves(self) -> bool:
        """Whether some are moved for others; in order of arrival nobody comes before another."""
        return self.preemption and self.order is not Order.FIFO

    def class_of(self, name: str | None) -> WorkloadClass:
        """Return the class of that name; the default one for None, or a name that is gone since."""
        return self.classes.get(name or "") or self.classes[self.default_class]

    def class_name(self, name: str | None) -> str:
        """Return the name of the class that `class_of` returns."""
        return name if name is not None and name in self.classes else self.default_class

    def check_class(self, name: str) -> None:
        """Raise InvalidInput where there is no such class."""
        if name not in self.classes:
            raise InvalidInput(unknown("workload class", name, list(self.classes)))

    def check_team(self, name: str) -> None:
        """Raise InvalidInput where the policy names the teams, and this is not one of them."""
        if self.teams and name not in self.teams:
            raise InvalidInput(unknown("team", name, list(self.teams)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLine:
    """One class as text. is_changed: whether it differs from the base, or is not in it."""

    name: str
    priority: str
    queue: str
    completion: str
    recovery: str
    promise: str
    loss: str
    is_changed: bool


def class_lines(policy: SchedulingPolicy, base: SchedulingPolicy) -> list[ClassLine]:
    """Return a line for each class, the first in the queue first."""
    ordered = sorted(policy.classes.items(), key=lambda each: -each[1].priority)
    return [
        ClassLine(
            name=name,
            priority=str(each.priority),
            queue=_length(each.queue_s),
            completion=_length(each.completion_s),
            recovery=_length(each.recovery_s),
            promise="at once" if each.promise_s == 0 else _length(each.promise_s),
            loss="stays" if each.loss_s is None else duration(each.loss_s),
            is_changed=each != base.classes.get(name),
        )
        for name, each in ordered
    ]


def queue_lines(policy: SchedulingPolicy) -> Iterator[str]:
    """Yield how the queue is kept, a sentence each."""
    orders = {
        Order.FIFO: "the longest wait first, whatever the class",
        Order.PRIORITY: "by class; then what was interrupted; then the longest wait first",
        Order.FAIR: (
            "by class; then what was interrupted; then the team with the fewest device seconds, which "
            f"count for half after {duration(policy.half_life_s)}"
        ),
    }
    yield f"the order: {policy.order}: {orders[policy.order]}"
    yield f"the class of who names none: {policy.default_class}"
    yield (
        "passing: who does not delay the start that the first one is promised"
        if policy.backfill
        else "passing: nobody; all behind the first one wait"
    )
    yield (
        f"moving: for a promise; the same run again within {duration(policy.move_rest_s)} only at the "
        "last moment"
        if policy.moves
        else "moving: nobody is moved; promises are not kept"
    )
    shared = {Sharing.MEMORY: "shared where measured memory fits", Sharing.NONE: "never shared"}
    yield f"placement: {policy.placement}; a device is {shared[policy.sharing]}"
    for name, rules in policy.classes.items():
        if caps := _caps(rules):
            yield f"class {name}: {caps}"
    for kind, allowances in (("team", policy.teams), ("owner", policy.owners)):
        for name, each in allowances.items():
            share = "" if each.share == 1 else f"; share {each.share:g}"
            yield f"{kind} {name}: {_at_most(each.devices, each.money_per_day) or 'no cap'}{share}"


def _length(seconds: float | None) -> str:
    return "–" if seconds is None else duration(seconds)


def _caps(each: WorkloadClass) -> str:
    caps = [_at_most(each.devices, each.money_per_day)]
    caps += [f"{each.devices_per_team} a team"] if each.devices_per_team is not None else []
    caps += [f"{each.devices_per_owner} an owner"] if each.devices_per_owner is not None else []
    caps += [f"{each.reserved} kept free for it"] if each.reserved else []
    return ", ".join(cap for cap in caps if cap)


def _at_most(devices: int | None, money_per_day: float | None) -> str:
    caps = [counted(devices, "device")] if devices is not None else []
    caps += [f"{money_per_day:g} of money a day"] if money_per_day is not None else []
    return ", ".join(caps)
