"""What a simulated run came to: every second in one bucket, every wasted one with a reason.

ETTR, the effective training time ratio, is the time spent on steps that the run rests on in the end,
over all the time that it could have run: Kokolis et al., "Revisiting Reliability in Large-Scale
Machine Learning Research Clusters" (HPCA 2025, arXiv 2410.21680), section II: productive runtime over
available wall-clock time, with queueing, restarts and recomputation as what is not productive. The
Llama 3 report (arXiv 2407.21783, section 3.3.4) calls the same ratio effective training time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracks_dagster.simulation.attempt import Played
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.accounting import StepAccount

FIRST_START = "first_start"  # what the first launch costs is no failure's fault

DONE = frozenset({TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED})


@dataclass(slots=True, kw_only=True)
class Toll:
    """What a simulation adds up while it goes on. refused: reason and limit, in order."""

    played: list[Played] = field(default_factory=list)
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
    toll: Toll,
    steps: Sequence[StepAccount],
    step_s: float,
    wall_s: float,
) -> Outcome:
    """Return what a run came to. steps: the account of every attempt, oldest first."""
    accounts = {account.attempt_id: account for account in steps}
    wasted: defaultdict[str, float] = defaultdict(float)
    ends: Counter[str] = Counter()
    blamed = FIRST_START
    kept_s = lost_s = 0.0
    # Only the newest attempt may not have started, so the two lists begin alike.
    for played, attempt_id in zip(toll.played, sorted(accounts), strict=False):
        kept_now_s = accounts[attempt_id].kept * step_s
        lost_now_s = played.stepped_s - kept_now_s + played.cut_s
        wasted[blamed] += played.restart_s * devices
        if played.end is not None:
            blamed = played.end.reason.value
            ends[blamed] += 1
        if lost_now_s > 0:
            wasted[blamed] += lost_now_s * devices
        kept_s, lost_s = kept_s + kept_now_s, lost_s + lost_now_s
    ran_s = sum(p.restart_s + p.stepped_s + p.saving_s + p.cut_s for p in toll.played)
    newest = toll.played[-1].end if toll.played else None
    return Outcome(
        name=name,
        wall_s=wall_s,
        kept_s=kept_s,
        lost_s=lost_s,
        saving_s=sum(p.saving_s for p in toll.played),
        restart_s=sum(p.restart_s for p in toll.played),
        waiting_s=toll.waiting_s,
        down_s=toll.down_s,
        given_up_s=toll.given_up_s,
        device_s=ran_s * devices,
        kept_device_s=kept_s * devices,
        wasted=dict(wasted),
        ends=dict(ends),
        attempts=len(toll.played),
        refused=tuple(toll.refused),
        complete=int(newest is not None and newest.reason in DONE),
    )


def added(name: str, outcomes: Iterable[Outcome]) -> Outcome:
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
