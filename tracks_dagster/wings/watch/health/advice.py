"""One word of advice on a run that trains, with the three numbers that it rests on. Pure.

A person decides: policies act, advice tells. It says stop where more steps promise nothing (evaluations
flat for long, divergence), retune where another config probably does better, else continue.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from tracks_dagster.review.lights import PER_STEPS, Advice, Colour, Finding
from tracks_dagster.track import names
from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.roles import STEPS, value_of
from tracks_dagster.wings.watch.health import healthy, improving
from tracks_dagster.wings.watch.health.finding import Case

CONTINUE, RETUNE, STOP = "continue", "retune", "stop"
HOUR_S = 3600.0
DATA_KEY = "advice"  # of an alert's data

_STOPS = (names.ALERT_VALIDATION_FLAT, improving.DIVERGENCE)  # when they are red
_RETUNES = (
    names.ALERT_VALIDATION_FLAT,
    improving.LOSS_FLAT,
    healthy.GRADIENT_NORM,
    names.ALERT_STEP_TIME,
    names.ALERT_DATA_WAIT,
    names.ALERT_DEVICE_UNDERUSED,
)


def with_advice(alert: Alert, advice: Advice | None) -> Alert:
    """Return the alert with the advice that held when it was raised, for who is sent it."""
    if advice is None:
        return alert
    return replace(alert, data={**alert.data, DATA_KEY: advice.sentence})


def advise(case: Case, findings: tuple[Finding, ...]) -> Advice | None:
    """Return the advice on an attempt that trains; None before its first step."""
    if not case.tail.steps:
        return None
    by_rule = {each.rule: each for each in findings}
    stops = [by_rule[r] for r in _STOPS if r in by_rule and by_rule[r].severity is Colour.RED]
    retunes = [by_rule[r] for r in _RETUNES if r in by_rule]
    word = STOP if stops else RETUNE if retunes else CONTINUE
    because = (stops or retunes)[0].sentence if stops or retunes else ""
    known = improving.validations(case)
    since = improving.since_best(known[2], known[1])[0] if known is not None and known[2] else None
    return Advice(
        word=word,
        why=because,
        slope_percent=_slope_percent(case),
        evaluations=since,
        left_device_hours=_left(case),
    )


def _slope_percent(case: Case) -> float | None:
    losses = improving.window(case)
    level = median(loss for _, loss in losses) if losses else 0.0
    if not losses or level == 0.0:
        return None
    slope = improving.theil_sen(improving.in_blocks(losses))
    return round(100.0 * PER_STEPS * slope / abs(level), 3)


def _left(case: Case) -> float | None:
    """Return the device hours to the last step; None where the config names no number of steps."""
    steps = value_of(case.attempt.opened.config, case.state.declared.roles, STEPS)
    if type(steps) is not int:
        return None
    left = max(0, steps - case.tail.steps[-1].step)
    placed = case.attempt.placed
    ranks = placed.world_size if placed is not None else case.attempt.opened.compute.ranks
    return round(left * median(s.whole_s for s in case.tail.steps) * ranks / HOUR_S, 3)
