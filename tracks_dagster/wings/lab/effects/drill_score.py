"""The score of a drill: what was expected, what the run's track and journals show, and the times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.attempts.drills import BY, KINDS, Action
from tracks_dagster.review.effects.receipts import RunReceipts
from tracks_dagster.track import names
from tracks_dagster.track.bodies import Alert, Drill
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.states.run_state import AttemptState, RunState

# What is found by an alert, and the attempt goes on: any of these rules is right.
ALERTED: Mapping[str, tuple[str, ...]] = {
    "spike": (names.ALERT_LOSS_SPIKE,),
    "slow": (names.ALERT_SLOW_RANK, names.ALERT_STEP_TIME),
    "data_slow": (names.ALERT_SLOW_RANK, names.ALERT_DATA_WAIT),
    "flat_validation": (names.ALERT_VALIDATION_FLAT,),
    "idle_device": (names.ALERT_DEVICE_UNDERUSED,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRow:
    """One line of the scored table.

    detection_s: from the fault to the record of it: the attempt's or the eval's end, or the alert; None
    where an alert of the kind was open before.
    decision_s: from there to the opening of the next one, a backoff included; recovery_s: to the first
    new step, or to the next claim where only the supervisor was lost. missing: what is not as it should
    be, empty when all is right; skipped: why it could not be played.
    """

    drill: str
    run_id: str
    expected_reason: str
    found_reason: str
    expected_action: str
    found_action: str
    lost_steps: int
    detection_s: float | None
    decision_s: float | None
    recovery_s: float | None
    missing: str
    skipped: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the row counts as right; a skipped drill is not a failure."""
        return bool(self.skipped) or not self.missing


def score(run: RunReceipts, drill: Drill) -> DrillRow:
    """Return the row of a run that was declared with one drill."""
    kind = KINDS[drill.kind]
    state = run.state
    first = state.attempts[0] if state.attempts else None
    skipped = next(
        (str(n.body.data["skipped"]) for n in state.notes if "skipped" in n.body.data), ""
    )
    reason = _found_reason(state, first, drill.kind)
    action = _found_action(run, drill.kind)
    expected = kind.reason.value if kind.reason else "–"
    wrong = [] if skipped else list(_wrong(run, drill, expected, reason, action))
    fault_at, found_at = _fault_at(state, first), _found_at(state, first, drill)
    return DrillRow(
        drill=f"{drill.kind}@{drill.step}",
        run_id=state.run_id,
        expected_reason=expected,
        found_reason=reason,
        expected_action=kind.action.value,
        found_action=action,
        lost_steps=sum(receipt.account.lost for receipt in run.receipts),
        detection_s=_seconds(fault_at, found_at),
        decision_s=_seconds(found_at, _next_opened_at(state, drill.kind)),
        recovery_s=_recovery_s(run, drill.kind, fault_at),
        missing="; ".join(wrong),
        skipped=skipped,
    )


def _found_reason(state: RunState, first: AttemptState | None, kind: str) -> str:
    if kind == "evaluator_crash":
        ended = [str(each.ended.reason) for each in state.evals if each.ended is not None]
        return ended[0] if ended else "–"
    reason = first.reason if first is not None else None
    meant = [None, TerminationReason.COMPLETED]
    if kind in ALERTED:  # it is stopped once its alert is there
        meant.append(TerminationReason.USER_CANCELLED)
    return "–" if reason in meant else str(reason)


def _found_action(run: RunReceipts, kind: str) -> str:
    if run.status.state == RunLifecycle.REFUSED:
        return Action.REFUSED.value
    if kind == "evaluator_crash" and len(run.state.evals) > 1 and len(run.state.attempts) == 1:
        return Action.EVAL_RETRIED.value
    action = Action.RETRIED if len(run.state.attempts) > 1 else Action.CONTINUES
    return str(action.value)


def _wrong(
    run: RunReceipts, drill: Drill, expected: str, reason: str, action: str
) -> Iterator[str]:
    kind, state = KINDS[drill.kind], run.state
    if reason != expected:
        yield f"ended as {reason}"
    if action != kind.action.value:
        yield f"the run was {action}" if action != Action.CONTINUES.value else "nothing was retried"
    meant = [RunLifecycle.REFUSED if kind.action is Action.REFUSED else RunLifecycle.SUCCEEDED]
    meant += [RunLifecycle.CANCELLED] if drill.kind in ALERTED else []
    if run.status.state not in meant:
        yield f"the run is {run.status.state}: {run.status.why}"
    if not has_fired(state) and not kind.repeats:
        yield "it did not fire"
    yield from _kind_wrong(state, drill)


def _kind_wrong(state: RunState, drill: Drill) -> Iterator[str]:
    """Yield what only this kind of drill must leave behind, and did not."""
    first = state.attempts[0]
    match drill.kind:
        case kind if kind in ALERTED and alerted_at(state, drill) is None:
            yield f"no alert of {' or '.join(ALERTED[kind])}"
        case "kill_run_worker" if len(first.claims) < 2:
            yield "the gang was not adopted by another supervisor"
        case "corrupt_checkpoint" if not any(c.status == "quarantined" for c in state.checkpoints):
            yield "the corrupt checkpoint was not quarantined"
        case "nan" if first.ended is not None and first.ended.onset_step is None:
            yield "no onset step"
        case "hang" if first.ended is not None and first.ended.rule != "hung":
            yield f"found by the rule {first.ended.rule}"


def _fault_at(state: RunState, first: AttemptState | None) -> datetime | None:
    """Return when the drill fired; where it leaves no note, when the last rank ended."""
    fired_at = _fired_at(state)
    if fired_at is not None or first is None or first.ended is None:
        return fired_at
    return parse_time(first.ended.finished_at) if first.ended.finished_at else None


def _found_at(state: RunState, first: AttemptState | None, drill: Drill) -> datetime | None:
    """Return the time of the first record of the fault."""
    match drill.kind:
        case kind if kind in ALERTED:
            return alerted_at(state, drill)
        case "evaluator_crash":
            return next((each.ended_at for each in state.evals if each.ended is not None), None)
        case kind if KINDS[kind].reason is None:
            return None
    return first.ended_at if first is not None else None


def alerted_at(state: RunState, drill: Drill) -> datetime | None:
    """Return the time of the alert that a drill is found by: the first one after it has fired.

    On a busy machine its rank may have been slow before: while that alert is open, no other comes.
    """
    fired_at = _fired_at(state)
    found = [each for each in state.alerts if _is_found_by(drill, each.body)]
    if fired_at is None:
        return found[0].at if found else None
    later = [each.at for each in found if each.at >= fired_at]
    still = [a.at for a in found if a.at < fired_at and (a.cleared_at or fired_at) >= fired_at]
    return next(iter([*later, *still]), None)


def _is_found_by(drill: Drill, alert: Alert) -> bool:
    """Whether an alert is of the drill's kind, and names its rank where it is of one."""
    is_of_kind = alert.rule in ALERTED.get(drill.kind, ())
    about = alert.data.get("about", ())
    return is_of_kind and (drill.rank is None or f"rank {drill.rank}" in about)


def has_fired(state: RunState) -> bool:
    """Whether a drill has claimed its fault, right before it."""
    return _fired_at(state) is not None


def _fired_at(state: RunState) -> datetime | None:
    return next((note.at for note in state.notes if note.body.by == BY), None)


def _next_opened_at(state: RunState, kind: str) -> datetime | None:
    opened = state.evals if kind == "evaluator_crash" else state.attempts
    return opened[1].opened_at if len(opened) > 1 else None


def _recovery_s(run: RunReceipts, kind: str, fault_at: datetime | None) -> float | None:
    if kind == "kill_run_worker" and len(run.state.attempts[0].claims) > 1:
        return _seconds(fault_at, run.state.attempts[0].claims[1].at)
    is_lost = KINDS[kind].action is Action.REFUSED  # its second attempt only confirms
    if is_lost or len(run.receipts) < 2 or not run.receipts[1].steps:
        return None
    return _seconds(run.receipts[0].attempt.ended_at, parse_time(run.receipts[1].steps[0].at))


def _seconds(begin: datetime | None, end: datetime | None) -> float | None:
    if begin is None or end is None or end < begin:
        return None
    return round((end - begin).total_seconds(), 1)
