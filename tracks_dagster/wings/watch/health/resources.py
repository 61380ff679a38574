"""Are the resources well used? Step times, data, devices, the queue, and money. Pure.

What NVML calls utilisation is the share of time in which a kernel ran at all: a device at 90 % may
still compute little, one below 50 % for ten minutes surely does (docs/signals.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median

from tracks_dagster.retry.caps import cost_of, max_cost_of
from tracks_dagster.review.lights import Colour, Question
from tracks_dagster.track import names
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.units import about
from tracks_dagster.wings.watch.health.finding import NO_BOUNDS, Bounds, Case, Verdicts, found
from tracks_dagster.wings.watch.health.ranks import (
    COMMUNICATION,
    COMPUTE,
    DATA,
    REST,
    STEPS,
    own_times,
    window,
)
from tracks_dagster.wings.watch.health.tail import Step, Use

BASE_FIRST, BASE_LAST, BASE_MIN = 11, 60, 10  # steps of the attempt that are its usual time
SPAN_S_MIN = 2.0  # that the steps take which are compared: a moment's load is not a slow gang
SLOWER, OPEN_SLOWER = 1.20, 1.10  # times the usual step; an alert ends only below the second
DATA_SHARE, OPEN_DATA_SHARE = 0.20, 0.15
USE_PERCENT, OPEN_USE_PERCENT = 50, 55
USE_S = IDLE_S = 600.0
PLAYED_USE_S = (
    30.0  # where a drill plays the figures (`idle_device`): nobody waits ten minutes for it
)
THROUGHPUT_STEPS = 100
CAP_YELLOW, CAP_RED = 0.80, 1.00
CPU = "cpu"

DEVICE_IDLE = "device_idle"
QUEUE_LATE = "queue_late"
THROUGHPUT_LOW = "throughput_low"
COST_CAP = "cost_cap"

_RESOURCES = Question.RESOURCES


def of_attempt(case: Case, verdicts: Verdicts) -> Verdicts:
    """Judge the open attempt, whose journal is not silent.

    verdicts: of its ranks. Where one is slow, the step's length is its doing, and no second rule's.
    """
    data = _data(case)
    judged = {**data, **_use(case), **_throughput(case)}
    if verdicts.get(names.ALERT_SLOW_RANK) is not None:
        return {**judged, names.ALERT_STEP_TIME: None, THROUGHPUT_LOW: None}
    slower = _step_time(case)
    finding = slower.get(names.ALERT_STEP_TIME)
    if (
        finding is not None
        and finding.numbers["cause"] == DATA
        and data.get(names.ALERT_DATA_WAIT) is not None
    ):
        slower = {names.ALERT_STEP_TIME: None}  # the wait for data says it already
    if finding is not None:  # nor does it need a comparison with other attempts
        judged[THROUGHPUT_LOW] = None
    return {**judged, **slower}


def without_journal(case: Case) -> Verdicts:
    """Judge what the record alone says of the open attempt, and how long ago its last step was."""
    return {**queue(case.state, case.as_of, case.bounds), **_idle(case)}


def of_run(state: RunState, as_of: datetime, bounds: Bounds = NO_BOUNDS) -> Verdicts:
    """Judge the money that the run has cost by now; it may be between two attempts."""
    cap = max_cost_of(state)
    if cap is None or bounds.prices is None:
        return {COST_CAP: None} if cap is None else {}
    cost = cost_of(state, bounds.prices, as_of)
    share = cost.amount / cap
    if share < CAP_YELLOW:
        return {COST_CAP: None}
    severity = Colour.RED if share >= CAP_RED else Colour.YELLOW
    sentence = (
        f"{cost.amount:.2f} of at most {cap:.2f} {cost.currency} are spent ({share:.0%}); at the cap "
        "the attempt saves and ends."
    )
    numbers = {"amount": round(cost.amount, 2), "cap": cap, "currency": cost.currency}
    return found(COST_CAP, _RESOURCES, severity, sentence, numbers)


def queue(state: RunState, as_of: datetime, bounds: Bounds) -> Verdicts:
    """Judge how long the newest attempt, or the first one to come, has waited for its gang."""
    attempt = state.last_attempt
    if attempt is not None and (attempt.placed is not None or not attempt.is_open):
        return {QUEUE_LATE: None}
    since = state.declared_at if attempt is None else attempt.opened_at
    waited_s = max(0.0, (as_of - since).total_seconds())
    if bounds.queue_s is None or waited_s <= bounds.queue_s:
        return {QUEUE_LATE: None}
    allowed = about(bounds.queue_s)
    sentence = f"It has waited {about(waited_s)} for its start, and its class allows {allowed}."
    numbers = {"waited_s": round(waited_s), "allowed_s": bounds.queue_s}
    return found(QUEUE_LATE, _RESOURCES, Colour.RED, sentence, numbers)


def _step_time(case: Case) -> Verdicts:
    """Whether the newest STEPS steps are all slower than the usual one of this attempt.

    While an alert is open, it is the usual step of the alert that counts: the steps since then must
    not become the usual ones.
    """
    newest, usual = case.newest(STEPS), _usual(case)
    if not newest or usual is None:
        return {}
    base_s, base = usual
    times = [step.whole_s for step in newest]
    if sum(times) < SPAN_S_MIN:
        return {}
    is_open = case.is_open(names.ALERT_STEP_TIME)
    slowest_fast = median(times) if is_open else min(times)
    if base_s <= 0 or slowest_fast <= (OPEN_SLOWER if is_open else SLOWER) * base_s:
        return {names.ALERT_STEP_TIME: None}
    cause = _cause(case, base, newest)
    sentence = (
        f"Systemic: for {STEPS} steps the whole gang has been {median(times) / base_s:.1f} times as "
        f"slow as it was ({median(times):.3g} s a step, {base_s:.3g} s before), and no rank stands "
        f"out{f'; it is {cause}' if cause else ''}."
    )
    numbers = {
        "step_s": round(median(times), 4),
        "usual_s": round(base_s, 4),
        "cause": cause,
        "step": newest[-1].step,
    }
    return found(names.ALERT_STEP_TIME, _RESOURCES, Colour.YELLOW, sentence, numbers)


def _usual(case: Case) -> tuple[float, Sequence[Step]] | None:
    """Return the usual step of the attempt in seconds, and the steps that it is the median of.

    Of steps BASE_FIRST to BASE_LAST, without those that are judged: before them there are the warm-up
    and the compiler.
    """
    first = case.attempt.resumed_step
    judged = {step.step for step in case.newest(STEPS)}
    base = [
        step
        for step in case.tail.early
        if BASE_FIRST <= step.step - first <= BASE_LAST and step.step not in judged
    ]
    alerts = case.open_alerts(names.ALERT_STEP_TIME)
    if alerts and isinstance(known := alerts[-1].body.data.get("usual_s"), int | float):
        return float(known), base
    if len(base) < BASE_MIN:
        return None
    return median(step.whole_s for step in base), base


def _cause(case: Case, base: Sequence[Step], newest: Sequence[Step]) -> str | None:
    """Return which part of a step grew most, in words; None: not known.

    Backward and the optimizer have no time of their own: they lie in the rest of a step, together with
    the exchange. They are expected to grow as the forward passes do, those of the slowest rank, for
    whom all wait; only what the rest grew by beyond that is communication. Example: passes 0.10 →
    0.15 s and a rest of 0.30 → 0.50 s: compute grew by 0.05 + 0.15, communication by 0.05.
    """
    if not base or not newest:
        return None
    was_data_s, was_step_s, was_own_s = _parts(base)
    data_s, step_s, own_s = _parts(newest)
    by_part = {DATA: data_s - was_data_s}
    if was_own_s and own_s:
        slowest_s = max([own_s, *own_times(case.tail.gangs)])
        rest_s, was_rest_s = step_s - own_s, was_step_s - was_own_s
        expected_s = was_rest_s * max(1.0, slowest_s / was_own_s)
        by_part[COMPUTE] = own_s - was_own_s + expected_s - was_rest_s
        placed = case.attempt.placed
        is_alone = placed is not None and placed.world_size == 1
        by_part[REST if is_alone else COMMUNICATION] = rest_s - expected_s
    elif by_part[DATA] < step_s - was_step_s:
        return None  # the step itself, and nobody knows which part of it
    return max(by_part, key=lambda name: by_part[name])


def _parts(steps: Sequence[Step]) -> tuple[float, float, float | None]:
    """Return the medians of (wait for data, step, own forward passes); None: not of all steps known."""
    own = [step.own_s for step in steps if step.own_s is not None]
    own_s = median(own) if len(own) == len(steps) else None
    return median(step.data_s for step in steps), median(step.step_s for step in steps), own_s


def _data(case: Case) -> Verdicts:
    """The share of a step that the ranks wait for data: of the median rank, where all are known."""
    newest = case.newest(STEPS)
    if not newest:
        return {}
    share, waited_s = data_share(case)
    if share <= (OPEN_DATA_SHARE if case.is_open(names.ALERT_DATA_WAIT) else DATA_SHARE):
        return {names.ALERT_DATA_WAIT: None}
    sentence = f"{share:.0%} of a step is waiting for data: {waited_s:.3g} s, over {STEPS} steps."
    numbers = {"share": round(share, 3), "data_s": round(waited_s, 4), "step": newest[-1].step}
    return found(names.ALERT_DATA_WAIT, _RESOURCES, Colour.YELLOW, sentence, numbers)


def data_share(case: Case) -> tuple[float, float]:
    """Return (share of a step, seconds of it) that the median rank waits for data; 0 without steps."""
    newest = case.newest(STEPS)
    if not newest:
        return 0.0, 0.0
    whole_s = median(step.whole_s for step in newest)
    lines = window(case.tail.gangs)
    by_rank = [value for line in lines for value in line.data_s if value is not None]
    waited_s = median(by_rank) if by_rank else median(step.data_s for step in newest)
    return (waited_s / whole_s if whole_s > 0 else 0.0), waited_s


def _use(case: Case) -> Verdicts:
    """Each rank's device, used below USE_PERCENT in every sample for USE_S."""
    use = case.tail.use
    if not use:
        return {}
    is_played = any(drill.kind == "idle_device" for drill in case.state.declared.drills)
    for_s = PLAYED_USE_S if is_played else USE_S
    below = OPEN_USE_PERCENT if case.is_open(names.ALERT_DEVICE_UNDERUSED) else USE_PERCENT
    ranks = max(len(each.percent) for each in use)
    low = {rank: low_s for rank in range(ranks) if (low_s := _low_s(use, rank, below)) >= for_s}
    if not low:
        return {names.ALERT_DEVICE_UNDERUSED: None}
    who = f"{len(low)} of {ranks} devices" if ranks > 1 else "The device"
    newest = [use[-1].percent[rank] for rank in low]
    sentence = (
        f"{who} {'have' if len(low) > 1 else 'has'} been used below {below} % for "
        f"{about(min(low.values()))} (now {max(each or 0 for each in newest)} %)."
    )
    numbers = {"ranks": sorted(low), "for_s": round(min(low.values())), "percent": newest[0]}
    about_whom = tuple(f"rank {rank}" for rank in sorted(low))
    return found(
        names.ALERT_DEVICE_UNDERUSED, _RESOURCES, Colour.RED, sentence, numbers, about=about_whom
    )


def _low_s(use: Sequence[Use], rank: int, below: int) -> float:
    """Return for how long every sample of a rank has been below; 0 where the newest is not."""
    first_at = None
    for each in reversed(use):
        percent = each.percent[rank] if rank < len(each.percent) else None
        if percent is None or percent >= below:
            break
        first_at = each.first_at
    return 0.0 if first_at is None else (use[-1].last_at - first_at).total_seconds()


def _idle(case: Case) -> Verdicts:
    """A device that the attempt holds, and no step on it for IDLE_S."""
    since = _devices_since(case.attempt)
    if since is None:
        return {}
    last_at = max([since, *(step.at for step in case.tail.steps[-1:])])
    idle_s = case.age_s(last_at)
    if idle_s < IDLE_S:
        return {DEVICE_IDLE: None}
    sentence = f"It holds {_devices(case.attempt)} and has finished no step for {about(idle_s)}."
    step = case.tail.steps[-1].step if case.tail.steps else None
    return found(
        DEVICE_IDLE, _RESOURCES, Colour.RED, sentence, {"idle_s": round(idle_s), "step": step}
    )


def _devices_since(attempt: AttemptState) -> datetime | None:
    """Return since when the attempt has held a device; None where it holds none, or only a CPU."""
    if attempt.held is not None:
        return attempt.claimed_at
    placed = attempt.placed
    if placed is None or all(place.device == CPU for place in placed.ranks):
        return None
    return attempt.placed_at


def _devices(attempt: AttemptState) -> str:
    count = len(attempt.held.devices) if attempt.held is not None else 0
    if attempt.placed is not None:
        count = count or attempt.placed.world_size
    return f"{count} devices" if count != 1 else "a device"


def _throughput(case: Case) -> Verdicts:
    """The newest THROUGHPUT_STEPS steps beside what the same config took before on as many devices."""
    usual_s, newest = case.bounds.usual_step_s, case.newest(THROUGHPUT_STEPS)
    if usual_s is None or usual_s <= 0 or not newest:
        return {}
    step_s = median(step.whole_s for step in newest)
    if step_s * THROUGHPUT_STEPS < SPAN_S_MIN:
        return {}
    if step_s <= (OPEN_SLOWER if case.is_open(THROUGHPUT_LOW) else SLOWER) * usual_s:
        return {THROUGHPUT_LOW: None}
    sentence = (
        f"A step takes {step_s:.3g} s, and with this config it took {usual_s:.3g} s before: "
        f"{usual_s / step_s:.0%} of the usual throughput."
    )
    numbers = {"step_s": round(step_s, 4), "usual_s": round(usual_s, 4), "step": newest[-1].step}
    return found(THROUGHPUT_LOW, _RESOURCES, Colour.YELLOW, sentence, numbers)


def numbers_of(case: Case) -> dict[str, Json]:
    """Return what the light shows: the step, its share of waiting, the use of the devices."""
    newest = case.tail.steps[-STEPS:]
    percents = [p for each in case.tail.use[-1:] for p in each.percent if p is not None]
    return {
        "step_s": round(median(step.whole_s for step in newest), 4) if newest else None,
        "data_share": round(data_share(case)[0], 3) if case.newest(STEPS) else None,
        "use_percent": round(sum(percents) / len(percents)) if percents else None,
    }


def sentence_of(numbers: Mapping[str, Json]) -> str:
    """Return what is right, in words."""
    step, share, use = numbers["step_s"], numbers["data_share"], numbers["use_percent"]
    parts = [f"{step:.3g} s a step" if step is not None else "no step yet"]
    if share is not None:
        parts.append(f"{share:.0%} of it waiting for data")
    if use is not None:
        parts.append(f"devices used at {use} %")
    return f"{', '.join(parts)}."
