"""Plays a training run in simulated time, under a policy and a cadence.

The run is a real `RunState`, folded from real records. The policy is asked as a sensor asks it, and
its answer becomes the record that `attempts.effects.retry` would write. Nothing sleeps and
nothing is drawn: chance is in the world alone. Times are seconds since the simulation began.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.checkpoints.cadence import Exposure
from tracks_dagster.ledger.deciding import Wait
from tracks_dagster.retry.decision import Decision, Refuse, Retry
from tracks_dagster.track.bodies import MANUAL, CheckpointCadence, CheckpointDecision
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.accounting import kept_and_lost
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.lab.simulation.outcome import (
    DONE,
    Outcome,
    PlayedAttempt,
    Totals,
    outcome,
    play,
)
from tracks_dagster.wings.lab.simulation.tracks import (
    BY,
    COMMITS_RECORDED_MAX,
    Job,
    SimulatedRun,
    at,
    seconds,
)
from tracks_dagster.wings.lab.simulation.world import Costs, Launch, Start, World

Decider = Callable[[RunState, datetime], Decision]
# How often an attempt saves, from what the run's attempts before it went through, oldest first.
Pacer = Callable[[list[Exposure]], CheckpointCadence]

ATTEMPTS_MAX = 100_000
DECISIONS_MAX = 10_000  # on one end: a record or a moment each


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What happens to a run. world: called for each simulation; begins_s, horizon_s: when the run
    begins and when its time is over; infinite: when the run is."""

    name: str
    job: Job
    costs: Costs
    world: Callable[[], World]
    horizon_s: float
    begins_s: float = 0.0

    def __post_init__(self) -> None:
        lasts_s = self.horizon_s - self.begins_s
        if lasts_s <= 0:
            raise ValueError(f"{self.name} lasts {lasts_s:g} s; it must be more than 0.")


def simulate(scenario: Scenario, decider: Decider, pacer: Pacer) -> Outcome:
    """Return what becomes of the scenario's run; the same arguments give the same outcome."""
    return _Simulation(scenario, decider, pacer).outcome()


class _Simulation:
    """One run from its first attempt to its end, or to the horizon."""

    def __init__(self, scenario: Scenario, decider: Decider, pacer: Pacer) -> None:
        self._scenario = scenario
        self._decider = decider
        self._pacer = pacer
        self._world = scenario.world()
        self._run = SimulatedRun(scenario.job)
        self._totals = Totals()
        self._met: Counter[str] = Counter()
        self._exposures: list[Exposure] = []
        self._now_s = scenario.begins_s

    def outcome(self) -> Outcome:
        """Play attempt after attempt."""
        self._run.open_again(cause="first", why="The run begins.", time_s=self._now_s)
        for _ in range(ATTEMPTS_MAX):
            played = self._play()
            if played is None or played.end is None or played.end.reason in DONE:
                return self._settled(played)
            if not self._open_next():
                return self._settled(None)
        raise AssertionError(f"{self._scenario.name}: {ATTEMPTS_MAX} attempts and no end.")

    def _play(self) -> PlayedAttempt | None:
        """Play the open attempt; None when it never starts."""
        horizon_s, costs = self._scenario.horizon_s, self._scenario.costs
        attempt = self._run.newest
        launch = self._world.launch(attempt.attempt_id, self._now_s, attempt.opened.compute)
        if launch is None:
            return None
        self._totals.down_s += min(launch.at_s, horizon_s) - self._now_s
        self._now_s = min(launch.at_s, horizon_s)
        if launch.at_s >= horizon_s:
            return None
        start = Start(
            launch=launch,
            resumed_step=attempt.resumed_step,
            config=attempt.opened.config,
            roles=self._scenario.job.roles,
            met=self._met,
        )
        played = play(
            launch,
            attempt.resumed_step,
            attempt.opened.cadence or self._pacer(self._exposures),
            costs,
            self._world.ends(start),
            steps=self._scenario.job.steps,
            horizon_s=horizon_s,
        )
        self._record(launch, played)
        self._totals.played.append(played)
        self._now_s = played.until_s
        return played

    def _record(self, launch: Launch, played: PlayedAttempt) -> None:
        """Append what the attempt's gang, and then its supervisor, would have appended."""
        run, costs = self._run, self._scenario.costs
        run.start(launch)
        if played.restored:
            run.restored(launch.at_s + played.restart_s)
        for step, time_s in played.commits[-COMMITS_RECORDED_MAX:]:
            run.commit(step, time_s, blocking_s=costs.blocking_s)
        exposed_s = played.until_s - launch.at_s
        reason = played.end.reason if played.end else None
        self._exposures.append(
            Exposure(run_id=run.state.run_id, exposed_s=exposed_s, reason=reason)
        )
        if played.end is not None:
            self._met[played.end.message] += 1
            run.end(played.end, played.until_s, last_step=played.last_step, ran_s=exposed_s)

    def _open_next(self) -> bool:
        """Ask the policy, and then a person; return whether another attempt is open in time."""
        ended_s, horizon_s = self._now_s, self._scenario.horizon_s
        decision = self._decide()
        opens_s: float | None = self._now_s
        if not isinstance(decision, Retry):
            opens_s = self._world.person_at_s(self._now_s)
        if isinstance(decision, Refuse):
            refused, number = decision.refused(decided_by=BY), self._run.newest.attempt_id
            self._run.add(Kind.RETRY_REFUSED, refused, self._now_s, number)
            self._totals.refused.append(f"{decision.reason}: {decision.limit}")
        if opens_s is None:
            self._now_s = ended_s if math.isinf(horizon_s) else horizon_s
            self._totals.given_up_s += self._now_s - ended_s
            return False
        self._now_s = min(opens_s, horizon_s)
        self._totals.waiting_s += self._now_s - ended_s
        if opens_s >= horizon_s:
            return False
        if isinstance(decision, Retry):
            self._run.open(decision.opened(decided_by=BY), opens_s)
        else:
            why = "A person takes up the run."
            self._run.open_again(cause=MANUAL, why=why, time_s=opens_s)
        return True

    def _decide(self) -> Decision:
        """Ask until the answer is final or needs a person; do its quarantines and reads first."""
        run = self._run
        for _ in range(DECISIONS_MAX):
            decision = self._decider(run.state, at(self._now_s))
            if isinstance(decision, Retry | Refuse) and decision.quarantine:
                first = decision.quarantine[0]
                body = CheckpointDecision(
                    manifest_sha256=first.ref.manifest_sha256, by=BY, why=first.why
                )
                run.add(Kind.CHECKPOINT_QUARANTINED, body, self._now_s)
            elif isinstance(decision, Wait) and decision.verify is not None:
                run.verify(decision.verify, self._now_s)
            elif isinstance(decision, Wait) and decision.until is not None:
                self._now_s = max(self._now_s, seconds(decision.until))
            else:
                return decision
        raise AssertionError(f"{self._scenario.name}: {DECISIONS_MAX} decisions on one end.")

    def _settled(self, newest: PlayedAttempt | None) -> Outcome:
        """Return the outcome, with the steps that the run rests on in the end.

        newest: how the newest attempt went, unless it ended or never started.
        """
        scenario, last = self._scenario, self._run.newest
        if not last.is_open and last.reason not in DONE:
            # What nobody resumes is kept as far as somebody could resume it.
            self._run.open_again(cause="never", why="It is given up.", time_s=self._now_s)
        last_steps = {}
        if newest is not None and newest.last_step is not None:
            last_steps = {last.attempt_id: newest.last_step}
        return outcome(
            scenario.name,
            devices=scenario.job.devices,
            totals=self._totals,
            steps=kept_and_lost(self._run.state, last_steps),
            step_s=scenario.costs.step_s,
            wall_s=self._now_s - scenario.begins_s,
        )
