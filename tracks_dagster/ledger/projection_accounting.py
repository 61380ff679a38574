"""From the state of a run to the narrow rows that its time is accounted from, one an attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tracks_dagster.ledger.ports import Row
from tracks_dagster.ledger.projection_values import row_of
from tracks_dagster.ledger.time_facts import (
    AttemptFacts,
    Closing,
    Reading,
    RunFacts,
    Source,
    family_of,
    time_facts,
)
from tracks_dagster.track.bodies import TimeSpent
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_state import RunState

T = TypeVar("T")


def accounting_rows(state: RunState, before: RunState | None = None) -> dict[str, Sequence[Row]]:
    """Return the rows that can differ from those of `before`, an earlier state, taken in already."""
    facts = time_facts(state)
    known = None if before is None else time_facts(before)
    attempts = _changed(facts.attempts, known.attempts if known else ())
    readings = facts.readings[len(known.readings) if known else 0 :]
    runs = [_run_row(state, facts)]
    if known is not None and before is not None and runs == [_run_row(before, known)]:
        runs = []
    return {
        "run_facts": runs,
        "attempt_facts": [_attempt_row(facts.run_id, attempt) for attempt in attempts],
        "attempt_readings": [_reading_row(facts.run_id, reading) for reading in readings],
    }


def spent_columns(spent: TimeSpent | None) -> dict[str, Json]:
    """Return the columns of what a launch had spent."""
    return {
        "spent_steps_s": spent.steps_s if spent else None,
        "spent_data_s": spent.data_s if spent else None,
        "spent_saving_s": spent.saving_s if spent else None,
        "spent_eval_s": spent.eval_s if spent else None,
    }


def _changed(now: Sequence[T], before: Sequence[T]) -> list[T]:
    return [new for index, new in enumerate(now) if [new] != list(before[index : index + 1])]


def _run_row(state: RunState, facts: RunFacts) -> Row:
    return row_of(
        run_id=facts.run_id,
        model_family=state.declared.model_family,
        team=state.declared.team,
        declared_us=facts.declared_us,
        finished_us=facts.finished_us,
        told_us=facts.told_us,
    )


def _attempt_row(run_id: str, facts: AttemptFacts) -> Row:
    return row_of(
        run_id=run_id,
        attempt_id=facts.attempt_id,
        opened_us=facts.opened_us,
        placed_us=facts.placed_us,
        restored_us=facts.restored_us,
        **_source("asked", facts.asked),
        **_source("restored", facts.restored),
        **_closing(facts.closing),
        devices=facts.devices,
        device_class=facts.device_class,
        accelerator=facts.accelerator,
        cause=facts.cause,
        debit_reason=facts.debit_reason,
        debit_amount=facts.debit_amount,
        cycled_node_count=facts.cycled_node_count,
    )


def _source(name: str, source: Source | None) -> dict[str, Json]:
    return {
        f"{name}_step": source.step if source else None,
        f"{name}_attempt_id": source.attempt_id if source else None,
        f"{name}_steps_s": source.steps_s if source else None,
    }


def _closing(closing: Closing | None) -> dict[str, Json]:
    return {
        "queue_to_us": closing.queue_to_us if closing else None,
        "startup_to_us": closing.startup_to_us if closing else None,
        "restore_to_us": closing.restore_to_us if closing else None,
        "steps_to_us": closing.steps_to_us if closing else None,
        "held_to_us": closing.held_to_us if closing else None,
        "closed_us": closing.closed_us if closing else None,
        "reason": closing.reason if closing else None,
        "reason_family": family_of(closing.reason) if closing else None,
        "fingerprint": closing.fingerprint if closing else None,
        "last_step": closing.last_step if closing else None,
        **spent_columns(closing.spent if closing else None),
    }


def _reading_row(run_id: str, reading: Reading) -> Row:
    return row_of(
        run_id=run_id,
        seq=reading.seq,
        attempt_id=reading.attempt_id,
        told_us=reading.told_us,
        reason=reading.reason,
        reason_family=family_of(reading.reason),
        fingerprint=reading.fingerprint,
    )
