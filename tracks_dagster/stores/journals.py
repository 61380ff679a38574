"""Read what a launch wrote into its journals: step metrics and heartbeats, too frequent for a track.

A journal is one file on the gang's machine, shipped in segments named by their byte offset. A
machine that was taken away leaves a torn last line, or a segment that never came: what can be read is
returned, nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.track.bodies import MemoryPeak, TimeSpent
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, parse_time

SEGMENTS_READ_MAX = 8  # to find the newest step: heartbeats alone may fill the newest segment


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One finished step, as rank 0 wrote it down.

    loss: mean over the global batch; step_s: seconds from its data to its report; data_s: of the wait
    for its data, before; exchange_s: of step_s, until all ranks had agreed at the report, None where
    that was not measured; spent: what the launch had spent so far, None in an older journal;
    cursor_to: global samples consumed after it; indices_sha256: of the global batch's sample
    indices (int64, little-endian, in order); None where the order is the script's own.
    """

    at: str
    step: int
    loss: float
    metrics: Mapping[str, float]
    step_s: float
    data_s: float
    cursor_to: int | None
    indices_sha256: str | None
    spent: TimeSpent | None = None
    exchange_s: float | None = None


def journal_prefix(run_id: str, attempt_id: int, launch_id: str, rank: int) -> str:
    """Return the prefix of the segments of one rank's journal."""
    return f"runs/{run_id}/attempts/{attempt_id}/{launch_id}/journal/rank-{rank}/"


def read_steps(store: ObjectStore, run_id: str, attempt_id: int, launch_id: str) -> list[StepLine]:
    """Return the steps that a launch ran and shipped, in order; a step twice: the later line."""
    lines = read_lines(store, journal_prefix(run_id, attempt_id, launch_id, 0))
    steps = {step.step: step for step in _steps(lines)}
    return [steps[step] for step in sorted(steps)]


def last_step(store: ObjectStore, run_id: str, attempt_id: int, launch_id: str) -> StepLine | None:
    """Return the newest step that was shipped, reading only the newest segments."""
    tail = read_tail(store, run_id, attempt_id, launch_id, steps_max=1)
    return tail.steps[-1] if tail.steps else None


def newest_steps(
    store: ObjectStore, run_id: str, attempt_id: int, launch_id: str
) -> list[StepLine]:
    """Return the steps of the newest segments only, in order: enough to tell how long one takes."""
    prefix = journal_prefix(run_id, attempt_id, launch_id, 0)
    newest = sorted(store.list(prefix))[-SEGMENTS_READ_MAX:]
    lines = (line for key in newest for line in parse_lines(store.get(key) or b""))
    return list(_steps(lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalTail:
    """The end of a journal: its newest steps, in order, and when its newest line was written."""

    steps: tuple[StepLine, ...] = ()
    last_line_at: datetime | None = None


def read_tail(
    store: ObjectStore, run_id: str, attempt_id: int, launch_id: str, *, steps_max: int
) -> JournalTail:
    """Return the newest `steps_max` steps of a launch, parsing no more lines than that takes.

    Of at most `SEGMENTS_READ_MAX` segments; a line with a step that cannot be read is left out.
    """
    found: list[StepLine] = []
    last_line_at: datetime | None = None
    prefix = journal_prefix(run_id, attempt_id, launch_id, 0)
    for key in sorted(store.list(prefix), reverse=True)[:SEGMENTS_READ_MAX]:
        for line in _lines_backwards(store.get(key) or b""):
            last_line_at = last_line_at or line_time(line)
            found += _steps([line])
            if len(found) >= steps_max:
                return JournalTail(steps=tuple(reversed(found)), last_line_at=last_line_at)
    return JournalTail(steps=tuple(reversed(found)), last_line_at=last_line_at)


def _steps(lines: Iterable[Mapping[str, Json]]) -> Iterator[StepLine]:
    """Yield the steps; a line with a step that cannot be read is left out."""
    for line in lines:
        if line.get("kind") == "step" and (step := _whole_step(line)) is not None:
            yield step


def line_time(line: Mapping[str, Json]) -> datetime | None:
    """Return when a line was written; None where it does not say."""
    try:
        return parse_time(line["t"])
    except (KeyError, TypeError, ValueError):
        return None


def _whole_step(line: Mapping[str, Json]) -> StepLine | None:
    """Return the step of a line; None where the line is damaged."""
    waited = (line.get("step_s") or 0.0, line.get("data_s") or 0.0)
    numbers = [line.get("loss"), *_mapping(line.get("metrics")).values(), *waited]
    step, cursor = line.get("step"), line.get("cursor_to")
    if not isinstance(step, int) or line_time(line) is None:
        return None
    if cursor is not None and not isinstance(cursor, int):
        return None
    if not all(isinstance(number, int | float) for number in numbers):
        return None
    try:
        return _step(line)
    except KeyError:
        return None


def memory_of(line: Mapping[str, Json]) -> MemoryPeak | None:
    """Return the memory by a line; None where it has none that can be read."""
    if not isinstance(line.get("memory"), dict):
        return None
    try:
        return from_json(MemoryPeak, line["memory"])
    except TrackBroken:
        return None


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _lines_backwards(data: bytes) -> Iterator[dict[str, Json]]:
    for line in reversed(data.split(b"\n")):
        if line:
            yield from parse_lines(line)


def read_lines(store: ObjectStore, prefix: str) -> Iterator[dict[str, Json]]:
    """Yield the whole lines of a journal; a torn one is left out."""
    yield from parse_lines(_joined(store, prefix))


def parse_lines(data: bytes) -> Iterator[dict[str, Json]]:
    """Yield the JSON objects of one segment, in order; a torn line is left out."""
    for line in data.split(b"\n"):
        try:
            value = json.loads(line) if line else None
        except (ValueError, RecursionError):  # torn, or damaged
            continue
        if isinstance(value, dict):
            yield value


def _joined(store: ObjectStore, prefix: str) -> bytes:
    """Return the segments as the file they came from; one that is missing leaves a line break."""
    joined = bytearray()
    end = 0  # of what was shipped, in the file on the gang's machine
    for key in store.list(prefix):
        name = key.removeprefix(prefix).removesuffix(".jsonl")
        data = store.get(key) if name.isdigit() else None
        if data is None:
            continue
        offset = int(name)
        if offset > end:
            joined += b"\n"
        joined += data[max(0, end - offset) :]  # a segment shipped again may overlap
        end = max(end, offset + len(data))
    return bytes(joined)


def _step(line: Mapping[str, Json]) -> StepLine:
    return StepLine(
        at=line["t"],
        step=line["step"],
        loss=line["loss"],
        metrics=_mapping(line.get("metrics")),
        step_s=line.get("step_s") or 0.0,
        data_s=line.get("data_s") or 0.0,
        cursor_to=line.get("cursor_to"),
        indices_sha256=line.get("indices_sha256"),
        spent=spent_of(line),
        exchange_s=_number(line.get("exchange_s")),
    )


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def spent_of(line: Mapping[str, Json]) -> TimeSpent | None:
    """Return the time spent by a line; None where it has none that can be read."""
    if not isinstance(line.get("spent"), dict):
        return None
    try:
        return TimeSpent(**{name: float(seconds) for name, seconds in line["spent"].items()})
    except (TypeError, ValueError):
        return None
