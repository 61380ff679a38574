"""The pictures of a run's report: its attempts as a strip of time, its loss curve, its lineage. Pure.

Each attempt has the colour that it has in the loss curve and the lineage picture. The page draws it as
plain HTML, not SVG: bars stretch and words wrap, so that it reads on a phone and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from tracks_dagster.review.effects.explain.explanation import Stretch
from tracks_dagster.review.effects.explain.sections import span
from tracks_dagster.review.effects.explain.stretches import members
from tracks_dagster.review.effects.receipts import Receipt, RunReceipts
from tracks_dagster.stores.journals import StepLine
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import AttemptState, CheckpointState, RunState

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


# The loss curve and the lineage are SVG written by hand: a page that must open without a network in ten
# years needs no chart library. The page's style sheet decides colours, for light and dark.

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 14, 50  # margins for the axes' labels
POINTS_MAX = 1000  # of one line; a screen shows no more
POINTS_ALL_MAX = 40_000  # of the picture; each of many lines gets fewer
POINTS_MIN = 20
COLOUR_COUNT = 6  # classes a0 to a5, repeated
TICK_COUNT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _CurveFrame:
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
    frame = _CurveFrame(
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


def _kept(frame: _CurveFrame, receipt: Receipt) -> Iterator[str]:
    attempt_id = receipt.attempt.attempt_id
    title = f"attempt {attempt_id}: {receipt.account.kept} steps kept"
    yield from _curve_line(frame, receipt.kept_steps, f"line {colour(attempt_id)}", title)


def _lost(frame: _CurveFrame, receipt: Receipt) -> Iterator[str]:
    if receipt.lost_steps:
        steps = [*receipt.kept_steps[-1:], *receipt.lost_steps]  # joined to what was kept
        title = f"attempt {receipt.attempt.attempt_id}: {receipt.account.lost} steps lost"
        yield from _curve_line(frame, steps, "line lost", title)


def _curve_line(
    frame: _CurveFrame, steps: Sequence[StepLine], css: str, title: str
) -> Iterator[str]:
    shown = [s for s in steps if math.isfinite(s.loss)]
    stride = max(1, math.ceil(len(shown) / frame.points_max))
    if len(shown) == 1:
        x, y = frame.x(shown[0].step), frame.y(shown[0].loss)
        yield f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
    elif shown:
        points = " ".join(f"{frame.x(s.step):.1f},{frame.y(s.loss):.1f}" for s in shown[::stride])
        yield f'<polyline class="{css}" points="{points}"><title>{escape(title)}</title></polyline>'


def _commits(frame: _CurveFrame, steps: Iterable[int]) -> Iterator[str]:
    for step in sorted(set(steps)):
        x = frame.x(step)
        yield (
            f'<line class="commit" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM - 6}" '
            f'y2="{HEIGHT - BOTTOM}"><title>checkpoint of step {step}</title></line>'
        )


def _axes(frame: _CurveFrame) -> Iterator[str]:
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


# --- lineage picture ------------------------------------------------------------------------------
#
# The lineage of a run as inline SVG: attempts over steps, their checkpoints, who resumed from which,
# what was evaluated and promoted.
#
#     step 0 ──────●20╌╌╌      an attempt: what is kept is a line, what was lost is dashed
#                  └────●40    a later one begins under the checkpoint that it resumed from
#
# One row a stretch of attempts, so that 300 of them still are a picture.

WIDTH, ROW, TOP, BOTTOM = 720, 30, 40, 34
LEFT, RIGHT = 176, 28  # for the names, and half of the last label
DOT_GAP = 14  # between two checkpoints of a row, so that its line is seen
EVALS_MAX = 8  # the newest
LABEL_CHARACTERS_MAX = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class _PictureFrame:
    """Where steps and rows lie. rows: attempt id → its row, from 0."""

    step_max: int
    rows: Mapping[int, int]

    def x(self, step: int) -> float:
        return LEFT + step / max(1, self.step_max) * (WIDTH - LEFT - RIGHT)

    def y(self, row: int) -> float:
        return TOP + row * ROW + ROW / 2


def lineage_picture(
    run: RunReceipts, history: Sequence[Stretch], *, open_word: str = "open"
) -> str:
    """Return the SVG element; empty for a run without an attempt.

    open_word: what an attempt without a recorded end is called.
    """
    if not history:
        return ""
    rows = {
        attempt_id: row
        for row, stretch in enumerate(history)
        for attempt_id in range(stretch.first, stretch.last + 1)
    }
    steps = [stretch.to_step for stretch in history] + [c.ref.step for c in run.state.checkpoints]
    frame = _PictureFrame(step_max=max(steps, default=0), rows=rows)
    below = list(_outcomes(run.state, frame, len(history)))
    height = TOP + (len(history) + len(below)) * ROW + BOTTOM
    parts = [
        f'<svg class="picture" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(_describe(run.state, history))}">',
        *_source(run.state, frame),
        *_resumes(run, history, frame),
        *(
            line
            for row, each in enumerate(history)
            for line in _attempts(run, each, row, frame, each.reason or open_word)
        ),
        *(line for each in history for line in _checkpoints(run, each, frame)),
        *below,
        *_axis(frame, height),
    ]
    return "\n".join([*parts, "</svg>"])


def _describe(state: RunState, history: Sequence[Stretch]) -> str:
    """Return the picture in words, for whoever does not see it."""
    resumed = [
        f"attempt {a.attempt_id} from step {a.resumed_step}"
        for a in state.attempts
        if a.resumed_from is not None
    ]
    shown = ", ".join(resumed[:EVALS_MAX]) or "none"
    more = f" and {len(resumed) - EVALS_MAX} more" if len(resumed) > EVALS_MAX else ""
    return (
        f"{len(state.attempts)} attempts in {len(history)} rows, {len(state.checkpoints)} checkpoints; "
        f"resumed: {shown}{more}"
    )


def _source(state: RunState, frame: _PictureFrame) -> Iterator[str]:
    """Yield where it all comes from: the snapshot, and the checkpoint that a branch went on from."""
    snapshot = state.declared.snapshot
    yield _text(8, 16, f"data {snapshot.dataset}@{snapshot.snapshot_id[:12]}", "strong")
    branch = state.declared.branched_from
    if branch is not None:
        x = frame.x(branch.step)
        yield _text(x, TOP - 8, f"branch of {checkpoint_at(branch)}", "strong middle")
        yield _picture_line(x, TOP - 4, x, frame.y(0), "resume")


def _attempts(
    run: RunReceipts, stretch: Stretch, row: int, frame: _PictureFrame, end: str
) -> Iterator[str]:
    y = frame.y(row)
    many = f"–a{stretch.last:02d} ×{stretch.count}" if stretch.count > 1 else ""
    yield _text(8, y + 4, _short(f"a{stretch.first:02d}{many} {end}"))
    for receipt in members(stretch, run.receipts):
        account = receipt.account
        kept_to = max(account.resume, min(account.end, account.last))
        if kept_to > account.resume:
            yield _picture_line(
                frame.x(account.resume),
                y,
                frame.x(kept_to),
                y,
                f"work {colour(account.attempt_id)}",
            )
        if account.last > kept_to:
            yield _picture_line(frame.x(kept_to), y, frame.x(account.last), y, "work wasted")
    x = frame.x(stretch.from_step)
    yield _picture_line(x, y - 5, x, y + 5, f"start {colour(stretch.first)}")


def _resumes(run: RunReceipts, history: Sequence[Stretch], frame: _PictureFrame) -> Iterator[str]:
    """Yield a line down from the checkpoint to the row that resumed from it."""
    for stretch in history:
        source = run.receipts[stretch.first - 1].attempt.resumed_from
        row = frame.rows[stretch.first]
        above = None if source is None else _row_of(run.state, source, frame)
        if source is not None and above is not None and above < row:
            x = frame.x(source.step)
            yield _picture_line(x, frame.y(above), x, frame.y(row), "resume")


def _row_of(state: RunState, ref: CheckpointRef, frame: _PictureFrame) -> int | None:
    return frame.rows.get(ref.attempt_id) if ref.run_id == state.run_id else None


def _checkpoints(run: RunReceipts, stretch: Stretch, frame: _PictureFrame) -> Iterator[str]:
    """Yield the dots of a row: those that something outside of it rests on, and of the others, newest
    first, as many as fit without overlap."""
    made = [c for c in run.state.checkpoints if stretch.first <= c.ref.attempt_id <= stretch.last]
    needed = _needed_outside(run.state, stretch)
    free_to = WIDTH + 0.0
    for checkpoint in sorted(made, key=lambda c: c.ref.step, reverse=True):
        x = frame.x(checkpoint.ref.step)
        if checkpoint.ref in needed or x <= free_to - DOT_GAP:
            free_to = x
            yield _dot(checkpoint, frame)


def _needed_outside(state: RunState, stretch: Stretch) -> set[CheckpointRef]:
    outside = [a for a in state.attempts if not stretch.first <= a.attempt_id <= stretch.last]
    resumed = {a.resumed_from for a in outside if a.resumed_from is not None}
    return resumed | {e.opened.checkpoint for e in state.evals}


def _dot(checkpoint: CheckpointState, frame: _PictureFrame) -> str:
    ref, status = checkpoint.ref, checkpoint.status
    x, y = frame.x(ref.step), frame.y(frame.rows[ref.attempt_id])
    title = f"checkpoint of step {ref.step}: {status}, manifest {ref.manifest_sha256[:12]}"
    return (
        f'<circle class="dot {status}" cx="{x:.1f}" cy="{y:.1f}" r="4.5">'
        f"<title>{escape(title)}</title></circle>"
    )


def _outcomes(state: RunState, frame: _PictureFrame, row: int) -> Iterator[str]:
    """Yield a row for each of the newest evals and for each promotion, under their checkpoint."""
    outcomes = [
        (
            e.opened.checkpoint,
            f"{e.opened.eval_id}: {e.ended.reason if e.ended else 'open'}",
            "eval",
        )
        for e in state.evals[-EVALS_MAX:]
    ] + [
        (
            p.body.checkpoint,
            f"{'' if p.body.promoted else 'not '}promoted to {p.body.alias}",
            "promo",
        )
        for p in state.promotions[-EVALS_MAX:]
    ]
    for index, (ref, words, css) in enumerate(outcomes):
        x, y = frame.x(ref.step), frame.y(row + index)
        above = frame.rows.get(ref.attempt_id)
        line = "" if above is None else _picture_line(x, frame.y(above), x, y, "resume faint")
        mark = f'<path class="{css}" d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"/>'
        yield f"{line}{mark}{_text(x - 12, y + 4, _short(words), 'end')}"


def _axis(frame: _PictureFrame, height: int) -> Iterator[str]:
    floor = height - BOTTOM + 6
    yield _picture_line(LEFT, floor, WIDTH - RIGHT, floor, "grid")
    for step in sorted({0, frame.step_max // 2, frame.step_max}):
        css = "end" if step == frame.step_max else "middle"  # or it is cut off at the side
        yield _text(frame.x(step), floor + 16, f"step {step}", css)


def _picture_line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, css: str = "") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _short(words: str) -> str:
    cut = LABEL_CHARACTERS_MAX
    return words if len(words) <= cut else f"{words[: cut - 1]}…"
