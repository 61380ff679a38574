"""Judges runs of stages whose success alone shows nothing: a canary whose loss stays flat, a kitchen
sink that did not read all of its data, a run that became another one on its way.

The verdict is a record of the run, so it is the same for all who ask for it later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tracks_dagster.attempts.data_read import judge_data
from tracks_dagster.attempts.gates import ran_otherwise
from tracks_dagster.attempts.loss_trend import LossTrend, judge_loss
from tracks_dagster.ledger.deciding import Answer, Append
from tracks_dagster.ledger.effects.deciding import HasTracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.retry.stages import CANARY, JUDGED, KITCHEN_SINK, StageRule
from tracks_dagster.stores.journals import read_steps
from tracks_dagster.track.bodies import StageJudged
from tracks_dagster.track.names import WATCH_ATTEMPTS
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.accounting import kept_and_lost
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import counted

STEPS_READ_MAX = 100_000  # of a canary; its journal is read whole


class HasPolicy(HasTracks, Protocol):
    """A world with the policy that holds."""

    @property
    def policy(self) -> RetryPolicy:
        """Has the rule of the canary."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeStages:
    """Appends the verdict on a canary or a kitchen sink, once it has succeeded."""

    name: str = WATCH_ATTEMPTS

    def due(self, world: HasPolicy) -> Iterable[str]:
        """Return the runs of these stages that succeeded and have no verdict, oldest first."""
        return unjudged(world.ledger)

    def decide(self, state: RunState, world: HasPolicy) -> Answer:
        """Return the verdict with its numbers; None where there is one, or nothing to judge."""
        stage = state.declared.stage
        if stage not in JUDGED or state.judged is not None:
            return None
        if run_status(state).state != RunLifecycle.SUCCEEDED:
            return None
        body = self._verdict(state, world)
        draft = world.tracks.draft(Kind.STAGE_JUDGED, body)
        return Append(draft=draft, what="passed" if body.passed else "failed", why=body.why)

    def _verdict(self, state: RunState, world: HasPolicy) -> StageJudged:
        stage = state.declared.stage
        if (why := ran_otherwise(state)) is not None:
            return StageJudged(stage=stage, passed=False, by=self.name, why=why)
        if stage == KITCHEN_SINK:
            read = judge_data(state)
            return StageJudged(stage=stage, passed=read.is_whole, by=self.name, why=read.why)
        trend = _trend(state, world.tracks.store, world.policy.stages.rule(CANARY))
        return StageJudged(
            stage=stage,
            passed=trend.falls,
            by=self.name,
            why=trend.why,
            first=trend.first,
            last=trend.last,
            p=trend.p,
        )


def unjudged(ledger: Ledger, family: str | None = None) -> list[str]:
    """Return the runs that succeeded and wait for a verdict, of that project or of any."""
    asked = {"first": JUDGED[0], "second": JUDGED[1], "family": family}
    rows = ledger.query(_UNJUDGED, {**asked, "state": RunLifecycle.SUCCEEDED})
    return [row["run_id"] for row in rows]


_UNJUDGED = """
select run_id from training_runs
where stage in (:first, :second) and state = :state and gate_key is not null and stage_passed is null
    and (cast(:family as text) is null or model_family = cast(:family as text))
order by declared_at, run_id
"""


def _trend(state: RunState, store: ObjectStore, rule: StageRule) -> LossTrend:
    if rule.loss_falls_by is None:
        return LossTrend(falls=True, why="the policy asks nothing of its loss", count=0)
    accounts = kept_and_lost(state)
    steps = sum(account.kept for account in accounts)
    if steps > STEPS_READ_MAX:
        why = f"it has {counted(steps, 'step')}, and at most {STEPS_READ_MAX} are judged"
        return LossTrend(falls=False, why=why, count=steps)
    losses = [
        line.loss
        for attempt, account in zip(state.attempts, accounts, strict=True)
        if attempt.placed is not None
        for line in read_steps(store, state.ref(attempt), attempt.placed.launch_id)
        if account.resume < line.step <= account.end
    ]
    return judge_loss(losses, by=rule.loss_falls_by, p_max=rule.trend_p_max)
