"""What an attempt tried: why it was opened, with which config, on which samples of which snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.review.effects.explain.explanation import DataSeen, Tried
from tracks_dagster.review.effects.receipts import Receipt
from tracks_dagster.track.bodies import ConfigChange
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.skip_windows import SKIP_WINDOWS, skipped_blocks
from tracks_dagster.track.states.run_state import AttemptState, RunState, trainer_of


def explain_tried(state: RunState, attempt: AttemptState) -> Tried:
    """Return what the attempt was for, with its config and what differs from the one before."""
    declared, opened = state.declared, attempt.opened
    return Tried(
        intent=declared.intent,
        model_family=declared.model_family,
        stage=declared.stage,
        owner=declared.owner,
        team=declared.team,
        trainer=trainer_of(state, attempt),
        cause=opened.cause,
        decided_by=opened.decided_by,
        decision=opened.decision,
        opened_at=format_time(attempt.opened_at),
        config=opened.config,
        changes=_changes(state, attempt),
    )


def explain_data(receipt: Receipt) -> DataSeen:
    """Return which samples of which snapshot the attempt consumed, as far as that is known."""
    attempt, steps = receipt.attempt, receipt.steps
    cursor_from = attempt.restored.cursor if attempt.restored else None
    cursor_to = steps[-1].cursor_to if steps else None
    if attempt.ended is not None:
        cursor_from = attempt.ended.cursor_from if cursor_from is None else cursor_from
        cursor_to = attempt.ended.cursor_to if cursor_to is None else cursor_to
    snapshot, config = attempt.opened.snapshot, attempt.opened.config
    return DataSeen(
        dataset=snapshot.dataset,
        snapshot_id=snapshot.snapshot_id,
        cursor_from=cursor_from,
        cursor_to=cursor_to,
        skipped=_skipped(config, cursor_from, cursor_to),
    )


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


def _skipped(
    config: Mapping[str, Json], cursor_from: int | None, cursor_to: int | None
) -> tuple[tuple[int, int], ...]:
    """Return the ranges of samples that the attempt's skip windows left out between its cursors."""
    batch = config.get("global_batch")
    if type(batch) is not int or cursor_from is None or cursor_to is None:
        return ()
    blocks = skipped_blocks(config.get(SKIP_WINDOWS))
    ranges = [((first - 1) * batch, last * batch) for first, last in blocks]
    return tuple(each for each in ranges if cursor_from <= each[0] and each[1] <= cursor_to)
