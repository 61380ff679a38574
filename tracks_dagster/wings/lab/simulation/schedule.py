"""A queue played over its devices: time is simulated, the rules are those of the live queue. Pure.

The play knows when work really ends and shows the rules only what a live queue would know: what
somebody estimated, or how long the same task took before. It does not choose anything. What the rules
answer is checked against the devices, so that a rule that gives a gang half of its devices, or a device
twice, ends the play with `FaultyPlan` and no figures.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tracks_dagster.scheduling import rules
from tracks_dagster.scheduling.model import (
    NEVER,
    Demand,
    Device,
    Move,
    Plan,
    Running,
    Start,
    Usage,
)
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.scheduling.recurrence import NEWEST, expected_s, left_s
from tracks_dagster.wings.lab.simulation.floor import FaultyPlan, Floor
from tracks_dagster.wings.lab.simulation.served import NO_OVERHEADS, Overheads, Played, Served, Stay
from tracks_dagster.wings.lab.simulation.workloads import DAY_S, Submission, Workload

# The rules: what waits, what runs, the devices, what teams have had, now in seconds → what follows.
Planner = Callable[
    [Sequence[Demand], Sequence[Running], Sequence[Device], Usage, float],
    Plan,
]

HALF_LIFE_S = 7 * DAY_S  # of what a team has had, by default
MOVES_MAX = 1000  # of one submission; rules that move it more often go round in a circle
LOOK_S = 30.0  # while nothing happens, until what waits is looked at; then twice as long, and so on
LOOK_S_MAX = 600.0
STALLED_LOOKS_MAX = 24  # once nothing is to come any more; the last is 32 years later

STALLED = "nothing that is still to come lets it start"

_WORKED, _SAVED, _FREED = "worked", "saved", "freed"


def play_under(policy: SchedulingPolicy, workload: Workload, overheads: Overheads) -> Played:
    """Play the workload under a policy, by the rules of the live queue."""
    known = rules.inventories(workload.devices)

    def live(
        waiting: Sequence[Demand],
        running: Sequence[Running],
        devices: Sequence[Device],
        usage: Usage,
        now_s: float,
    ) -> Plan:
        return rules.plan(
            *(waiting, running, known),
            rules.PlanContext(policy=policy, now_s=now_s, usage=usage),
            explains=not running,  # its sentences are read only of what nothing can start
        )

    return play(
        workload,
        live,
        overheads=overheads,
        half_life_s=policy.half_life_s,
        looks=policy.preemption,
    )


def play(
    workload: Workload,
    plan: Planner,
    *,
    overheads: Overheads = NO_OVERHEADS,
    half_life_s: float = HALF_LIFE_S,
    looks: bool = True,
) -> Played:
    """Play the workload to its end. Raises FaultyPlan where `plan` gives what it may not.

    looks: ask the rules too while nothing happens and something waits, as the live queue does: a
    promise falls due by the clock alone. Rules that move nothing need no looks.
    """
    return _Play(workload, plan, overheads, half_life_s, looks=looks).run()


@dataclass(slots=True)
class _Entry:
    """A submission on its way. kept_s: work that need not be done again."""

    submission: Submission
    demand: Demand
    expected_s: float | None
    first_expected_s: float | None
    kept_s: float = 0.0
    committed_s: float | None = None
    stays: list[Stay] = field(default_factory=list)
    why_not: str | None = None
    # of the stay that is on
    devices: tuple[str, ...] = ()
    began_s: float = 0.0
    works_s: float = 0.0
    worked_s: float = 0.0
    lost_s: float = 0.0
    asked_s: float | None = None  # when it was asked for a checkpoint
    freed_s: float | None = None  # known once it saves or tears down
    is_moved: bool = False


class _Play:
    """The state of a play; everything in it changes by what one event touches, never by all of it."""

    def __init__(
        self,
        workload: Workload,
        plan: Planner,
        overheads: Overheads,
        half_life_s: float,
        *,
        looks: bool,
    ) -> None:
        self._workload, self._plan, self._overheads = workload, plan, overheads
        self._looks = looks
        self._times: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=NEWEST))
        self._entries: dict[str, _Entry] = {}
        self._waiting: dict[str, Demand] = {}
        self._running: dict[str, _Entry] = {}
        self._floor = Floor(workload.devices)
        self._teams = _Teams(half_life_s)
        self._events: list[tuple[float, int, str, str]] = []
        self._event_count = self._decisions = self._look_count = 0
        self._look_at_s = math.inf
        self._last_plan = Plan()
        self._now_s = self._began_s = workload.submissions[0].at_s if workload.submissions else 0.0
        self._ended_s = self._began_s
        self._waited_free_s = self._fragmented_s = 0.0
        self._before_stall = (0.0, 0.0)

    def run(self) -> Played:
        """Return what became of everything."""
        coming = deque(self._workload.submissions)
        while True:
            event_s = min(
                coming[0].at_s if coming else math.inf,
                self._events[0][0] if self._events else math.inf,
            )
            if min(event_s, self._look_at_s) == math.inf:
                return self._played()
            is_due = (
                self._look_at_s <= event_s
            )  # something came, or got free, or it is time to look
            self._pass(min(event_s, self._look_at_s))
            while coming and coming[0].at_s <= self._now_s:
                self._submit(coming.popleft())
                is_due, self._look_count = True, 0
            while self._events and self._events[0][0] <= self._now_s:
                _, _, what, key = heapq.heappop(self._events)
                if self._happen(what, key):
                    is_due, self._look_count = True, 0
            if not is_due:
                continue
            if self._waiting:
                self._decide()
            self._look_at_s = self._next_look_s(is_stalled=not coming and not self._events)

    def _next_look_s(self, *, is_stalled: bool) -> float:
        """When to ask the rules again if nothing happens until then.

        Once nothing is to come, a long wait may still change the order: what a few looks, each twice as
        far away, do not start would wait for ever.
        """
        is_over = is_stalled and self._look_count >= STALLED_LOOKS_MAX
        if not self._waiting or is_over or not (self._looks or is_stalled):
            return math.inf
        if is_stalled and not self._look_count:
            self._before_stall = (self._waited_free_s, self._fragmented_s)
        interval_s = LOOK_S * 2.0 ** min(self._look_count, STALLED_LOOKS_MAX)
        self._look_count += 1
        return self._now_s + (interval_s if is_stalled else min(interval_s, LOOK_S_MAX))

    # --- what happens ---

    def _submit(self, submission: Submission) -> None:
        if submission.name in self._entries:
            raise ValueError(f"Two submissions are called {submission.name!r}.")
        expected = submission.estimate_s
        if expected is None and submission.task:
            expected = expected_s(tuple(self._times[submission.task]))
        entry = _Entry(
            submission=submission,
            demand=self._demand(submission, expected),
            expected_s=expected,
            first_expected_s=expected,
        )
        self._entries[submission.name] = entry
        self._wait(entry.demand)

    def _demand(self, submission: Submission, expected: float | None) -> Demand:
        memory = None
        if submission.memory_share is not None:
            memory = self._floor.bytes_of(submission.kind, submission.memory_share)
        return Demand(
            key=submission.name,
            count=submission.devices,
            kind=submission.kind,
            memory_bytes=memory,
            workload_class=submission.workload_class,
            team=submission.team,
            owner=submission.owner,
            since_s=submission.at_s,
            work_s=None if expected is None else self._whole_s(expected),
            near=submission.near,
        )

    def _whole_s(self, work_s: float) -> float:
        """How long devices are held for so much work."""
        return self._overheads.bring_up_s + work_s + self._overheads.tear_down_s

    def _happen(self, what: str, key: str) -> bool:
        """Take in an event; return whether devices got free, or may get free by it."""
        entry = self._running.get(key)
        if what == _SAVED:
            return entry is not None and entry.freed_s is None
        if what == _WORKED:
            # A move may have come first: its own events end the stay.
            if entry is None or entry.freed_s is not None or entry.worked_s > self._now_s:
                return False
            entry.freed_s = self._now_s + self._overheads.tear_down_s
            entry.kept_s = entry.submission.work_s
            self._later(entry.freed_s, _FREED, key)
            return False
        assert entry is not None, key  # a stay ends once
        self._free(entry)
        return True

    def _free(self, entry: _Entry) -> None:
        """End the stay: the devices are free, and what was moved waits again."""
        submission, demand = entry.submission, entry.demand
        del self._running[demand.key]
        self._ended_s = self._now_s
        self._floor.give_back(demand, entry.devices)
        self._teams.change(demand.team, -submission.weight, self._now_s)
        entry.stays.append(
            Stay(
                devices=entry.devices,
                began_s=entry.began_s,
                works_s=entry.works_s,
                worked_s=entry.worked_s,
                freed_s=self._now_s,
                lost_s=entry.lost_s,
                is_moved=entry.is_moved,
            )
        )
        if not entry.is_moved:
            if submission.task:
                self._times[submission.task].append(submission.work_s)
            return
        if len(entry.stays) > MOVES_MAX:
            raise FaultyPlan(f"{demand.key} was moved {MOVES_MAX} times and is not done.")
        left = entry.expected_s
        if left is not None:
            left = left_s(left, entry.kept_s)
        entry.demand = replace(
            demand,
            since_s=self._now_s,
            work_s=None if left is None else self._whole_s(left),
            is_interrupted=True,
        )
        self._wait(entry.demand)

    # --- what the rules say ---

    def _decide(self) -> None:
        self._decisions += 1
        plan = self._last_plan = self._plan(
            tuple(self._waiting.values()),
            tuple(self._seen(entry) for entry in self._running.values()),
            self._workload.devices,
            self._teams.usage(self._now_s),
            self._now_s,
        )
        for move in plan.moves:
            self._move(move)
        for start in plan.starts:
            self._start(start)
        for waits in plan.waits:
            if waits.starts == NEVER and waits.key in self._waiting:
                self._entries[waits.key].why_not = waits.why
                self._stop_waiting(waits.key)

    def _seen(self, entry: _Entry) -> Running:
        """What the live queue would know of something that runs. It is asked for all, at each decision.

        What saves is a training: once it steps, its end is known by its pace.
        """
        now_s, demand, every_s = self._now_s, entry.demand, entry.submission.saves_every_s
        left, committed_s, unsaved_s = entry.freed_s, self._resumed_from(entry), 0.0
        if left is not None:
            left -= now_s
        elif every_s is None or now_s <= entry.works_s:
            left = left_s(demand.work_s, now_s - entry.began_s)
            unsaved_s = now_s - entry.works_s
        else:
            left = entry.worked_s + self._overheads.tear_down_s - now_s
            committed_s, unsaved_s = self._saved(entry)
        return Running(
            demand=demand,
            devices=entry.devices,
            began_s=entry.began_s,
            left_s=left,
            committed_s=committed_s,
            unsaved_ranks_s=unsaved_s * demand.count if unsaved_s > 0 else 0.0,
            saves_when_asked=every_s is not None and now_s > entry.works_s,
            is_moving=entry.freed_s is not None,
        )

    def _saved(self, entry: _Entry) -> tuple[float | None, float]:
        """When the newest checkpoint was committed, and the work that is not in it."""
        every_s = entry.submission.saves_every_s
        worked_s = max(0.0, self._now_s - entry.works_s)
        committed_s, unsaved_s = self._resumed_from(entry), worked_s
        if every_s is not None and (saves := int(worked_s / every_s)):
            committed_s, unsaved_s = entry.works_s + saves * every_s, worked_s - saves * every_s
        asked_s = entry.asked_s
        if asked_s is not None and not self._is_saving(entry) and self._now_s - asked_s < unsaved_s:
            committed_s, unsaved_s = asked_s + self._overheads.save_s, self._now_s - asked_s
        return committed_s, unsaved_s

    def _is_saving(self, entry: _Entry) -> bool:
        """Whether the checkpoint that it was asked for is on its way."""
        if entry.asked_s is None:
            return False
        return self._now_s < entry.asked_s + self._overheads.save_s

    @staticmethod
    def _resumed_from(entry: _Entry) -> float | None:
        """When it began, where it resumes from a checkpoint of before."""
        return None if entry.committed_s is None else entry.began_s

    def _start(self, start: Start) -> None:
        demand = self._waiting.get(start.key)
        if demand is None:
            raise FaultyPlan(f"{start.key} was started, and does not wait.")
        self._floor.take(demand, start.devices)
        self._stop_waiting(start.key)
        entry = self._entries[start.key]
        entry.devices, entry.began_s = start.devices, self._now_s
        entry.works_s = self._now_s + self._overheads.bring_up_s
        entry.worked_s = entry.works_s + entry.submission.work_s - entry.kept_s
        entry.lost_s, entry.freed_s, entry.is_moved = 0.0, None, False
        entry.asked_s = None
        self._running[start.key] = entry
        self._teams.change(demand.team, entry.submission.weight, self._now_s)
        self._later(entry.worked_s, _WORKED, start.key)

    def _move(self, move: Move) -> None:
        entry = self._running.get(move.key)
        if entry is None:
            raise FaultyPlan(f"{move.key} was moved, and does not run.")
        if entry.freed_s is not None:
            return  # it is on its way
        if move.saves_first:
            self._ask_to_save(entry)
            return
        over, submission = self._overheads, entry.submission
        committed_s, unsaved_s = self._saved(entry)
        worked_s = max(0.0, self._now_s - entry.works_s)
        saving_s = over.save_s if submission.saves_every_s is not None and worked_s else 0.0
        if over.notice_s is not None:
            saving_s = min(saving_s, over.notice_s)
        is_saved = submission.saves_every_s is not None and saving_s == over.save_s
        entry.worked_s = max(self._now_s, entry.works_s) if worked_s else self._now_s
        entry.works_s = min(entry.works_s, entry.worked_s)
        entry.worked_s += saving_s
        entry.committed_s = entry.worked_s if is_saved and worked_s else committed_s
        entry.lost_s = 0.0 if is_saved else unsaved_s
        entry.kept_s += worked_s - entry.lost_s
        entry.is_moved = True
        entry.freed_s = entry.worked_s + over.tear_down_s
        self._later(entry.freed_s, _FREED, move.key)

    def _ask_to_save(self, entry: _Entry) -> None:
        """Let it save while it works on, unless it does already."""
        if not self._is_saving(entry):
            entry.asked_s = self._now_s
            self._later(self._now_s + self._overheads.save_s, _SAVED, entry.demand.key)

    # --- the accounts ---

    def _wait(self, demand: Demand) -> None:
        self._waiting[demand.key] = demand
        self._floor.wants(demand)

    def _stop_waiting(self, key: str) -> None:
        self._floor.wants_no_more(self._waiting.pop(key))

    def _later(self, at_s: float, what: str, key: str) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (at_s, self._event_count, what, key))

    def _pass(self, at_s: float) -> None:
        """Let time pass until `at_s`."""
        if self._waiting and at_s > self._now_s:
            free_s = self._floor.free * (at_s - self._now_s)
            self._waited_free_s += free_s
            if free_s and not self._floor.something_fits():
                self._fragmented_s += free_s
        self._now_s = at_s

    def _played(self) -> Played:
        waited_free_s, fragmented_s = self._waited_free_s, self._fragmented_s
        if self._waiting:  # for ever: no time of the play is theirs
            waited_free_s, fragmented_s = self._before_stall
        words = {waits.key: waits.why for waits in self._last_plan.waits}
        for key in self._waiting:
            self._entries[key].why_not = f"{STALLED}: {words.get(key, 'nothing is said of it')}"
        return Played(
            workload=self._workload,
            overheads=self._overheads,
            served=tuple(
                Served(
                    submission=entry.submission,
                    stays=tuple(entry.stays),
                    expected_s=entry.first_expected_s,
                    why_not=entry.why_not,
                )
                for entry in self._entries.values()
            ),
            began_s=self._began_s,
            ended_s=self._ended_s,
            waited_free_s=waited_free_s,
            fragmented_s=fragmented_s,
            decisions=self._decisions,
        )


class _Teams:
    """Device seconds that each team has had, decayed to now."""

    def __init__(self, half_life_s: float) -> None:
        self._rate = math.log(2) / half_life_s
        self._devices: defaultdict[str, float] = defaultdict(float)
        self._had: dict[str, float] = {}
        self._at_s = 0.0

    def change(self, team: str, devices: float, now_s: float) -> None:
        """Count `devices` more, or fewer, for the team from now on."""
        self._decay(now_s)
        self._devices[team] += devices

    def usage(self, now_s: float) -> Usage:
        """Return what each team has had."""
        self._decay(now_s)
        return Usage(by_team=self._had)

    def _decay(self, now_s: float) -> None:
        """Bring all to now: what decays at rate λ while h devices are held tends to h/λ."""
        if now_s == self._at_s:
            return
        stays = math.exp(-self._rate * (now_s - self._at_s))
        self._had = {
            team: self._had.get(team, 0.0) * stays + devices / self._rate * (1.0 - stays)
            for team, devices in self._devices.items()
        }
        self._at_s = now_s
