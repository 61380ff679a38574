"""What the run of a trial came to, by its track alone. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime

from tracks_dagster.ledger.prices import Prices
from tracks_dagster.retry.caps import cost_of
from tracks_dagster.retry.stage_time import device_s
from tracks_dagster.track.bodies import FAILED, MEASURED, NOT_A_NUMBER, TrialJudged
from tracks_dagster.track.names import TUNE_STUDIES
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.roles import ACCUMULATION, LR, MICRO_BATCH, roles_of
from tracks_dagster.track.samples import SKIP_WINDOWS
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.evals import (
    HAS_ALL_STEPS,
    NOT_FINITE,
    attempts_at,
    final_checkpoint,
    is_lost,
    last_line,
    unsettled,
)
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.states.study_state import Rung
from tracks_dagster.track.text.units import shown

_NUMERIC = (TerminationReason.NAN_LOSS, TerminationReason.LOSS_DIVERGENCE)


def judge(
    metric: str, rung: Rung, run: RunState, *, prices: Prices | None, now: datetime
) -> TrialJudged | None:
    """Return the verdict on the run of a rung; None while it trains, or waits for a person."""
    status = run_status(run)
    if status.state in (RunLifecycle.RUNNING, RunLifecycle.WAITING):
        return None
    final = run.finished.final if run.finished is not None else None
    outcome, value, why = FAILED, None, status.why
    if status.state == RunLifecycle.SUCCEEDED and final is None:
        why = "Nothing was committed."
    elif status.state == RunLifecycle.SUCCEEDED and (other := _other_config(rung, run)):
        outcome, why = NOT_A_NUMBER, other
    elif status.state == RunLifecycle.SUCCEEDED and final is not None:
        outcome, value, why = _lost(metric, run) or _measured(metric, metrics_at(run, final))
    elif run.last_attempt is not None and run.last_attempt.reason in _NUMERIC:
        outcome = NOT_A_NUMBER
    return TrialJudged(
        trial=rung.proposed.trial,
        rung=rung.proposed.rung,
        run_id=run.run_id,
        outcome=outcome,
        value=value,
        checkpoint=final,
        device_s=device_s_of(run, now),
        cost=None if prices is None else cost_of(run, prices, now).amount,
        why=why,
        decided_by=TUNE_STUDIES,
    )


def refused(rung: Rung, why: str) -> TrialJudged:
    """Return the verdict on a run that could not be declared."""
    return TrialJudged(
        trial=rung.proposed.trial,
        rung=rung.proposed.rung,
        run_id=rung.proposed.run_id,
        outcome=FAILED,
        value=None,
        checkpoint=None,
        device_s=0.0,
        why=f"Its run was refused: {why}",
        decided_by=TUNE_STUDIES,
    )


def device_s_of(run: RunState, now: datetime) -> float:
    """Return the device seconds of all attempts of a run by `now`."""
    return sum(device_s(each, now, each.placed_at) for each in run.attempts)


def metrics_at(run: RunState, ref: CheckpointRef) -> Mapping[str, float]:
    """Return what is known of a checkpoint: of its commit by name, of its evals as SUITE/NAME. NaN of
    what is not a finite number."""
    committed = run.checkpoint(ref.manifest_sha256)
    odd = dict.fromkeys(() if committed is None else committed.body.non_finite, math.nan)
    found = {**odd, **({} if committed is None else committed.body.metrics)}
    for each in run.evals:
        if each.opened.checkpoint == ref and each.ended is not None:
            found |= {f"{each.opened.suite}/{name}": v for name, v in each.ended.metrics.items()}
    return found


def _other_config(rung: Rung, run: RunState) -> str:
    """Say what its newest attempt trained otherwise than was proposed, as a retry does after a loss
    that is not a number; empty where nothing is that its value depends on.

    A smaller micro-batch with more accumulation is none: the global batch stays.
    """
    if run.last_attempt is None:
        return ""
    before, after = run.declared.config, run.last_attempt.opened.config
    roles = roles_of(run.declared.roles, before)
    same = {roles.get(MICRO_BATCH), roles.get(ACCUMULATION)}
    names = dict.fromkeys((*rung.proposed.config, *filter(None, [roles.get(LR)]), SKIP_WINDOWS))
    others = [name for name in names if name not in same and before.get(name) != after.get(name)]
    if not others:
        return ""
    changed = ", ".join(f"{name} {shown(after.get(name))}" for name in others)
    proposed = ", ".join(f"{name} {shown(before.get(name))}" for name in others)
    return (
        f"A retry trained with {changed}, not with {proposed}: the value is not that of its config."
    )


def lost_evals(run: RunState, attempts_max: int | None) -> Iterator[tuple[str, str]]:
    """Yield the evals of a trial that will not come by themselves, with why; a run that is nobody's
    trial waits for a person there.

    attempts_max: at one eval, as the policy says; None for no limit.
    """
    checkpoint, attempt = final_checkpoint(run), run.last_attempt
    if run.finished is not None or attempt is None or attempt.reason not in HAS_ALL_STEPS:
        return
    for required in unsettled(run):
        if checkpoint is None:
            yield required.suite, "no committed checkpoint is left to evaluate"
        elif is_lost(run, required, checkpoint, attempts_max=attempts_max):
            tries = attempts_at(run, required, checkpoint)
            ended = tries[-1].ended if tries else None
            failed = (
                f"it failed {len(tries)} times, last: {last_line(ended.message)}" if ended else ""
            )
            yield required.suite, failed or f"it scores the files of {required.of}, which failed"


def _lost(metric: str, run: RunState) -> tuple[str, float | None, str] | None:
    """Return the verdict where the metric's eval was let go by the study; None where it was not."""
    suite = metric.partition("/")[0]
    for each in run.waivers:
        if (each.body.suite, each.body.by) == (suite, TUNE_STUDIES):
            outcome = NOT_A_NUMBER if NOT_FINITE in each.body.why else FAILED
            return outcome, None, f"{suite}: {each.body.why}"
    return None


def _measured(metric: str, metrics: Mapping[str, float]) -> tuple[str, float | None, str]:
    value = metrics.get(metric)
    if value is None:
        there = ", ".join(sorted(metrics)) or "none"
        return FAILED, None, f"It reports no metric {metric!r}; it has: {there}."
    if not math.isfinite(value):
        return NOT_A_NUMBER, None, f"{metric} is not a number at its last checkpoint."
    return MEASURED, value, f"{metric} is {value:g}."
