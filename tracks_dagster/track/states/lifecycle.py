"""A training run's status: one word and a sentence, by its track alone.

What only the daemon knows (a sensor that is switched off) and what only clocks know (a backoff) is
not here: a decision that is due counts as running, no matter who has to make it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from tracks_dagster.track.bodies import EvalRequirement
from tracks_dagster.track.names import ALERT_FIRST_ATTEMPT_HELD, ALONE, IMPORTED, TUNE_STUDIES
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.end_words import end_label
from tracks_dagster.track.states.evals import (
    HAS_ALL_STEPS,
    attempts_at,
    final_checkpoint,
    unsettled,
    what_evals_wait_for,
)
from tracks_dagster.track.states.exactness import inexact_resumes
from tracks_dagster.track.states.run_state import AttemptState, RunState

FOR_A_PERSON = "waiting for a person: "  # before what a person has to do
TRIAL_WAITS = "waits for a person: "  # after the name of a trial's run
NOT_OBEYED = "not obeyed yet"  # of a stop, in the words of a state


class RunLifecycle(StrEnum):
    """The states of a run, as `status`, the ledger and the outcome name them."""

    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    IMPORTED = "imported"


FINISHED_AS = {
    "converged": RunLifecycle.SUCCEEDED,
    "step_budget": RunLifecycle.SUCCEEDED,
    "early_stop": RunLifecycle.SUCCEEDED,
    "cost_stop": RunLifecycle.CANCELLED,
    "user": RunLifecycle.CANCELLED,
    IMPORTED: RunLifecycle.IMPORTED,  # no query for what is due names this state
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """state: a `RunLifecycle`; why: a sentence for people, with what to do when that is theirs."""

    state: str
    why: str


def run_status(state: RunState) -> RunStatus:
    """Return the status of a run, and which of its resumes were not exact."""
    status, inexact = _run_status(state), inexact_resumes(state)
    return status if not inexact else replace(status, why=f"{status.why} {inexact}")


def _run_status(state: RunState) -> RunStatus:
    if state.finished is not None:
        # A stop cause of a newer version is shown as what it is: not known to be a success.
        lifecycle = FINISHED_AS.get(state.finished.stop_cause, RunLifecycle.CANCELLED)
        return _status(lifecycle, state.finished.why)
    attempt = state.last_attempt
    if attempt is None:
        return _status(RunLifecycle.RUNNING, _before_the_first(state))
    if attempt.is_open:
        words = "; ".join(filter(None, [_doing(attempt), asked_end(state)]))
        return _status(RunLifecycle.RUNNING, f"{words}.")
    return _between_attempts(state, attempt)


def is_drained_by_study(state: RunState) -> bool:
    """Whether the study of a trial asked for the end of its newest attempt."""
    attempt = state.last_attempt
    stop = None if attempt is None else state.stop_for(attempt)
    return stop is not None and stop.body.by == TUNE_STUDIES


def trial_for_a_person(state: RunState) -> str | None:
    """Say what a person has to do about the run of a trial; None where it goes on without one."""
    status = run_status(state)
    if status.state != RunLifecycle.WAITING or is_drained_by_study(state):
        return None
    return f"{state.run_id} {TRIAL_WAITS}{status.why}"


def _before_the_first(state: RunState) -> str:
    """Say what is due before there is an attempt; the newest alert on why it waits counts."""
    stop = next((stop for stop in state.stops if stop.body.mode == "stop"), None)
    if stop is not None:
        asked = f"{stop.body.by} asked to stop ({stop.body.why})"
        return f"Declared; {asked}: the run is about to be finished."
    alerts = [
        alert.body.text for alert in state.alerts if alert.body.rule == ALERT_FIRST_ATTEMPT_HELD
    ]
    return alerts[-1] if alerts else "Declared; its first attempt is about to be opened."


def _doing(attempt: AttemptState) -> str:
    name = f"Attempt {attempt.attempt_id}"
    if attempt.restored is not None:
        return f"{name} is training from step {attempt.restored.step} on"
    if attempt.placed is not None:
        return f"{name} is restoring"
    if attempt.claims:
        return f"{name} is starting its gang"
    return f"{name} is opened and waits for a supervisor"


def asked_end(state: RunState) -> str:
    """Say who asked for the end of the open attempt, and when; empty where nobody did."""
    attempt = state.open_attempt
    stop = None if attempt is None else state.stop_for(attempt)
    if stop is None:
        return ""
    at, body = f"{format_time(stop.at)[:19]}Z", stop.body
    return f"{body.by} asked to {body.mode} it at {at} ({body.why}), {NOT_OBEYED}"


def _between_attempts(state: RunState, attempt: AttemptState) -> RunStatus:
    """Say what is due, and from whom, after the newest attempt has ended."""
    ended = f"Attempt {attempt.attempt_id} ended as {end_label(attempt)}"
    if state.declared.model_family == ALONE:
        return _alone(state, attempt, ended)
    stop = next((stop for stop in state.stops if stop.body.mode == "stop"), None)
    if stop is not None:
        asked = f"{stop.body.by} asked to stop ({stop.body.why})"
        return _status(RunLifecycle.RUNNING, f"{ended}; {asked}: the run is about to be finished.")
    if attempt.reason in HAS_ALL_STEPS:
        if final_checkpoint(state) is None and (
            lost := what_evals_wait_for(state, attempts_max=None)
        ):
            return _status(RunLifecycle.WAITING, f"{ended}; {'; '.join(lost)}.")
        return _status(RunLifecycle.RUNNING, f"{ended}; {_due_at_the_end(state)}.")
    if state.refusal is not None:
        refusal = state.refusal.body
        return _status(RunLifecycle.REFUSED, f"{refusal.decision} {refusal.what_to_do}")
    is_ended_by_a_person = attempt.reason is TerminationReason.USER_CANCELLED
    by_policy = state.is_moved(attempt) or state.spent_by(attempt) is not None
    is_drained = state.stop_for(attempt) is not None and not by_policy
    if is_ended_by_a_person or is_drained:
        waits = "" if is_ended_by_a_person else "; the run waits"
        how = f'`tracks retry {state.run_id} --why "…"` resumes from its newest checkpoint'
        return _status(RunLifecycle.WAITING, f"{ended}{waits}, as a person asked; {how}.")
    return _status(RunLifecycle.RUNNING, f"{ended}; the decision about a retry is due.")


def _alone(state: RunState, attempt: AttemptState, ended: str) -> RunStatus:
    """Say what a script that no daemon looks after has come to, and that only its caller goes on."""
    newest = state.resumes_from
    at = "afresh" if newest is None else f"from step {newest.step} on"
    if attempt.reason in HAS_ALL_STEPS:
        return _status(RunLifecycle.SUCCEEDED, f"{ended}; started again, the script trains {at}.")
    why = f"{ended}; nobody retries a script outside an attempt: started again, it trains {at}."
    return _status(RunLifecycle.WAITING, why)


def _due_at_the_end(state: RunState) -> str:
    suites = ", ".join(f"{each.suite}{_failures(state, each)}" for each in unsettled(state))
    return f"evals are due: {suites}" if suites else "promotion and the run's finish are due"


def _failures(state: RunState, required: EvalRequirement) -> str:
    final = final_checkpoint(state)
    tries = [] if final is None else attempts_at(state, required, final)
    count = sum(each.ended is not None for each in tries)
    times = "once" if count == 1 else f"{count} times"
    return f" (failed {times})" if count else ""


def _status(lifecycle: RunLifecycle, why: str) -> RunStatus:
    return RunStatus(state=lifecycle.value, why=why)
