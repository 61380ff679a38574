"""The world of a simulated run: when a gang may start, on which node, and what ends it.

A world knows nothing of policies. The same world gives every policy the same interruptions at the
same times, so that two outcomes differ by what the policies decided and by nothing else. Times are
seconds since the simulation began.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import MICRO_BATCH, Roles, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the machinery costs; all in seconds.

    step_s: one step. blocking_s: how long a save blocks training; it is durable when that is over.
    restart_s: from a decided retry, on a node that is free, to the first step of its own work:
    detection, launch and restore.
    """

    step_s: float
    blocking_s: float
    restart_s: float

    def __post_init__(self) -> None:
        if self.step_s <= 0 or self.blocking_s < 0 or self.restart_s < 0:
            raise ValueError(
                f"A step takes more than 0 s, a save and a restart 0 s or more, not {self}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A gang that starts. at_s: when it has its devices; restart_s: until its first own step.

    saved_steps: after how many steps of its own it saves, whatever its cadence; None: by that alone.
    """

    at_s: float
    node: str
    restart_s: float
    saved_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What an attempt begins with, for what may end it: a defect may depend on any of it.

    met: how often each root message has ended an attempt of the run.
    """

    launch: Launch
    resumed_step: int
    config: Mapping[str, Json]
    roles: Roles
    met: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One thing that would end an attempt: at a time, or as soon as it tries a step.

    at_s, step: one of them is given. A step is tried and not finished. grace_s: how long before
    `at_s` the gang gets a notice, so that it can finish its step and save. message: the root message.
    blamed_node: the node that failed, where somebody could tell. fingerprint: of a failure that
    really was; None: it is made of the message and what was tried.
    """

    reason: TerminationReason
    message: str
    at_s: float | None = None
    step: int | None = None
    grace_s: float = 0.0
    onset_step: int | None = None
    blamed_node: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if (self.at_s is None) == (self.step is None):
            raise ValueError("An end comes at a time or at a step.")


class World(Protocol):
    """Where attempts run."""

    def launch(self, attempt_id: int, ready_at_s: float, compute: ComputeRequest) -> Launch | None:
        """Return how the attempt starts, at `ready_at_s` or later; None: it never does."""
        ...

    def ends(self, start: Start) -> Sequence[End]:
        """Return what would end this attempt; the first of them does."""
        ...

    def person_at_s(self, refused_at_s: float) -> float | None:
        """Return when a person opens another attempt after a refusal; None: nobody does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """A gang loses its machines at `at_s`, and finds others `down_s` later."""

    at_s: float
    reason: TerminationReason
    message: str
    down_s: float = 0.0
    grace_s: float = 0.0
    blamed_node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """What is wrong with a run itself, or with a node that it may be placed on.

    step: the step that fails. times: how often it fails in all; None: always. micro_batch_max: only
    above that micro-batch, 1 or more. node: only there. A defect that nothing limits is not curable.
    """

    reason: TerminationReason
    message: str
    step: int
    times: int | None = None
    micro_batch_max: int | None = None
    node: str | None = None

    @property
    def is_curable(self) -> bool:
        """Whether the right change, or another try, gets past it."""
        limits = (self.times, self.micro_batch_max, self.node)
        return any(limit is not None for limit in limits)


class InterruptedWorld:
    """Interruptions at fixed times, the same for anyone who runs, and defects of the run.

    first_up_s: from when on there is capacity. A gang that is between two attempts when an
    interruption comes does not notice it. nodes: preferred first; None: each launch has a node of its
    own. person_after_s: how long a refused run waits for a person; None: nobody comes.
    """

    def __init__(
        self,
        *,
        interruptions: Sequence[Interruption],
        costs: Costs,
        first_up_s: float = 0.0,
        defects: Sequence[Defect] = (),
        nodes: Sequence[str] | None = None,
        person_after_s: float | None = None,
    ) -> None:
        self._interruptions = sorted(interruptions, key=lambda each: each.at_s)
        self._times = [each.at_s for each in self._interruptions]
        self._costs = costs
        self._first_up_s = first_up_s
        self._defects = defects
        self._nodes = nodes
        self._person_after_s = person_after_s

    def launch(self, attempt_id: int, ready_at_s: float, compute: ComputeRequest) -> Launch | None:
        """Return the launch at the first time from `ready_at_s` on at which there is capacity."""
        at_s = max(ready_at_s, self._first_up_s)
        before = bisect_right(self._times, at_s)
        for interruption in self._interruptions[max(0, before - 1) :]:
            if interruption.at_s > at_s:
                break
            at_s = max(at_s, interruption.at_s + interruption.down_s)
        node = self._node(attempt_id, compute)
        return Launch(at_s=at_s, node=node, restart_s=self._costs.restart_s)

    def ends(self, start: Start) -> Sequence[End]:
        """Return the next interruption, and what is wrong with the run as it is tried now."""
        ends = [end for each in self._defects if (end := _met_by(start, each)) is not None]
        index = bisect_right(self._times, start.launch.at_s)
        if index == len(self._interruptions):
            return ends
        coming = self._interruptions[index]
        interrupted = End(
            reason=coming.reason,
            message=coming.message,
            at_s=coming.at_s,
            grace_s=coming.grace_s,
            blamed_node=coming.blamed_node,
        )
        return [*ends, interrupted]

    def person_at_s(self, refused_at_s: float) -> float | None:
        """Return when somebody who was called takes up the run."""
        return None if self._person_after_s is None else refused_at_s + self._person_after_s

    def _node(self, attempt_id: int, compute: ComputeRequest) -> str:
        if self._nodes is None:
            return f"node-{attempt_id}"
        free = (node for node in self._nodes if node not in compute.excluded_nodes)
        return next(free, self._nodes[-1])


class PooledWorld:
    """Several pools, each with the interruptions of its own; an attempt runs in the one it asks for.

    scheduling_s: how long an attempt waits for capacity in a pool before it ends as scheduling_timeout.
    """

    def __init__(self, pools: Mapping[str, World], *, scheduling_s: float) -> None:
        self._pools = pools
        self._scheduling_s = scheduling_s
        self._here: World | None = None  # None: the newest attempt found no capacity

    def launch(self, attempt_id: int, ready_at_s: float, compute: ComputeRequest) -> Launch | None:
        """Return the launch in the attempt's pool, or the moment at which it gives up."""
        self._here = self._pools[compute.pool or ""]
        found = self._here.launch(attempt_id, ready_at_s, compute)
        gives_up_s = ready_at_s + self._scheduling_s
        if found is None or found.at_s <= gives_up_s:
            return found
        self._here = None
        return Launch(at_s=gives_up_s, node="", restart_s=found.restart_s)

    def ends(self, start: Start) -> Sequence[End]:
        """Return what would end the attempt in its pool."""
        if self._here is not None:
            return self._here.ends(start)
        why = "no capacity in the pool"
        return [
            End(reason=TerminationReason.SCHEDULING_TIMEOUT, message=why, at_s=start.launch.at_s)
        ]

    def person_at_s(self, refused_at_s: float) -> float | None:
        """Return when somebody takes the run up: pools have one person on call."""
        return next(iter(self._pools.values())).person_at_s(refused_at_s)


def _met_by(start: Start, defect: Defect) -> End | None:
    """Return the end that a defect means for an attempt, or None where it does not show."""
    if defect.times is not None and start.met.get(defect.message, 0) >= defect.times:
        return None
    micro_batch = value_of(start.config, start.roles, MICRO_BATCH) or 0
    if defect.micro_batch_max is not None and micro_batch <= defect.micro_batch_max:
        return None
    if defect.node is not None and start.launch.node != defect.node:
        return None
    # What shows at a step shows at once in an attempt that begins behind it.
    step = max(defect.step, start.resumed_step + 1)
    return End(reason=defect.reason, message=defect.message, step=step, blamed_node=defect.node)
