"""A run's attempts as a strip of time, and its loss curve; an attempt has one colour in both. Pure.

The page draws the strip as plain HTML: bars stretch and words wrap, so that it reads on a phone and on
paper. The curve, as `lineage_picture`, is SVG written by hand: a page that must open without a network
in ten years needs no chart library. The page's style sheet decides colours, for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from tracks_dagster.review.effects.explain.explanation import Stretch
from tracks_dagster.review.effects.explain.sections import span
from tracks_dagster.review.effects.explain.stretches import members
from tracks_dagster.review.effects.receipts import Receipt, RunReceipts
from tracks_dagster.stores.journals import StepLine
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.run_state import AttemptState

BARS_MAX = 200  # of one row; more are one bar from the first to the last
MANY = "soft"  # the class of such a bar

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 14, 50  # margins for the axes' labels
POINTS_MAX = 1000  # of one line; a screen shows no more
POINTS_ALL_MAX = 40_000  # of the picture; each of many lines gets fewer
POINTS_MIN = 20
COLOUR_COUNT = 6  # classes a0 to a5, repeated
TICK_COUNT = 5


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The data's extent, where it lies on the page, and how many points a line may have."""

    step_min: int
    step_max: int
    loss_min: float
    loss_max: float
    points_max: int

    def x(self, step: float) -> float:
        span = max(1, self.step_max - self.step_min)
        return LEFT + (step - self.step_min) / span * (WIDTH - LEFT - RIGHT)

    def y(self, loss: float) -> float:
        span = self.loss_max - self.loss_min or 1.0
        return TOP + (self.loss_max - loss) / span * (HEIGHT - TOP - BOTTOM)


def loss_curve(receipts: Sequence[Receipt], committed_steps: Iterable[int]) -> str:
    """Return the SVG element; an empty text when no finite loss is known."""
    losses = [s.loss for r in receipts for s in r.steps if math.isfinite(s.loss)]
    if not losses:
        return ""
    frame = _Frame(
        step_min=0,
        step_max=max(s.step for r in receipts for s in r.steps),
        loss_min=min(losses),
        loss_max=max(losses),
        points_max=max(POINTS_MIN, min(POINTS_MAX, POINTS_ALL_MAX // len(receipts))),
    )
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Loss by step">',
        *_axes(frame),
        *_commits(frame, committed_steps),
    ]
    for receipt in receipts:  # grey first, so that what was kept lies on top
        parts += _lost(frame, receipt)
    for receipt in receipts:
        parts += _kept(frame, receipt)
    return "\n".join([*parts, "</svg>"])


def colour(attempt_id: int) -> str:
    """Return the class of an attempt's colour."""
    return f"a{(attempt_id - 1) % COLOUR_COUNT}"


def _kept(frame: _Frame, receipt: Receipt) -> Iterator[str]:
    attempt_id = receipt.attempt.attempt_id
    title = f"attempt {attempt_id}: {receipt.account.kept} steps kept"
    yield from _line(frame, receipt.kept_steps, f"line {colour(attempt_id)}", title)


def _lost(frame: _Frame, receipt: Receipt) -> Iterator[str]:
    if receipt.lost_steps:
        steps = [*receipt.kept_steps[-1:], *receipt.lost_steps]  # joined to what was kept
        title = f"attempt {receipt.attempt.attempt_id}: {receipt.account.lost} steps lost"
        yield from _line(frame, steps, "line lost", title)


def _line(frame: _Frame, steps: Sequence[StepLine], css: str, title: str) -> Iterator[str]:
    shown = [s for s in steps if math.isfinite(s.loss)]
    stride = max(1, math.ceil(len(shown) / frame.points_max))
    if len(shown) == 1:
        x, y = frame.x(shown[0].step), frame.y(shown[0].loss)
        yield f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
    elif shown:
        points = " ".join(f"{frame.x(s.step):.1f},{frame.y(s.loss):.1f}" for s in shown[::stride])
        yield f'<polyline class="{css}" points="{points}"><title>{escape(title)}</title></polyline>'


def _commits(frame: _Frame, steps: Iterable[int]) -> Iterator[str]:
    for step in sorted(set(steps)):
        x = frame.x(step)
        yield (
            f'<line class="commit" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM - 6}" '
            f'y2="{HEIGHT - BOTTOM}"><title>checkpoint of step {step}</title></line>'
        )


def _axes(frame: _Frame) -> Iterator[str]:
    floor = HEIGHT - BOTTOM
    for index in range(TICK_COUNT):
        share = index / (TICK_COUNT - 1)
        loss = frame.loss_min + share * (frame.loss_max - frame.loss_min)
        y = frame.y(loss)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{loss:.3g}</text>'
    spread = frame.step_max - frame.step_min
    ticks = {round(frame.step_min + i * spread / (TICK_COUNT - 1)) for i in range(TICK_COUNT)}
    for step in sorted(ticks):
        x, anchor = frame.x(step), "end" if step == frame.step_max else "middle"  # not cut off
        yield f'<text x="{x:.1f}" y="{floor + 20}" text-anchor="{anchor}">{step}</text>'
    yield f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">step</text>'
