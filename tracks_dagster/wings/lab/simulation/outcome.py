"""The outcome of a simulated run: every second in one bucket, every wasted one with a reason.

ETTR, the effective training time ratio, is the time spent on steps that the run rests on in the end,
over all the time that it could have run: Kokolis et al., "Revisiting Reliability in Large-Scale
Machine Learning Research Clusters" (HPCA 2025, arXiv 2410.21680), section II: productive runtime over
available wall-clock time, with queueing, restarts and recomputation as what is not productive. The
Llama 3 report (arXiv 2407.21783, section 3.3.4) calls the same ratio effective training time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracks_dagster.track.bodies import CheckpointCadence
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.accounting import StepAccount
from tracks_dagster.wings.lab.simulation.world import Costs, End, Launch

FIRST_START = "first_start"  # what the first launch costs is not a failure's fault

DONE = frozenset({TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED})
SAVES_MAX = 1_000_000  # of one attempt: a day of one save a step of 0.1 s


@dataclass(slots=True, kw_only=True)
class Totals:
    """What a simulation adds up on its way. refused: reason and limit, in order."""

    played: list[PlayedAttempt] = field(default_factory=list)
    down_s: float = 0.0
    waiting_s: float = 0.0
    given_up_s: float = 0.0
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One simulated run, or several added up. The seconds from kept_s to given_up_s sum to wall_s.

    kept_s: on steps that the run rests on; lost_s: on steps done again or thrown away, and cut off;
    saving_s: blocked by saves; restart_s: launching and restoring; waiting_s: for a decision, its
    backoff or a person; down_s: for capacity; given_up_s: after a refusal that nobody answered.
    wasted: device-seconds of lost and restart time, by the reason that they are owed to: a launch to
    the end before it. ends: attempts by why they ended; attempts: those that started.
    complete: runs that came to their end; runs: of how many.
    """

    name: str
    wall_s: float
    kept_s: float
    lost_s: float
    saving_s: float
    restart_s: float
    waiting_s: float
    down_s: float
    given_up_s: float
    device_s: float
    kept_device_s: float
    wasted: Mapping[str, float]
    ends: Mapping[str, int]
    attempts: int
    refused: tuple[str, ...]
    complete: int
    runs: int = 1

    @property
    def ettr(self) -> float:
        """Kept time over wall time, 0 to 1; 0 of no time at all."""
        return self.kept_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def wasted_device_s(self) -> float:
        """All that was wasted."""
        return sum(self.wasted.values())


def outcome(
    name: str,
    *,
    devices: int,
    totals: Totals,
    steps: Sequence[StepAccount],
    step_s: float,
    wall_s: float,
) -> Outcome:
    """Return the outcome of a run. steps: the account of every attempt, oldest first."""
    accounts = {account.attempt_id: account for account in steps}
    wasted: defaultdict[str, float] = defaultdict(float)
    ends: Counter[str] = Counter()
    blamed = FIRST_START
    kept_s = lost_s = 0.0
    # Only the newest attempt may not have started, so the two lists begin alike.
    for played, attempt_id in zip(totals.played, sorted(accounts), strict=False):
        kept_now_s = accounts[attempt_id].kept * step_s
        lost_now_s = played.stepped_s - kept_now_s + played.cut_s
        wasted[blamed] += played.restart_s * devices
        if played.end is not None:
            blamed = played.end.reason.value
            ends[blamed] += 1
        if lost_now_s > 0:
            wasted[blamed] += lost_now_s * devices
        kept_s, lost_s = kept_s + kept_now_s, lost_s + lost_now_s
    ran_s = sum(p.restart_s + p.stepped_s + p.saving_s + p.cut_s for p in totals.played)
    newest = totals.played[-1].end if totals.played else None
    return Outcome(
        name=name,
        wall_s=wall_s,
        kept_s=kept_s,
        lost_s=lost_s,
        saving_s=sum(p.saving_s for p in totals.played),
        restart_s=sum(p.restart_s for p in totals.played),
        waiting_s=totals.waiting_s,
        down_s=totals.down_s,
        given_up_s=totals.given_up_s,
        device_s=ran_s * devices,
        kept_device_s=kept_s * devices,
        wasted=dict(wasted),
        ends=dict(ends),
        attempts=len(totals.played),
        refused=tuple(totals.refused),
        complete=int(newest is not None and newest.reason in DONE),
    )


def sum_outcomes(name: str, outcomes: Iterable[Outcome]) -> Outcome:
    """Return several runs as one: seconds, attempts and waste add up."""
    each = list(outcomes)
    wasted: defaultdict[str, float] = defaultdict(float)
    ends: Counter[str] = Counter()
    for one in each:
        for reason, seconds in one.wasted.items():
            wasted[reason] += seconds
        ends.update(one.ends)
    return Outcome(
        name=name,
        wall_s=sum(o.wall_s for o in each),
        kept_s=sum(o.kept_s for o in each),
        lost_s=sum(o.lost_s for o in each),
        saving_s=sum(o.saving_s for o in each),
        restart_s=sum(o.restart_s for o in each),
        waiting_s=sum(o.waiting_s for o in each),
        down_s=sum(o.down_s for o in each),
        given_up_s=sum(o.given_up_s for o in each),
        device_s=sum(o.device_s for o in each),
        kept_device_s=sum(o.kept_device_s for o in each),
        wasted=dict(wasted),
        ends=dict(ends),
        attempts=sum(o.attempts for o in each),
        refused=tuple(words for o in each for words in o.refused),
        complete=sum(o.complete for o in each),
        runs=sum(o.runs for o in each),
    )


# --- one attempt ----------------------------------------------------------------------------------
#
# Its steps and saves up to what ends it, in simulated time: pure arithmetic, no clock.
# A save is tried as in `training.triggers`: after the step that the cadence's count divides,
# or at the end of the first step that comes its seconds after the save before.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedAttempt:
    """How an attempt went. Seconds from its launch on; they add up to `until_s - launch.at_s`.

    end: what ended it, None where the simulated time was over first. last_step: the last that it
    finished, None when there is none. commits: (step, when), oldest first. cut_s: of a step or save
    that did not come to its end, or between the save on a notice and the end itself.
    """

    end: End | None
    until_s: float
    last_step: int | None
    commits: tuple[tuple[int, float], ...]
    restart_s: float
    restored: bool
    stepped_s: float
    saving_s: float
    cut_s: float


def play(
    launch: Launch,
    resumed_step: int,
    cadence: CheckpointCadence,
    costs: Costs,
    ends: Sequence[End],
    *,
    steps: int | None,
    horizon_s: float,
) -> PlayedAttempt:
    """Return what the attempt does from its launch until the first of `ends`, or all `steps`.

    One that has all its steps saves and completes. horizon_s: when the simulated time is over.
    """
    timed = min((e for e in ends if e.at_s is not None), key=_time_of, default=None)
    stepped = min((e for e in ends if e.step is not None), key=_step_of, default=None)
    stop_s = min(horizon_s, math.inf if timed is None else _time_of(timed))
    is_cut = timed is not None and _time_of(timed) <= horizon_s
    attempt = _Attempt(launch, resumed_step, costs, stop_s)
    is_noticed = is_cut and timed is not None and timed.grace_s > 0
    notice_s = stop_s - timed.grace_s if timed is not None and is_noticed else math.inf
    fails_after = _FOREVER if stepped is None else _step_of(stepped) - 1
    all_steps = _FOREVER if steps is None else steps
    known = resumed_step + (launch.saved_steps or 0)
    for _ in range(SAVES_MAX):
        due = next_save(attempt.step, cadence, costs)
        due = min(due, known) if attempt.step < known else due
        attempt.walk(min(due, fails_after, all_steps), notice_s)
        has_notice = attempt.at_s >= notice_s
        if has_notice or attempt.step in (due, all_steps):
            attempt.save()
        if attempt.is_over or has_notice:
            return attempt.played(timed if is_cut else None, until_s=stop_s)
        if attempt.step == all_steps:
            return attempt.played(_completed(attempt.at_s), until_s=attempt.at_s)
        if attempt.step == fails_after:
            return attempt.played(stepped, until_s=attempt.at_s)
    raise AssertionError(f"An attempt saved {SAVES_MAX} times and did not end: {cadence}.")


def next_save(step: int, cadence: CheckpointCadence, costs: Costs) -> int:
    """Return the step after which the next save is due, when one was just tried after `step`."""
    due = [step + _FOREVER]
    if cadence.every_s is not None:
        due.append(step + max(1, math.ceil(cadence.every_s / costs.step_s)))
    if cadence.every_steps is not None:
        due.append((step // cadence.every_steps + 1) * cadence.every_steps)
    return min(due)


_FOREVER = 10**12  # steps; a run of one step a millisecond takes 30 years for them


class _Attempt:
    """The place of an attempt in time and steps while it is played."""

    def __init__(self, launch: Launch, resumed_step: int, costs: Costs, stop_s: float) -> None:
        self.step = resumed_step
        self._from = resumed_step
        self._costs = costs
        self._stop_s = stop_s
        self._commits: list[tuple[int, float]] = []
        self._saving_s = 0.0
        self._restart_s = min(launch.restart_s, max(0.0, stop_s - launch.at_s))
        self.at_s = launch.at_s + self._restart_s
        self._restored = self._restart_s >= launch.restart_s and self.at_s < stop_s
        self.is_over = not self._restored

    def walk(self, target: int, notice_s: float) -> None:
        """Go on to step `target`, or as far as there is time; on a notice, to the end of the step."""
        if self.is_over:
            return
        step_s = self._costs.step_s
        count = max(0, target - self.step)
        if notice_s < self.at_s + count * step_s:
            count = min(count, max(0, math.ceil((notice_s - self.at_s) / step_s)))
        room_s = min(self._stop_s - self.at_s, (count + 1) * step_s)  # which may be for ever
        fitting = math.floor(room_s / step_s + _ROUNDING)
        self.is_over = fitting < count
        count = min(count, fitting)
        self.step += count
        self.at_s += count * step_s

    def save(self) -> None:
        """Save the step that it is at; what is not done in time is not a checkpoint."""
        done_s = self.at_s + self._costs.blocking_s
        if self.is_over or done_s > self._stop_s:
            self.is_over = True
            return
        self.at_s = done_s
        self._saving_s += self._costs.blocking_s
        self._commits.append((self.step, done_s))

    def played(self, end: End | None, *, until_s: float) -> PlayedAttempt:
        """Return how it went; it keeps its machines until `until_s`."""
        return PlayedAttempt(
            end=end,
            until_s=until_s,
            last_step=self.step if self.step > self._from else None,
            commits=tuple(self._commits),
            restart_s=self._restart_s,
            restored=self._restored,
            stepped_s=(self.step - self._from) * self._costs.step_s,
            saving_s=self._saving_s,
            cut_s=max(0.0, until_s - self.at_s),
        )


_ROUNDING = 1e-9  # a span of exactly n steps holds n of them


def _time_of(end: End) -> float:
    return math.inf if end.at_s is None else end.at_s


def _step_of(end: End) -> int:
    return _FOREVER if end.step is None else end.step


def _completed(at_s: float) -> End:
    return End(reason=TerminationReason.COMPLETED, message="", at_s=at_s)
