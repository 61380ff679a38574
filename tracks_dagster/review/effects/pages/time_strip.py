"""A run's attempts as a strip of time, which the page draws as plain HTML. Pure.

Bars stretch and words wrap, so that it reads on a phone and on paper. An attempt has the colour that
its lines have in `charts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.review.effects.explain.stretches import members
from tracks_dagster.review.effects.pages.charts import colour
from tracks_dagster.review.effects.receipts import RunReceipts
from tracks_dagster.review.explain.explanation import Stretch
from tracks_dagster.review.explain.sections import span
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.run_state import AttemptState

BARS_MAX = 200  # of one row; more are one bar from the first to the last
MANY = "soft"  # the class of such a bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """left, width: in percent of the strip, which lasts from the run's declaration on."""

    css: str
    left: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One stretch of attempts. description: the bars in words, for screen readers."""

    name: str
    description: str
    bars: tuple[Bar, ...]


def lanes(
    run: RunReceipts, history: Sequence[Stretch], *, until: datetime, open_word: str
) -> list[Lane]:
    """Return a lane for each stretch, from the run's declaration to `until`.

    open_word: what an attempt without a recorded end is called.
    """
    scale = _Scale(run.state.declared_at, until)
    return [_lane(run, stretch, scale, open_word) for stretch in history]


def name_of(stretch: Stretch) -> str:
    """Return "a03", or "a03–a57 (55 attempts)"."""
    if stretch.count == 1:
        return f"a{stretch.first:02d}"
    return f"a{stretch.first:02d}–a{stretch.last:02d} ({stretch.count} attempts)"


class _Scale:
    """Places a moment on the strip, in percent of its width."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self.begin, self.end = begin, end
        self.span_s = max((end - begin).total_seconds(), 1e-6)

    def bar(self, begin: datetime, end: datetime, css: str) -> Bar:
        left, right = self._at(begin), self._at(end)
        return Bar(css=css, left=left, width=right - left)

    def _at(self, moment: datetime) -> float:
        share = (moment - self.begin).total_seconds() / self.span_s
        return 100 * min(max(share, 0.0), 1.0)


def _lane(run: RunReceipts, stretch: Stretch, scale: _Scale, open_word: str) -> Lane:
    group = [receipt.attempt for receipt in members(stretch, run.receipts)]
    if len(group) > BARS_MAX:
        bars = [scale.bar(group[0].opened_at, _end(group[-1], scale.end), MANY)]
    else:
        bars = [bar for attempt in group for bar in _bars(attempt, scale)]
    length = sum((_end(each, scale.end) - each.opened_at).total_seconds() for each in group)
    description = (
        f"{stretch.reason or open_word}, {span(length)}; {stretch.kept_steps} steps kept, "
        f"{stretch.lost_steps} lost"
    )
    return Lane(name=name_of(stretch), description=description, bars=tuple(bars))


def _bars(attempt: AttemptState, scale: _Scale) -> Iterator[Bar]:
    """Yield a pale bar until the attempt was placed, and a full one until it ended."""
    end = _end(attempt, scale.end)
    placed = min(attempt.placed_at or end, end)
    yield scale.bar(attempt.opened_at, placed, f"{colour(attempt.attempt_id)} waits")
    yield scale.bar(placed, end, colour(attempt.attempt_id))


def _end(attempt: AttemptState, until: datetime) -> datetime:
    """Return when its ranks were over; the record of it may come later."""
    ended = attempt.ended
    if ended is None:
        return max(until, attempt.opened_at)
    finished = parse_time(ended.finished_at) if ended.finished_at else attempt.ended_at
    return max(finished or attempt.opened_at, attempt.opened_at)
