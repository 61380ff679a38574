"""What the record of an attempt does not hold: in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from tracks_dagster.review.effects.receipts import Receipt


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
