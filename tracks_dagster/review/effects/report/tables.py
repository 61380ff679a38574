"""The tables of a report: the attempts in numbers, and everything that happened in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from tracks_dagster.review.effects.explain.explanation import Stretch
from tracks_dagster.review.effects.explain.stretches import members
from tracks_dagster.review.effects.narrate import sentence
from tracks_dagster.review.effects.receipts import RunReceipts
from tracks_dagster.review.effects.report.loss_curve import colour
from tracks_dagster.review.effects.report.timeline import name_of
from tracks_dagster.track.records import Record

RECORDS_MAX = 1000  # the newest


def attempt_rows(run: RunReceipts, history: Sequence[Stretch]) -> Iterator[str]:
    """Yield a row for each stretch of attempts."""
    for stretch in history:
        group = members(stretch, run.receipts)
        seconds = sum(r.attempt.ended.device_seconds for r in group if r.attempt.ended)
        only = group[0] if stretch.count == 1 else None
        continuity = only.continuity.sentence if only and only.continuity else "–"
        numbers = [
            stretch.from_step,
            stretch.to_step,
            stretch.kept_steps,
            stretch.lost_steps,
            f"{seconds:.1f}" if any(r.attempt.ended for r in group) else "–",
        ]
        key = "" if only is None else _key(stretch.first)
        yield (
            f"<tr><td>{key}</td><td>{name_of(stretch)}</td>"
            f"<td>{escape(stretch.reason or 'open')}</td>"
            + "".join(f'<td class="number">{number}</td>' for number in numbers)
            + f'<td class="words">{escape(continuity)}</td></tr>'
        )


def _key(attempt_id: int) -> str:
    """Return the colour of an attempt's line in the curve."""
    return (
        f'<svg class="key" viewBox="0 0 20 10"><line class="line {colour(attempt_id)}" x1="0" x2="20" '
        'y1="5" y2="5"/></svg>'
    )


def record_rows(run_id: str, records: Sequence[Record]) -> Iterator[str]:
    """Yield a row for each of the newest records, and say what is left out."""
    if len(records) > RECORDS_MAX:
        yield (
            f'<tr><td></td><td></td><td class="words">The oldest {len(records) - RECORDS_MAX} are left '
            f"out: <code>tracks explain {escape(run_id)} --records</code> tells all.</td></tr>"
        )
    for record in records[-RECORDS_MAX:]:
        yield (
            f'<tr><td class="number">{record.seq}</td>'
            f'<td class="soft">{record.at:%Y-%m-%d %H:%M:%S} UTC</td>'
            f'<td class="words">{escape(sentence(record))}</td></tr>'
        )
