"""Is the run healthy? A living gang, commits in time, ranks that keep up, gradients of one size. Pure.

Each check returns verdicts by rule: a finding, None where the rule does not hold, nothing where it
cannot be judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from statistics import median

from tracks_dagster.checkpoints.cadence import StepTime, seconds_between_saves
from tracks_dagster.reasons.endings import Ending, ending_of
from tracks_dagster.review.lights import Colour, Question
from tracks_dagster.track import names
from tracks_dagster.track.bodies import AUTOMATIC
from tracks_dagster.track.placement import node_of
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.units import about
from tracks_dagster.wings.watch.health.finding import Case, Verdicts, found
from tracks_dagster.wings.watch.health.ranks import STEPS, SlowRank, compared, slow_ranks

# A rank writes a line every 10 s, ships it every 2 s, and a step may be longer than both.
GREY_S_MIN, GREY_P99 = 30.0, 3.0
GONE_S_MIN, GONE_GREY = (
    120.0,
    4.0,
)  # no gang lives: so many times the silence that turns lights grey
RETRIES, RETRIES_WITHIN = 3, timedelta(hours=1)
NORM_FACTOR, NORM_STEPS, NORM_BEFORE_MIN = 10.0, 10, 20
NORM_OPEN_FACTOR = 5.0  # an alert of it ends only below that
COMMIT_YELLOW, COMMIT_RED = 2.0, 4.0
COMMIT_SLACK_S = 60.0  # a save takes its time: of a cadence of seconds so much more is allowed
SPIKE_STEPS = 64  # as many as a loss is compared with (`reasons.divergence`)
SAME_FAILURES = 2

NO_GANG = "no_gang"
RETRIES_IN_AN_HOUR = "retries_in_an_hour"
GRADIENT_NORM = "gradient_norm"
COMMIT_LATE = "commit_late"
SAME_FAILURE = "same_failure"

_HEALTHY = Question.HEALTHY


def grey_after_s(case: Case) -> float:
    """Return after which silence nothing can be said: max(30 s, 3 × p99 of a step)."""
    lengths = sorted(step.whole_s for step in case.tail.steps)
    p99 = lengths[-(-99 * len(lengths) // 100) - 1] if lengths else 0.0  # nearest rank
    return max(GREY_S_MIN, GREY_P99 * p99)


def is_silent(case: Case) -> bool:
    """Whether the newest line of the journal is too old to judge by."""
    at = case.tail.last_line_at
    return at is None or case.age_s(at) > grey_after_s(case)


def of_attempt(case: Case) -> Verdicts:
    """Judge the open attempt of a run."""
    recorded = {**_gang(case), **_spikes(case), **_saves(case)}
    if is_silent(case):
        return recorded
    return {**recorded, **_commits(case), **_ranks(case), **_gradients(case)}


def of_run(state: RunState, as_of: datetime) -> Verdicts:
    """Judge what concerns the run beyond one attempt; it may be between two."""
    return {**_retries(state, as_of), **_same_failure(state)}


def _gang(case: Case) -> Verdicts:
    last_at = case.tail.last_line_at or case.attempt.placed_at
    if case.attempt.placed is None or last_at is None:
        return {}
    silent_s, limit_s = case.age_s(last_at), max(GONE_S_MIN, GONE_GREY * grey_after_s(case))
    if silent_s <= limit_s:
        return {NO_GANG: None}
    sentence = (
        f"No living gang: attempt {case.attempt.attempt_id} is open, and its journal has been silent "
        f"for {about(silent_s)}."
    )
    numbers = {"silent_s": round(silent_s), "limit_s": round(limit_s)}
    return _one(NO_GANG, Colour.RED, sentence, numbers)


def _retries(state: RunState, as_of: datetime) -> Verdicts:
    since = as_of - RETRIES_WITHIN
    retried = [a for a in state.attempts if a.opened.cause == AUTOMATIC and a.opened_at > since]
    before = [b for a in retried if (b := state.attempt(a.attempt_id - 1)) is not None]
    ended = [str(each.reason) for each in before if not state.is_moved(each)]  # that was asked for
    if len(ended) < RETRIES:
        return {RETRIES_IN_AN_HOUR: None}
    sentence = f"{len(ended)} retries within an hour: after {', '.join(ended)}."
    return _one(RETRIES_IN_AN_HOUR, Colour.RED, sentence, {"retries": len(ended)})


def _same_failure(state: RunState) -> Verdicts:
    """The same fingerprint SAME_FAILURES times, and no commit beyond the newest of them yet."""
    ended = [a for a in state.attempts if a.fingerprint is not None and _is_failure(a)]
    if not ended:
        return {SAME_FAILURE: None}
    newest = ended[-1]
    same = [a for a in ended if a.fingerprint == newest.fingerprint]
    last_step = newest.ended.last_step or 0 if newest.ended is not None else 0
    is_past = any(
        c.ref.attempt_id > newest.attempt_id and c.ref.step > last_step for c in state.checkpoints
    )
    if len(same) < SAME_FAILURES or is_past:
        return {SAME_FAILURE: None}
    attempts = ", ".join(str(a.attempt_id) for a in same)
    sentence = f"The same failure {len(same)} times: attempts {attempts} ended as {newest.reason}."
    numbers = {"times": len(same), "reason": str(newest.reason), "last_step": last_step}
    return _one(SAME_FAILURE, Colour.YELLOW, sentence, numbers)


def _is_failure(attempt: AttemptState) -> bool:
    """Whether the attempt needs a look: capacity that was taken says nothing about the run."""
    return attempt.reason is not None and ending_of(attempt.reason) is Ending.FAILURE


def _commits(case: Case) -> Verdicts:
    """The newest commit of this attempt beside its cadence; before the first, its restore counts."""
    attempt, steps = case.attempt, case.newest(1)
    cadence = attempt.opened.cadence or case.state.declared.cadence
    own = [c for c in case.state.checkpoints if c.ref.attempt_id == attempt.attempt_id]
    since = own[-1].at if own else attempt.restored_at
    if since is None or not steps:
        return {}
    step_s = median(step.whole_s for step in case.tail.steps)
    measured = StepTime(
        step_s=step_s, step_count=len(case.tail.steps), attempt_id=attempt.attempt_id
    )
    due_s = seconds_between_saves(cadence, measured)
    if due_s is None:
        return {COMMIT_LATE: None}
    age_s = case.age_s(since)
    for severity, factor in ((Colour.RED, COMMIT_RED), (Colour.YELLOW, COMMIT_YELLOW)):
        if age_s > max(factor * due_s, due_s + factor / COMMIT_YELLOW * COMMIT_SLACK_S):
            sentence = (
                f"The newest commit is {about(age_s)} old, and one is due every {about(due_s)}."
            )
            numbers = {"age_s": round(age_s), "due_s": round(due_s, 1), "step": steps[-1].step}
            return _one(COMMIT_LATE, severity, sentence, numbers)
    return {COMMIT_LATE: None}


def _saves(case: Case) -> Verdicts:
    """A save that failed, as its rank alerted, until a later one succeeds."""
    failed = case.open_alerts(names.ALERT_SAVE_FAILED)
    newest = failed[-1] if failed else None
    if newest is None or any(c.seq > newest.seq for c in case.state.checkpoints):
        return {names.ALERT_SAVE_FAILED: None}
    numbers = {"step": newest.body.data.get("step"), "times": len(failed)}
    return _one(names.ALERT_SAVE_FAILED, Colour.YELLOW, newest.body.text, numbers)


def _spikes(case: Case) -> Verdicts:
    """A spike, as rank 0 alerted, within the newest SPIKE_STEPS steps."""
    spikes = case.open_alerts(names.ALERT_LOSS_SPIKE)
    step = case.tail.steps[-1].step if case.tail.steps else None
    if not spikes:
        return {names.ALERT_LOSS_SPIKE: None}
    at = spikes[-1].body.data.get("step")
    if step is None or not isinstance(at, int):
        return {}
    if step - at > SPIKE_STEPS:
        return {names.ALERT_LOSS_SPIKE: None}
    numbers = {"step": at, "steps_ago": max(0, step - at)}
    return _one(names.ALERT_LOSS_SPIKE, Colour.YELLOW, spikes[-1].body.text, numbers)


def _ranks(case: Case) -> Verdicts:
    if not compared(case.tail.gangs):
        return {}
    named = {
        rank
        for each in case.open_alerts(names.ALERT_SLOW_RANK)
        for rank in each.body.data.get("ranks", ())
    }
    slow = slow_ranks(case.tail.gangs, named)
    if not slow:
        return {names.ALERT_SLOW_RANK: None}
    worst = max(slow, key=lambda each: each.own_s)
    numbers = {
        "ranks": [each.rank for each in slow],
        "cause": worst.cause,
        "own_s": round(worst.own_s, 4),
        "fastest_s": round(worst.fastest_s, 4),
        "nodes": sorted({node for each in slow if (node := _node(case, each.rank))}),
        "step": case.tail.gangs[-1].step,
    }
    sentence = (
        f"Local: {'; '.join(_place(case, each) for each in slow)}. Over {STEPS} steps rank "
        f"{worst.rank} needs {worst.own_s:.3g} s alone, the fastest rank {worst.fastest_s:.3g} s."
    )
    who = tuple(f"rank {each.rank}" for each in slow)
    return found(names.ALERT_SLOW_RANK, _HEALTHY, Colour.YELLOW, sentence, numbers, about=who)


def _place(case: Case, slow: SlowRank) -> str:
    """Return a slow rank with its node, device and cause: "rank 5 on node-1 (cpu), compute"."""
    node, placed = _node(case, slow.rank), case.attempt.placed
    place = next((p for p in placed.ranks if p.rank == slow.rank), None) if placed else None
    on = f" on {node}" if node else ""
    device = f" ({place.device})" if place is not None else ""
    return f"rank {slow.rank}{on}{device}, {slow.cause}"


def _node(case: Case, rank: int) -> str | None:
    placed = case.attempt.placed
    return None if placed is None else node_of(placed, rank)


def _gradients(case: Case) -> Verdicts:
    norms = [s.grad_norm for s in case.tail.steps if s.grad_norm is not None]
    before, newest = norms[:-NORM_STEPS], norms[-NORM_STEPS:]
    if len(before) < NORM_BEFORE_MIN:
        return {}
    usual = median(before)
    factor = NORM_OPEN_FACTOR if case.is_open(GRADIENT_NORM) else NORM_FACTOR
    if usual <= 0 or min(newest) <= factor * usual:
        return {GRADIENT_NORM: None}
    sentence = (
        f"The gradient norm has been above {factor:g} times its median for {NORM_STEPS} steps: "
        f"{newest[-1]:.3g}, the median before is {usual:.3g}."
    )
    numbers = {"grad_norm": newest[-1], "median": usual, "step": case.tail.steps[-1].step}
    return _one(GRADIENT_NORM, Colour.RED, sentence, numbers)


def _one(rule: str, severity: Colour, sentence: str, numbers: Mapping[str, Json]) -> Verdicts:
    return found(rule, _HEALTHY, severity, sentence, numbers)


def numbers_of(case: Case) -> dict[str, Json]:
    """Return what the light shows when nothing is wrong."""
    own = [c for c in case.state.checkpoints if c.ref.attempt_id == case.attempt.attempt_id]
    last_at = case.tail.last_line_at
    return {
        "silent_s": round(case.age_s(last_at), 1) if last_at is not None else None,
        "commit_age_s": round(case.age_s(own[-1].at)) if own else None,
        "retries": sum(a.opened.cause == AUTOMATIC for a in case.state.attempts),
    }
