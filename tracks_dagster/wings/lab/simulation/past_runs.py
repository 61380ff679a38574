"""What really happened to a run, for another policy to be tried on.

The assumptions are shown with every result: an attempt ends for the reason, after the time and after
the wait for capacity that it really had, whatever the policy changed; a person comes when one really
came. So a policy that never changes anything is given the remedies that were really made, and one that
retries more than was retried learns nothing of what would have followed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tracks_dagster.checkpoints.cadence import INTERRUPTING_FAMILIES
from tracks_dagster.track.bodies import AUTOMATIC, CheckpointCadence, ComputeRequest
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import Roles
from tracks_dagster.wings.lab.simulation.outcome import DONE, FIRST_START, Outcome
from tracks_dagster.wings.lab.simulation.play import Scenario
from tracks_dagster.wings.lab.simulation.tracks import Job
from tracks_dagster.wings.lab.simulation.world import (
    Costs,
    End,
    InterruptedWorld,
    Interruption,
    Launch,
    Start,
)

STEP_S_UNKNOWN = 1.0  # of a run that never finished a step, or whose saves are not known


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """One ended attempt. opened_s, ended_s: in seconds from any common time.

    held_s: how long it held its devices; restart_s: of these until it had restored, None when it
    never had. steps, kept_steps: that it ran, and that its run still rests on. saved_at_end: whether
    it saved on the notice of its end. is_seen: whether its saves are known.
    """

    cause: str
    opened_s: float
    ended_s: float
    held_s: float
    restart_s: float | None
    reason: TerminationReason
    message: str
    fingerprint: str | None
    node: str
    steps: int
    kept_steps: int
    save_count: int
    saved_at_end: bool
    is_seen: bool = True

    def unseen(self) -> PastAttempt:
        """Return it as one of whose saves only is known what its run still rests on.

        Its time is counted as steps of STEP_S_UNKNOWN, of which that share is kept that was kept of the
        steps that it ran: one save fits it, whatever time each of them took. One whose steps are not
        known kept all where it completed, else nothing.
        """
        steps = int(self.held_s / STEP_S_UNKNOWN)
        share = self.kept_steps / self.steps if self.steps else float(self.reason in DONE)
        kept_steps = round(steps * share)
        return replace(
            self,
            restart_s=0.0,
            steps=steps,
            kept_steps=kept_steps,
            saved_at_end=kept_steps == steps,
            is_seen=False,
        )

    @property
    def saved_steps(self) -> int | None:
        """After how many steps of its own it must have saved; None where its saves are known, or that
        was none, or at its end."""
        is_between = not self.is_seen and 0 < self.kept_steps < self.steps
        return self.kept_steps if is_between else None

    @property
    def queue_s(self) -> float:
        """How long it waited for its devices."""
        return max(0.0, self.ended_s - self.opened_s - self.held_s)

    @property
    def start_s(self) -> float:
        """How long it held its devices before its first step could begin."""
        return self.held_s if self.restart_s is None else min(self.restart_s, self.held_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """The ended attempts of a run that are looked at, oldest first, at least one.

    blocking_s: how long a save of it blocked; every_steps: how far apart its saves were, None where
    it made fewer than two. part: of a run that went on after it completed, counted from 1.
    """

    run_id: str
    devices: int
    estimated_s: float | None
    config: Mapping[str, Json]
    roles: Roles
    attempts: Sequence[PastAttempt]
    blocking_s: float
    every_steps: int | None
    part: int = 1

    @property
    def name(self) -> str:
        """What it is called beside the other parts of its run."""
        return self.run_id if self.part == 1 else f"{self.run_id}, part {self.part}"

    @property
    def cadence(self) -> CheckpointCadence:
        """How often it saved."""
        return CheckpointCadence(every_steps=self.every_steps)

    @property
    def costs(self) -> Costs:
        """What a step of it took, on average over all that it ran, and a save."""
        if not all(attempt.is_seen for attempt in self.attempts):
            return Costs(step_s=STEP_S_UNKNOWN, blocking_s=0.0, restart_s=0.0)
        steps = sum(attempt.steps for attempt in self.attempts)
        stepping_s = sum(
            a.held_s - a.start_s - a.save_count * self.blocking_s for a in self.attempts if a.steps
        )
        step_s = stepping_s / steps if steps and stepping_s > 0 else STEP_S_UNKNOWN
        return Costs(step_s=step_s, blocking_s=self.blocking_s, restart_s=0.0)

    @property
    def scenario(self) -> Scenario:
        """The same again, for another policy or cadence."""
        return Scenario(
            name=self.name,
            job=Job(
                run_id=self.run_id,
                devices=self.devices,
                estimated_s=self.estimated_s,
                config=self.config,
                roles=self.roles,
            ),
            costs=self.costs,
            world=lambda: _Replay(self),
            horizon_s=math.inf,
        )


def as_one_history(runs: Sequence[PastRun]) -> Scenario | None:
    """Return the capacity that all these attempts had, one after the other, for runs that never were.

    What the pool or its machines ended is an interruption; other ends are of the runs themselves. A
    step, a save and a start take the median of the runs'. None where nothing was held.
    """
    attempts = [attempt for run in runs for attempt in run.attempts if attempt.held_s > 0]
    if not attempts:
        return None
    now_s, interruptions = 0.0, []
    for past in attempts:
        now_s += past.held_s
        if past.reason.family in INTERRUPTING_FAMILIES:
            interruptions.append(Interruption(at_s=now_s, reason=past.reason, message=past.message))
    costs = Costs(
        step_s=median(run.costs.step_s for run in runs),
        blocking_s=median(run.blocking_s for run in runs),
        restart_s=median(attempt.start_s for attempt in attempts),
    )
    return replace(
        runs[0].scenario,
        name="all attempts",
        costs=costs,
        world=lambda: InterruptedWorld(interruptions=interruptions, costs=costs),
        horizon_s=now_s,
    )


class _Replay:
    """Gives each attempt that is opened the next fate of the history."""

    def __init__(self, run: PastRun) -> None:
        self._run = run
        self._next = 0

    def launch(self, attempt_id: int, ready_at_s: float, compute: ComputeRequest) -> Launch | None:
        """Return a launch like that of the history's next attempt; None when there is no more."""
        if self._next == len(self._run.attempts):
            return None
        past = self._run.attempts[self._next]
        self._next += 1
        restart_s = math.inf if past.restart_s is None else past.restart_s
        return Launch(
            at_s=ready_at_s + past.queue_s,
            node=past.node,
            restart_s=restart_s,
            saved_steps=past.saved_steps,
        )

    def ends(self, start: Start) -> Sequence[End]:
        """Return the end that the attempt had."""
        past, costs = self._run.attempts[self._next - 1], self._run.costs
        grace_s = costs.blocking_s + costs.step_s if past.saved_at_end else 0.0
        end = End(
            reason=past.reason,
            message=past.message,
            at_s=start.launch.at_s + past.held_s,
            grace_s=min(grace_s, past.held_s),
            fingerprint=past.fingerprint,
        )
        return [end]

    def person_at_s(self, refused_at_s: float) -> float | None:
        """Return when a person opened the next attempt that one did open, and pass over the others."""
        for index in range(self._next, len(self._run.attempts)):
            if self._run.attempts[index].cause != AUTOMATIC:
                self._next = index
                return refused_at_s + _waited_s(self._run.attempts, index)
        return None


def as_it_was(run: PastRun) -> Outcome:
    """Return the run's account as it really was, from its own figures and not from a simulation."""
    attempts, step_s = run.attempts, run.costs.step_s
    wasted: dict[str, float] = {}
    ends: dict[str, int] = {}
    kept_s = lost_s = saving_s = 0.0
    blamed = FIRST_START
    for past in attempts:
        working_s = past.held_s - past.start_s
        saved_s = min(past.save_count * run.blocking_s, working_s)
        kept_now_s = min(past.kept_steps * step_s, working_s - saved_s)
        wasted[blamed] = wasted.get(blamed, 0.0) + past.start_s * run.devices
        blamed = past.reason.value
        ends[blamed] = ends.get(blamed, 0) + 1
        lost_now_s = working_s - saved_s - kept_now_s
        wasted[blamed] = wasted.get(blamed, 0.0) + lost_now_s * run.devices
        kept_s, lost_s, saving_s = kept_s + kept_now_s, lost_s + lost_now_s, saving_s + saved_s
    held_s = sum(past.held_s for past in attempts)
    queue_s = sum(past.queue_s for past in attempts)
    waiting_s = sum(_waited_s(attempts, index) for index in range(1, len(attempts)))
    return Outcome(
        name=run.name,
        wall_s=held_s + queue_s + waiting_s,
        kept_s=kept_s,
        lost_s=lost_s,
        saving_s=saving_s,
        restart_s=sum(past.start_s for past in attempts),
        waiting_s=waiting_s,
        down_s=queue_s,
        given_up_s=0.0,
        device_s=held_s * run.devices,
        kept_device_s=kept_s * run.devices,
        wasted=wasted,
        ends=ends,
        attempts=len(attempts),
        refused=(),
        complete=int(attempts[-1].reason in DONE),
    )


def dead_retries(run: PastRun) -> list[PastAttempt]:
    """Return the attempts that met the very failure of the one before, and kept no step of theirs."""
    return [
        past
        for before, past in zip(run.attempts, run.attempts[1:], strict=False)
        if past.fingerprint is not None
        and past.fingerprint == before.fingerprint
        and past.kept_steps == 0
    ]


def _waited_s(attempts: Sequence[PastAttempt], index: int) -> float:
    """Return how long it took from the end before until attempt `index` was opened."""
    if index == 0:
        return 0.0
    return max(0.0, attempts[index].opened_s - attempts[index - 1].ended_s)
