"""How far an attempt is that has not ended, by its own journal."""

from __future__ import annotations

from datetime import datetime

from tracks_dagster.attempts.effects.hanging import heard_at, silence
from tracks_dagster.review.effects.explain.explanation import Progress
from tracks_dagster.review.effects.receipts import Receipt
from tracks_dagster.track.states.run_state import AttemptState


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
    silent = silence(run_id, heard_at(attempt, last_line_at), now)
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
