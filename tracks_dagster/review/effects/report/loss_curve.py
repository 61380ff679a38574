"""The loss curve of a run as inline SVG, coloured by attempt, lost steps in grey.

Written by hand: a page that must open without a network in ten years needs no chart library. Colours
are classes, so that the page's style sheet decides them for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from tracks_dagster.review.effects.receipts import Receipt
from tracks_dagster.stores.journals import StepLine

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 14, 50  # margins for the axes' labels
POINTS_MAX = 1000  # of one line; more cannot be told apart on a screen
POINTS_ALL_MAX = 40_000  # of the picture; each of many lines gets fewer
POINTS_MIN = 20
COLOUR_COUNT = 6  # classes a0 to a5, repeated
TICK_COUNT = 5


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
