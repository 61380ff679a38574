"""Is the run improving? The slope of its loss, its validation metric, and whether it diverges. Pure.

The slope is that of Theil and Sen: the median of the slopes between all pairs of points, which a spike
does not move (Sen 1968, Journal of the American Statistical Association 63). It is taken over the
newest max(64, 10 %) losses, as far back as the tail reaches; more than BLOCKS points are first made
into the medians of as many blocks, or a look would cost a second.

Example: losses 3.0, 2.9, 5.0, 2.7 of steps 1 to 4 have the slopes -0.1, 1.0, -0.1, 2.1, -0.1, -2.3 of
their pairs; the median of these is -0.1 a step, whatever the third one is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from statistics import median

from tracks_dagster.reasons.divergence import Diverged, Limits, LossWatch, limits_of
from tracks_dagster.review.lights import Colour, Question
from tracks_dagster.track import names
from tracks_dagster.track.bodies import RetentionRule
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.nearest import did_you_mean
from tracks_dagster.wings.watch.health.finding import Case, Verdicts, found

LOSSES_MIN, LOSSES_SHARE = 64, 0.10
BLOCKS = 64
# An alert ends only when the loss falls by so much of itself over the window.
FALLS_BY = 0.001
# And begins only when it surely falls by less than so much: one-sided 99 %. Looks at the loss are many,
# and half of the slopes of noise are above 0.
FLAT_WITHIN, SURE_Z = 0.005, 2.33
BETTER_BY = 0.001  # of the best value so far: less is not an improvement
FLAT_YELLOW, FLAT_RED = 3, 6  # evaluations in a row
NAMES_MAX = 10  # of metrics, in a sentence
DIVERGING_STEPS = 10  # beyond the limit; the attempt ends itself at 50 (`reasons.divergence`)

LOSS_FLAT = "loss_flat"
BEST_UNKNOWN = "best_unknown"
DIVERGENCE = "divergence"

_IMPROVING = Question.IMPROVING
_NUMERICS = (TerminationReason.NAN_LOSS, TerminationReason.LOSS_DIVERGENCE)


def of_attempt(case: Case) -> Verdicts:
    """Judge the open attempt, whose journal is not silent."""
    return {**_loss(case), **_validation(case), **_divergence(case), **_best(case)}


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between all pairs of (x, y) with different x; 0 below two of them."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if a[0] != b[0]]
    return median(slopes) if slopes else 0.0


def least_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope that the true one is surely above (Sen 1968): of n points, the slope that has
    rank (N - SURE_Z sqrt(n (n - 1) (2n + 5) / 18)) / 2 among all N."""
    slopes = sorted(
        (b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if a[0] != b[0]
    )
    n = len(points)
    spread = SURE_Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return slopes[max(0, int((len(slopes) - spread) / 2))] if slopes else 0.0


def in_blocks(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return the points, of many the medians of BLOCKS neighbouring ones each."""
    if len(points) <= BLOCKS:
        return [(float(x), y) for x, y in points]
    bounds = [round(index * len(points) / BLOCKS) for index in range(BLOCKS + 1)]
    blocks = [points[begin:end] for begin, end in pairwise(bounds)]
    return [(median(x for x, _ in each), median(y for _, y in each)) for each in blocks]


def window(case: Case) -> tuple[tuple[int, float], ...]:
    """Return the newest losses that the slope is taken of; none while there are too few."""
    losses = case.tail.losses
    if not losses:
        return ()
    ran = losses[-1][0] - case.attempt.resumed_step
    first = losses[-1][0] - max(LOSSES_MIN, round(LOSSES_SHARE * ran))
    newest = tuple(each for each in losses if each[0] > first)
    return newest if len(newest) >= LOSSES_MIN else ()


def _loss(case: Case) -> Verdicts:
    losses = window(case)
    if not losses:
        return {}
    points, level = in_blocks(losses), median(loss for _, loss in losses)
    slope, span = theil_sen(points), losses[-1][0] - losses[0][0]
    if case.is_open(LOSS_FLAT):
        falls = slope * span < -FALLS_BY * abs(level)
    else:
        falls = least_slope(points) * span < -FLAT_WITHIN * abs(level)
    if falls:
        return {LOSS_FLAT: None}
    sentence = (
        f"The loss does not fall: its slope over the newest {span + 1} steps is {slope:+.2g} a step, "
        f"at {level:.4g}."
    )
    numbers = {"slope": slope, "steps": span + 1, "loss": level, "step": losses[-1][0]}
    return found(LOSS_FLAT, _IMPROVING, Colour.YELLOW, sentence, numbers)


def validations(case: Case) -> tuple[str, str, list[tuple[int, float]]] | None:
    """Return (metric, direction, (step, value) in order) of what is evaluated while training goes on.

    Of evaluations inside the loop, the run's retention names the metric and which way is better; else
    the first metric with "loss" in its name counts, and less is better. Without any, evals of its
    commits, by the metric that it is promoted by. None where nothing of that is there.
    """
    return _in_the_loop(case) or _of_commits(case.state)


def _in_the_loop(case: Case) -> tuple[str, str, list[tuple[int, float]]] | None:
    series = {each.step: each.metrics for each in case.tail.evaluated}
    named = sorted({name for metrics in series.values() for name in metrics})
    rule = case.state.declared.retention
    if rule.metric in named:
        metric, direction = rule.metric, rule.direction
    else:
        losses = [name for name in named if "loss" in name.lower()]
        if not losses:
            return None
        metric, direction = losses[0], "min"
    points = [(s, float(m[metric])) for s, m in sorted(series.items()) if metric in m]
    return metric, direction, points


def _of_commits(state: RunState) -> tuple[str, str, list[tuple[int, float]]] | None:
    rule = state.declared.promotion
    if rule is None:
        return None
    ended = [e for e in state.evals if e.ended is not None and e.opened.suite == rule.suite]
    values = {
        each.opened.checkpoint.step: each.ended.metrics[rule.metric]
        for each in ended
        if each.ended is not None and rule.metric in each.ended.metrics
    }
    return (rule.metric, rule.direction, sorted(values.items())) if values else None


def since_best(points: Sequence[tuple[int, float]], direction: str) -> tuple[int, float, int]:
    """Return (evaluations since the best, its value, its step): the last that was better by BETTER_BY.

    points: one or more.
    """
    sign = -1.0 if direction == "max" else 1.0
    (best_step, best), since = points[0], 0
    for step, value in points[1:]:
        if sign * (best - value) > BETTER_BY * abs(best):
            best_step, best, since = step, value, 0
        else:
            since += 1
    return since, best, best_step


def _validation(case: Case) -> Verdicts:
    known = validations(case)
    if known is None or not known[2]:
        return {}
    metric, direction, points = known
    since, best, best_step = since_best(points, direction)
    if since < FLAT_YELLOW:
        return {names.ALERT_VALIDATION_FLAT: None}
    severity = Colour.RED if since >= FLAT_RED else Colour.YELLOW
    sentence = (
        f"{metric} has not been better by {BETTER_BY:.1%} for {since} evaluations: the best is "
        f"{best:.5g} of step {best_step}, the newest {points[-1][1]:.5g} of step {points[-1][0]}."
    )
    numbers = {"evaluations": since, "best": best, "best_step": best_step, "newest": points[-1][1]}
    return found(names.ALERT_VALIDATION_FLAT, _IMPROVING, severity, sentence, numbers)


def _divergence(case: Case) -> Verdicts:
    """The loss is far above its recent range, or the attempt before this ended so and is not passed."""
    limits = limits_of(case.attempt.opened.config)
    steps = _beyond(case, limits)
    if steps >= DIVERGING_STEPS:
        newest = case.tail.steps[-1]
        sentence = (
            f"The loss diverges: {steps} steps in a row are far above their recent range, "
            f"{newest.loss:.4g} in step {newest.step}."
        )
        numbers: dict[str, Json] = {"steps": steps, "step": newest.step, "loss": newest.loss}
        return found(DIVERGENCE, _IMPROVING, Colour.RED, sentence, numbers)
    before = case.state.attempt(case.attempt.attempt_id - 1)
    if before is None or before.ended is None or before.reason not in _NUMERICS:
        return {DIVERGENCE: None}
    onset = before.ended.onset_step or before.ended.last_step or 0
    step = case.tail.steps[-1].step if case.tail.steps else case.attempt.resumed_step
    if step > onset:
        return {DIVERGENCE: None}
    sentence = (
        f"Attempt {before.attempt_id} ended as {before.reason} at step {onset}, and this one is at "
        f"step {step}: it has still to get past it."
    )
    return found(DIVERGENCE, _IMPROVING, Colour.RED, sentence, {"onset_step": onset, "step": step})


def _beyond(case: Case, limits: Limits) -> int:
    """Return how many of the newest steps in a row lie beyond the limit of divergence."""
    watch, onset = LossWatch(limits), None
    for step in case.tail.steps:
        if step.loss is None:
            continue
        diverged = watch.take(step.step, step.loss)
        onset = diverged.onset_step if isinstance(diverged, Diverged) else watch.onset_step
    return 0 if onset is None else case.tail.steps[-1].step - onset + 1


def _best(case: Case) -> Verdicts:
    """No checkpoint has the metric by which the run's retention keeps the best."""
    rule, commits = case.state.declared.retention, case.state.checkpoints
    known = {name for each in commits for name in each.body.metrics}
    known |= {name for each in case.tail.evaluated for name in each.metrics}
    is_chosen = rule.keep_best > 0 and rule.metric != RetentionRule().metric
    if not commits or not is_chosen or rule.metric in known:
        return {BEST_UNKNOWN: None}
    names = ", ".join(sorted(known)[:NAMES_MAX]) or "nothing"
    hint = did_you_mean(rule.metric, sorted(known)).strip()
    sentence = (
        f"No checkpoint has {rule.metric}, by which the best are to be kept; there is: {names}"
        f"{f' ({hint})' if hint else ''}. Until one has it, none is kept as the best."
    )
    return found(BEST_UNKNOWN, _IMPROVING, Colour.YELLOW, sentence, {"step": commits[-1].ref.step})


def numbers_of(case: Case) -> dict[str, Json]:
    """Return what the light shows: the loss, its slope, the best value of what is evaluated."""
    losses, known = window(case), validations(case)
    numbers: dict[str, Json] = {
        "loss": case.tail.losses[-1][1] if case.tail.losses else None,
        "slope": theil_sen(in_blocks(losses)) if losses else None,
    }
    if known is not None and known[2]:
        since, best, best_step = since_best(known[2], known[1])
        numbers |= {"metric": known[0], "best": best, "best_step": best_step, "evaluations": since}
    return numbers


def sentences(numbers: dict[str, Json]) -> Iterator[str]:
    """Yield what is right, in words."""
    if numbers["slope"] is not None:
        yield f"the loss falls, {numbers['slope']:+.2g} a step, at {numbers['loss']:.4g}"
    if "metric" in numbers:
        yield f"best {numbers['metric']} {numbers['best']:.5g} at step {numbers['best_step']}"
