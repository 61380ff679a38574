"""The attempts of a run as a strip of time: when each was open, when it ran, why it ended.

Each attempt has the colour that it has in the loss curve and the lineage picture.
Plain HTML, not SVG: the bars stretch and the words wrap, so that it reads on a phone and on paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape

from tracks_dagster.review.effects.explain.explanation import Stretch
from tracks_dagster.review.effects.explain.sections import span
from tracks_dagster.review.effects.explain.stretches import members
from tracks_dagster.review.effects.receipts import RunReceipts
from tracks_dagster.review.effects.report.loss_curve import colour
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.run_state import AttemptState

BARS_MAX = 200  # of one row; more are one bar from the first to the last
MANY = "soft"  # the class of such a bar


def timeline(run: RunReceipts, history: Sequence[Stretch], *, until: datetime) -> str:
    """Return the strip, from the run's declaration to `until`; empty without an attempt."""
    if not history:
        return ""
    scale = _Scale(run.state.declared_at, until)
    rows = "\n".join(_row(run, stretch, scale, until) for stretch in history)
    return (
        f'<div class="strip">\n{rows}\n<div class="axis"><span>{_clock(scale.begin)}</span>'
        f"<span>{span(scale.span_s)}</span><span>{_clock(until)}</span></div></div>"
    )


class _Scale:
    """Where a moment lies on the strip, in percent of its width."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self.begin = begin
        self.span_s = max((end - begin).total_seconds(), 1e-6)

    def at(self, moment: datetime) -> float:
        share = (moment - self.begin).total_seconds() / self.span_s
        return 100 * min(max(share, 0.0), 1.0)


def _row(run: RunReceipts, stretch: Stretch, scale: _Scale, until: datetime) -> str:
    group = [receipt.attempt for receipt in members(stretch, run.receipts)]
    if len(group) > BARS_MAX:
        bars = _bar(scale, group[0].opened_at, _end(group[-1], until), MANY)
    else:
        bars = "".join(bar for attempt in group for bar in _bars(attempt, scale, until))
    length = sum((_end(a, until) - a.opened_at).total_seconds() for a in group)
    told = (
        f"{escape(stretch.reason or 'open')}, {span(length)}; {stretch.kept_steps} steps kept, "
        f"{stretch.lost_steps} lost"
    )
    name = name_of(stretch)
    return (
        f'<div class="lane"><div class="lane-name">{name} <span class="soft">{told}</span></div>'
        f'<div class="lane-bars" role="img" aria-label="{name}: {told}">{bars}</div></div>'
    )


def name_of(stretch: Stretch) -> str:
    """Return "a03", or "a03–a57 (55 attempts)"."""
    if stretch.count == 1:
        return f"a{stretch.first:02d}"
    return f"a{stretch.first:02d}–a{stretch.last:02d} ({stretch.count} attempts)"


def _bars(attempt: AttemptState, scale: _Scale, until: datetime) -> Iterator[str]:
    """Yield a pale bar until the attempt was placed, and a full one until it ended."""
    end = _end(attempt, until)
    placed = min(attempt.placed_at or end, end)
    yield _bar(scale, attempt.opened_at, placed, f"{colour(attempt.attempt_id)} waits")
    yield _bar(scale, placed, end, colour(attempt.attempt_id))


def _end(attempt: AttemptState, until: datetime) -> datetime:
    """Return when its ranks were over; the record of it may come later."""
    ended = attempt.ended
    if ended is None:
        return max(until, attempt.opened_at)
    finished = parse_time(ended.finished_at) if ended.finished_at else attempt.ended_at
    return max(finished or attempt.opened_at, attempt.opened_at)


def _bar(scale: _Scale, begin: datetime, end: datetime, css: str) -> str:
    left, right = scale.at(begin), scale.at(end)
    return f'<i class="bar {css}" style="left:{left:.2f}%;width:{right - left:.2f}%"></i>'


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
