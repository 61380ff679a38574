"""The lineage of a run as inline SVG: attempts over steps, their checkpoints, who resumed from which,
what was evaluated and promoted. Pure.

    step 0 ──────●20╌╌╌      an attempt: what is kept is a line, what was lost is dashed
                 └────●40    a later one begins under the checkpoint that it resumed from

One row a stretch of attempts, so that 300 of them still are a picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tracks_dagster.review.effects.explain.stretches import members
from tracks_dagster.review.effects.pages.charts import colour
from tracks_dagster.review.effects.receipts import RunReceipts
from tracks_dagster.review.explain.explanation import Stretch
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import CheckpointState, RunState

WIDTH, ROW, TOP, BOTTOM = 720, 30, 40, 34
LEFT, RIGHT = 176, 28  # for the names, and half of the last label
DOT_GAP = 14  # between two checkpoints of a row, so that its line is seen
EVALS_MAX = 8  # the newest
LABEL_CHARACTERS_MAX = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
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
    frame = _Frame(step_max=max(steps, default=0), rows=rows)
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
    """Return the picture in words, for anyone who does not see it."""
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


def _source(state: RunState, frame: _Frame) -> Iterator[str]:
    """Yield where it all comes from: the snapshot, and the checkpoint that a branch went on from."""
    snapshot = state.declared.snapshot
    named = (
        f"data {snapshot.dataset}@{snapshot.snapshot_id[:12]}" if snapshot else "no snapshot named"
    )
    yield _text(8, 16, named, "strong")
    branch = state.declared.branched_from
    if branch is not None:
        x = frame.x(branch.step)
        yield _text(x, TOP - 8, f"branch of {checkpoint_at(branch)}", "strong middle")
        yield _line(x, TOP - 4, x, frame.y(0), "resume")


def _attempts(
    run: RunReceipts, stretch: Stretch, row: int, frame: _Frame, end: str
) -> Iterator[str]:
    y = frame.y(row)
    many = f"–a{stretch.last:02d} ×{stretch.count}" if stretch.count > 1 else ""
    yield _text(8, y + 4, _short(f"a{stretch.first:02d}{many} {end}"))
    for receipt in members(stretch, run.receipts):
        account = receipt.account
        kept_to = max(account.resume, min(account.end, account.last))
        if kept_to > account.resume:
            yield _line(
                frame.x(account.resume),
                y,
                frame.x(kept_to),
                y,
                f"work {colour(account.attempt_id)}",
            )
        if account.last > kept_to:
            yield _line(frame.x(kept_to), y, frame.x(account.last), y, "work wasted")
    x = frame.x(stretch.from_step)
    yield _line(x, y - 5, x, y + 5, f"start {colour(stretch.first)}")


def _resumes(run: RunReceipts, history: Sequence[Stretch], frame: _Frame) -> Iterator[str]:
    """Yield a line down from the checkpoint to the row that resumed from it."""
    for stretch in history:
        source = run.receipts[stretch.first - 1].attempt.resumed_from
        row = frame.rows[stretch.first]
        above = None if source is None else _row_of(run.state, source, frame)
        if source is not None and above is not None and above < row:
            x = frame.x(source.step)
            yield _line(x, frame.y(above), x, frame.y(row), "resume")


def _row_of(state: RunState, ref: CheckpointRef, frame: _Frame) -> int | None:
    return frame.rows.get(ref.attempt_id) if ref.run_id == state.run_id else None


def _checkpoints(run: RunReceipts, stretch: Stretch, frame: _Frame) -> Iterator[str]:
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


def _dot(checkpoint: CheckpointState, frame: _Frame) -> str:
    ref, status = checkpoint.ref, checkpoint.status
    x, y = frame.x(ref.step), frame.y(frame.rows[ref.attempt_id])
    title = f"checkpoint of step {ref.step}: {status}, manifest {ref.manifest_sha256[:12]}"
    return (
        f'<circle class="dot {status}" cx="{x:.1f}" cy="{y:.1f}" r="4.5">'
        f"<title>{escape(title)}</title></circle>"
    )


def _outcomes(state: RunState, frame: _Frame, row: int) -> Iterator[str]:
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
        line = "" if above is None else _line(x, frame.y(above), x, y, "resume faint")
        mark = f'<path class="{css}" d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"/>'
        yield f"{line}{mark}{_text(x - 12, y + 4, _short(words), 'end')}"


def _axis(frame: _Frame, height: int) -> Iterator[str]:
    floor = height - BOTTOM + 6
    yield _line(LEFT, floor, WIDTH - RIGHT, floor, "grid")
    for step in sorted({0, frame.step_max // 2, frame.step_max}):
        css = "end" if step == frame.step_max else "middle"  # or it is cut off at the side
        yield _text(frame.x(step), floor + 16, f"step {step}", css)


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, css: str = "") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _short(words: str) -> str:
    cut = LABEL_CHARACTERS_MAX
    return words if len(words) <= cut else f"{words[: cut - 1]}…"
