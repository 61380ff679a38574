"""Three lights over a run: healthy, improving, resources well used. Pure, as of a time.

Each has a colour, its numbers and one sentence. The colour is that of the gravest rule that holds. A
light is grey where nothing can be said: the run is not training, its journal is silent for longer than
max(30 s, 3 × p99 of a step), or there are too few steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tracks_dagster.review.lights import GRAVITY, Colour, Finding, Light, Lights, Question
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.alerts import AlertState
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import about
from tracks_dagster.wings.watch.health import healthy, improving, resources
from tracks_dagster.wings.watch.health.advice import advise
from tracks_dagster.wings.watch.health.finding import NO_BOUNDS, Bounds, Case, Verdicts
from tracks_dagster.wings.watch.health.ranks import STEPS
from tracks_dagster.wings.watch.health.rules import RULES, severity_of
from tracks_dagster.wings.watch.health.tail import Tail


def judge(state: RunState, tail: Tail, as_of: datetime, bounds: Bounds = NO_BOUNDS) -> Lights:
    """Return the three lights of a run. tail: of its open attempt's journal."""
    of_run = {**healthy.of_run(state, as_of), **resources.of_run(state, as_of, bounds)}
    attempt = state.open_attempt
    if attempt is None or state.finished is not None:
        return _not_training(state, as_of, bounds, of_run)
    own = tail if tail.attempt_id == attempt.attempt_id else Tail()
    case = Case(state=state, attempt=attempt, tail=own, as_of=as_of, bounds=bounds)
    verdicts = {**of_run, **resources.without_journal(case), **healthy.of_attempt(case)}
    is_silent = healthy.is_silent(case)
    if not is_silent:
        verdicts |= improving.of_attempt(case)
        verdicts |= resources.of_attempt(case, verdicts)
    findings = _sorted(verdicts, state)
    silence = _silence(case) if is_silent else None
    lights = {
        Question.HEALTHY: _light(
            Question.HEALTHY, findings, silence or _is_healthy(case), healthy.numbers_of(case)
        ),
        Question.IMPROVING: _improving(case, findings, silence),
        Question.RESOURCES: _resources(case, findings, silence),
    }
    if silence is not None:
        lights = {q: _greyed(light, silence) for q, light in lights.items()}
    return Lights(
        run_id=state.run_id,
        attempt_id=attempt.attempt_id,
        as_of=as_of,
        step=own.steps[-1].step if own.steps else None,
        healthy=lights[Question.HEALTHY],
        improving=lights[Question.IMPROVING],
        resources=lights[Question.RESOURCES],
        findings=findings,
        clear=_clear(verdicts),
        advice=advise(case, findings) if not is_silent else None,
    )


def _not_training(state: RunState, as_of: datetime, bounds: Bounds, of_run: Verdicts) -> Lights:
    """Return the lights of a run without an open attempt: grey, but for what its record says."""
    status = run_status(state)
    is_over = state.finished is not None
    waits = {} if is_over or state.attempts else resources.queue(state, as_of, bounds)
    verdicts = {} if is_over else {**of_run, **waits}
    findings = _sorted(verdicts, state)
    lights = {q: _greyed(_light(q, findings, "", {}), status.why) for q in Question}
    if status.state == RunLifecycle.REFUSED:
        lights[Question.HEALTHY] = Light(
            question=Question.HEALTHY,
            colour=Colour.RED,
            sentence=f"It waits for a person: {status.why}",
            rules=lights[Question.HEALTHY].rules,
        )
    return Lights(
        run_id=state.run_id,
        attempt_id=len(state.attempts) or None,
        as_of=as_of,
        step=None,
        healthy=lights[Question.HEALTHY],
        improving=lights[Question.IMPROVING],
        resources=lights[Question.RESOURCES],
        findings=findings,
        clear=_clear(verdicts),
    )


def _light(
    question: Question, findings: tuple[Finding, ...], good: str, numbers: Mapping[str, Json]
) -> Light:
    """Return a light by what was found; `good` is its sentence where that is nothing."""
    own = [each for each in findings if each.light is question]
    if not own:
        return Light(question=question, colour=Colour.GREEN, sentence=good, numbers=numbers)
    more = f" And: {', '.join(each.rule for each in own[1:])}." if own[1:] else ""
    return Light(
        question=question,
        colour=own[0].severity,
        sentence=f"{own[0].sentence}{more}",
        numbers={**numbers, **own[0].numbers},
        rules=tuple(each.rule for each in own),
    )


def _greyed(light: Light, why: str) -> Light:
    """Return the light grey where no rule colours it."""
    if light.rules:
        return light
    return Light(question=light.question, colour=Colour.GREY, sentence=why, numbers=light.numbers)


def _improving(case: Case, findings: tuple[Finding, ...], silence: str | None) -> Light:
    numbers = improving.numbers_of(case)
    words = list(improving.sentences(numbers))
    good = f"{'; '.join(words)}." if words else ""
    light = _light(Question.IMPROVING, findings, good[:1].upper() + good[1:], numbers)
    if words or silence is not None:
        return light
    count = len(case.tail.losses)
    why = f"Too early to say: {count} of {improving.LOSSES_MIN} losses, and no evaluation."
    return _greyed(light, why)


def _resources(case: Case, findings: tuple[Finding, ...], silence: str | None) -> Light:
    numbers = resources.numbers_of(case)
    good = resources.sentence_of(numbers)
    light = _light(Question.RESOURCES, findings, good[:1].upper() + good[1:], numbers)
    if case.newest(STEPS) or silence is not None:
        return light
    count = len(case.tail.steps)
    return _greyed(light, f"Too early to say: {count} of {STEPS} steps.")


def _is_healthy(case: Case) -> str:
    """Return that the gang lives, and when it committed last."""
    own = [c for c in case.state.checkpoints if c.ref.attempt_id == case.attempt.attempt_id]
    saved = (
        f", committed step {own[-1].ref.step} {about(case.age_s(own[-1].at))} ago" if own else ""
    )
    return f"Attempt {case.attempt.attempt_id} trains{saved}."


def _silence(case: Case) -> str:
    """Return why nothing can be said of an open attempt."""
    last_at = case.tail.last_line_at
    if last_at is None:
        return run_status(case.state).why
    return (
        f"Nothing is known of the last {about(case.age_s(last_at))}: its journal is silent for longer "
        f"than {about(healthy.grey_after_s(case))}."
    )


def _sorted(verdicts: Verdicts, state: RunState) -> tuple[Finding, ...]:
    """Return what was found, with the open alerts that others raised, the gravest first."""
    judged = [each for each in verdicts.values() if each is not None]
    others = [_carried(each) for each in state.open_alerts if _is_of_others(each, verdicts)]
    by_rule = {each.rule: each for each in (*others, *judged)}
    return tuple(sorted(by_rule.values(), key=lambda each: GRAVITY.index(each.severity)))


def _is_of_others(alert: AlertState, verdicts: Verdicts) -> bool:
    """Whether an open alert colours a light although no check found it: others raise its rule."""
    rule = RULES.get(alert.body.rule)
    return alert.body.rule not in verdicts and (rule is None or rule.is_event)


def _carried(alert: AlertState) -> Finding:
    rule, body = RULES.get(alert.body.rule), alert.body
    return Finding(
        rule=body.rule,
        severity=Colour(severity_of(body)),
        light=rule.light if rule is not None else Question.HEALTHY,
        sentence=body.text,
        numbers=dict(body.data),
    )


def _clear(verdicts: Verdicts) -> tuple[str, ...]:
    return tuple(sorted(rule for rule, each in verdicts.items() if each is None))
