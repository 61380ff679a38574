"""One attempt as it ran: what it tried, where it began, how far it is, what is not recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from tracks_dagster.attempts.continuity import Continuity
from tracks_dagster.attempts.pace import describe_silence, last_sign_at
from tracks_dagster.ledger.facts.attempt import AttemptView
from tracks_dagster.review.effects.explain.explanation import DataSeen, Progress, Resumed, Tried
from tracks_dagster.review.effects.narrate import sentence
from tracks_dagster.review.effects.receipts import Receipt
from tracks_dagster.track.bodies import ConfigChange
from tracks_dagster.track.records import Json, Kind, Record
from tracks_dagster.track.samples import SKIP_WINDOWS, skipped_blocks
from tracks_dagster.track.states.run_state import AttemptState, RunState


def explain_tried(state: RunState, attempt: AttemptState) -> Tried:
    """Return what differs from the config of the attempt before."""
    return Tried(changes=_changes(state, attempt))


def explain_data(view: AttemptView) -> DataSeen:
    """Return which samples between the attempt's cursors were left out."""
    config = view.attempt.opened.config
    return DataSeen(skipped=_skipped_samples(config, view.cursor_from, view.cursor_to))


def _changes(state: RunState, attempt: AttemptState) -> tuple[ConfigChange, ...]:
    """Return what differs from the config of the attempt before, each with its why if one is told,
    and what a remedy changed beside the config: what it asks for, how often it saves."""
    before = state.attempt(attempt.attempt_id - 1)
    if before is None:
        return ()
    old, new = before.opened.config, attempt.opened.config
    whys = {change.key: change.why for change in attempt.opened.remediation}
    beside = (
        each for each in attempt.opened.remediation if each.key not in old.keys() | new.keys()
    )
    return (
        *_config_changes(old, new, whys),
        *sorted(beside, key=lambda change: change.key),
    )


def _config_changes(
    old: Mapping[str, Json], new: Mapping[str, Json], whys: Mapping[str, str]
) -> tuple[ConfigChange, ...]:
    return tuple(
        ConfigChange(
            key=key,
            before=old.get(key),
            after=new.get(key),
            why=whys.get(key, "follows from the other changes"),
        )
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    )


def _skipped_samples(
    config: Mapping[str, Json], cursor_from: int | None, cursor_to: int | None
) -> tuple[tuple[int, int], ...]:
    """Return the ranges of samples that the attempt's skip windows left out between its cursors."""
    batch = config.get("global_batch")
    if type(batch) is not int or cursor_from is None or cursor_to is None:
        return ()
    blocks = skipped_blocks(config.get(SKIP_WINDOWS))
    ranges = [((first - 1) * batch, last * batch) for first, last in blocks]
    return tuple(each for each in ranges if cursor_from <= each[0] and each[1] <= cursor_to)


# --- where it began -------------------------------------------------------------------------------


def explain_began(
    attempt: AttemptState, records: Sequence[Record], continuity: Continuity | None
) -> Resumed:
    """Return what was passed over for what `attempt` resumed from; records: the whole track."""
    return Resumed(
        passed_over=tuple(f"record {r.seq}: {sentence(r)}" for r in _passed_over(attempt, records)),
        continuity=continuity,
    )


def _passed_over(attempt: AttemptState, records: Sequence[Record]) -> Iterator[Record]:
    """Yield the quarantines that the attempt made itself, and that of what it was to resume from."""
    asked = attempt.opened.resume
    for record in records[attempt.opened_seq :]:
        if record.kind is not Kind.CHECKPOINT_QUARANTINED:
            continue
        is_asked = asked is not None and record.body["manifest_sha256"] == asked.manifest_sha256
        was_before = attempt.restored_at is None or record.at <= attempt.restored_at
        if was_before and (is_asked or record.attempt_id == attempt.attempt_id):
            yield record


# --- how far it is --------------------------------------------------------------------------------


def explain_progress(
    receipt: Receipt, run_id: str, now: datetime, last_line_at: datetime | None
) -> Progress | None:
    """Return how far the attempt is at `now`; None once it has ended.

    last_line_at: of its journal's newest line, a heartbeat or a step.
    """
    attempt = receipt.attempt
    if not attempt.is_open:
        return None
    newest = receipt.steps[-1] if receipt.steps else None
    silent = describe_silence(run_id, last_sign_at(attempt, last_line_at), now)
    steps = attempt.opened.config.get("steps")
    return Progress(
        step=newest.step if newest else None,
        steps=steps,
        at=newest.at if newest else None,
        last_committed_step=receipt.last_committed_step,
        sentence=_waits(attempt) or " ".join(filter(None, (_runs(receipt), silent))),
    )


def _waits(attempt: AttemptState) -> str | None:
    """Say what it waits for before its ranks have come together, or None."""
    if attempt.placed is not None:
        return None
    if not attempt.claims:
        return "It is open, and no Dagster run has claimed it yet: nothing has been started for it."
    return "It is open: a Dagster run has claimed it, and its ranks are not together yet."


def _runs(receipt: Receipt) -> str:
    began = receipt.attempt.resumed_step
    if not receipt.steps:
        return f"It is still running; no step past step {began} is in its journal yet."
    newest, steps = receipt.steps[-1], receipt.attempt.opened.config.get("steps")
    of = f" of {steps}" if steps is not None else ""
    safe = receipt.last_committed_step
    saved = f"step {safe} is its last commit" if safe is not None else "it has committed none"
    return (
        f"It is still running: step {newest.step}{of} at {newest.at[:19]}Z by its journal; "
        f"{saved}, so {newest.step - max(safe or 0, began)} steps would be lost if it ended now."
    )


# --- what is not recorded -------------------------------------------------------------------------


def missing(receipt: Receipt, evidence_problem: str | None) -> Iterator[str]:
    """Yield a sentence for each thing that the record should hold and does not."""
    attempt = receipt.attempt
    if not attempt.claims:
        yield "No Dagster run has claimed it."
    if attempt.placed is None:
        yield "It was never placed: no rank 0 came up, so nodes and devices are not known."
    elif not receipt.steps:
        yield "Its journal holds no step: it ran none, or the machine went before it was shipped."
    elif (gap := journal_gap(receipt)) is not None:
        yield gap
    if evidence_problem is not None:
        yield evidence_problem


def journal_gap(receipt: Receipt) -> str | None:
    """Say that the end of the journal was not shipped; None where it reaches the last step."""
    ended = receipt.attempt.ended
    if ended is None or not receipt.steps or (ended.last_step or 0) <= receipt.steps[-1].step:
        return None
    return (
        f"Its journal ends at step {receipt.steps[-1].step}, its last step was {ended.last_step}: "
        "the rest was not shipped."
    )
