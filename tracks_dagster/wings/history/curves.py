"""What a source has of a run's curves: parted where a step falls, and as the journal of a launch. Pure.

A metric whose step falls shows that the run went back to where it had saved, and went on from there: a
new attempt. Sources that know more of their attempts do not need it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tracks_dagster.track.journal_lines import LOSS, STEPS
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.text.safe_text import valid_text
from tracks_dagster.wings.history.source import Point, SourceAttempt, time_of

STEP_MAX = 2**53
POINTS_MAX = 2_000_000  # of one run, in memory at once
NAME_CHARACTERS_MAX = 200
PIECES_MAX = 100  # of one run; more falls are several writers of one metric
SEGMENT_BYTES = 4 * 1024 * 1024
RESTARTED = "nothing says how it ended; a step fell, so it was started again"


def point(name: str, step: Json, value: Json, at: float) -> Point:
    """Return a point of a curve; ValueError, in words, for what is not one."""
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if type(step) is not int or not 0 <= step <= STEP_MAX:
        raise ValueError(f"its step is {str(step)[:40]!r}; a whole number, 0 or more, is needed")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"its value is {str(value)[:40]!r}, not a number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("its value is too large for a number with a point") from None
    seconds = time_of(at).timestamp()
    return Point(valid_text(name)[:NAME_CHARACTERS_MAX], step, number, seconds)


def parted(
    whole: SourceAttempt,
    points: Iterable[Point],
    restarts: Sequence[float] = (),
    *,
    beyond: int = 0,
) -> Iterator[SourceAttempt]:
    """Yield the attempts of a run that its source has as one: one more for each fall of a step.

    whole: the run, of which the last attempt has the end, and the first the start. restarts: seconds
    since 1970 of the first points after a restart, in order, where the source says so itself. beyond:
    how many values of it were left out, as there are more than POINTS_MAX.
    """
    pieces = _pieces(points, restarts)
    unknown = dict(whole.unknown)
    if beyond:
        unknown["values"] = (
            f"of its values {beyond} are left out: {POINTS_MAX} of a run are imported"
        )
    if len(pieces) > PIECES_MAX:
        unknown["attempts"] = "steps fall so often that several wrote at once: taken as one attempt"
        pieces = [[each for piece in pieces for each in piece]]
    # Of a clock apart from the source's, or of points that a script gave times of its own.
    earliest = min(
        (datetime.fromtimestamp(each[0].at, UTC) for each in pieces if each), default=None
    )
    begin = whole.started_at
    if begin is not None and earliest is not None:
        begin = min(begin, earliest)
    for number, piece in enumerate(pieces, 1):
        is_last = number == len(pieces)
        steps = [each.step for each in piece]
        first = datetime.fromtimestamp(piece[0].at, UTC) if piece else None
        last = datetime.fromtimestamp(piece[-1].at, UTC) if piece else whole.ended_at
        started_at = begin if number == 1 or first is None else first
        end = max(whole.ended_at, started_at or whole.ended_at) if is_last else last
        this = replace(
            whole,
            id=f"{whole.id}/{number}",
            submitted_at=whole.submitted_at if number == 1 else started_at or whole.submitted_at,
            started_at=started_at,
            ended_at=end,
            resumed_step=max(0, min(steps) - 1) if number > 1 else whole.resumed_step,
            last_step=max(steps, default=whole.last_step),
            points=piece,
            values=sum(map(len, pieces)),
            unknown=unknown,
        )
        yield this if is_last else _broken_off(this)


def _broken_off(attempt: SourceAttempt) -> SourceAttempt:
    evidence = replace(attempt.evidence, conditions=(), stop=None, ranks=())
    return replace(attempt, succeeded=None, failed=RESTARTED, evidence=evidence, metrics={})


def _pieces(points: Iterable[Point], restarts: Sequence[float]) -> list[list[Point]]:
    pieces: list[list[Point]] = [[]]
    newest: dict[str, int] = {}
    left = [*reversed(restarts)]
    for each in sorted(points, key=lambda each: each.at):
        is_new = each.step < newest.get(each.name, 0)
        while left and each.at >= left[-1]:
            left.pop()
            is_new = True
        if is_new and pieces[-1]:
            pieces.append([])
            newest = {}
        newest[each.name] = each.step
        pieces[-1].append(each)
    return pieces


def newest_values(points: Sequence[Point]) -> dict[str, float]:
    """Return the last finite value of each metric; points: in the order of their times."""
    return {each.name: each.value for each in points if math.isfinite(each.value)}


def segments(points: Sequence[Point]) -> Iterator[bytes]:
    """Yield the journal of a launch that reported these points, a segment at a time.

    points: in the order of their times; of a step and metric that is there twice the later counts.
    """
    by_step: dict[int, dict[str, float]] = {}
    times: dict[int, float] = {}
    for each in points:
        by_step.setdefault(each.step, {})[each.name] = each.value
        times[each.step] = each.at
    began = points[0].at if points else 0.0
    lines, size = list[bytes](), 0
    for step in sorted(by_step):
        for line in _lines(step, times[step], times[step] - began, by_step[step]):
            lines.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            size += len(lines[-1])
        if size >= SEGMENT_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


def _lines(
    step: int, at: float, spent_s: float, values: Mapping[str, float]
) -> Iterator[dict[str, Json]]:
    """Yield what `training.step_log` writes of a step; a loss that is not finite has its own line."""
    time = format_time(datetime.fromtimestamp(at, UTC))
    loss = values.get(LOSS)
    if loss is not None and not math.isfinite(loss):
        yield {"kind": "non_finite_loss", "step": step, "t": time, "loss": str(loss)}
    others = {name: value for name, value in values.items() if name != LOSS}
    odd = {name: str(value) for name, value in others.items() if not math.isfinite(value)}
    line: dict[str, Json] = {"kind": STEPS, "step": step, "t": time}
    if loss is not None and math.isfinite(loss):
        line[LOSS] = loss
    elif not others:
        return
    line["metrics"] = {name: value for name, value in others.items() if name not in odd}
    if odd:
        line["non_finite"] = odd
    yield {**line, "spent": {"steps_s": round(max(0.0, spent_s), 6)}}
