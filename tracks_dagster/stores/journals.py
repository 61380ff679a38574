"""Read what a launch wrote into its journals: step metrics and heartbeats, too frequent for a track.

A journal is one file on the gang's machine, shipped in segments named by their byte offset. A
machine that was taken away leaves a torn last line, or a segment that never came: what can be read is
returned, nothing is guessed. docs/signals.md says what every line holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tracks_dagster.stores.bounded import read_bounded
from tracks_dagster.track.bodies import MemoryPeak, TimeSpent
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import ObjectLost, TrackBroken
from tracks_dagster.track.journal_lines import EVALUATED, LOSS
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, parse_time

# Of one segment: what ships for a gang that is gone; the last line may cross that, so twice is read.
SHIPPED_BYTES_MAX = 8 * 1024 * 1024
SEGMENT_BYTES_MAX = 2 * SHIPPED_BYTES_MAX
SEGMENTS_READ_MAX = 8  # to find the newest step: heartbeats alone may fill the newest segment

_ENDING = ".jsonl"
_OFFSET = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """One finished step, as rank 0 wrote it down.

    loss: mean over the global batch; step_s: seconds from its data to its report; data_s: of the wait
    for its data, before; exchange_s: of step_s, until all ranks had agreed at the report, None where
    that was not measured; spent: what the launch had spent so far, None in an older journal;
    cursor_to: global samples consumed after it; indices_sha256: of the global batch's sample
    indices (int64, little-endian, in order); None where the order is the script's own.
    own_s: of step_s, in rank 0's own forward passes; lr, grad_norm: by a metric of that name, else as
    measured; samples: of the step, over all ranks. None: not known.
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
    own_s: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    samples: int | None = None


ByRank = tuple[float | None, ...]  # a value of each rank, in their order; None: of that one unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksLine:
    """The steps of all ranks side by side, as rank 0 wrote them down. Empty: of no rank known.

    step: the newest of the `over` steps that it is of; step_s, own_s, data_s: their medians, as in
    `StepLine`; util: percent, rss_bytes, device_bytes: by the newest `device` line of that rank.
    """

    at: str
    step: int
    over: int
    step_s: ByRank = ()
    own_s: ByRank = ()
    data_s: ByRank = ()
    util: ByRank = ()
    rss_bytes: ByRank = ()
    device_bytes: ByRank = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLine:
    """What one rank found of its device and its process. None: not known.

    step: the last one it had finished; throttled: why the driver holds its clocks down; xid: the
    newest critical one of this launch; ecc: errors that were not corrected, since the driver was
    loaded; problem: why the driver says nothing, in words; drill: what plays these figures, or None.
    """

    at: str
    step: int
    uuid: str | None = None
    name: str | None = None
    util_percent: float | None = None
    memory_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()
    xid: int | None = None
    ecc: int | None = None
    rss_bytes: float | None = None
    cpu_percent: float | None = None
    disk_free_bytes: float | None = None
    read_bytes: float | None = None
    problem: str | None = None
    drill: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedLine:
    """What an evaluation inside the loop found. metrics: those that are finite."""

    at: str
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


def journal_prefix(ref: AttemptRef, launch_id: str, rank: int) -> str:
    """Return the prefix of the segments of one rank's journal."""
    return f"{ref.folder}{launch_id}/journal/rank-{rank}/"


def segment_key(prefix: str, offset: int) -> str:
    """Return the key of the segment that begins at that byte of the journal under `prefix`."""
    return f"{prefix}{offset:012d}{_ENDING}"


def segment_offsets(store: ObjectStore, prefix: str) -> list[int]:
    """Return at which byte of the journal each segment begins, in order."""
    names = (key.removeprefix(prefix).removesuffix(_ENDING) for key in store.list(prefix))
    return sorted(int(name) for name in names if _OFFSET.fullmatch(name))


def read_segment(store: ObjectStore, prefix: str, offset: int) -> bytes | None:
    """Return a segment; None where there is none, one that is too large (`stores.bounded`), or one of
    an imported run that was lost."""
    try:
        return read_known_segment(store, prefix, offset)
    except ObjectLost:
        return None


def read_known_segment(store: ObjectStore, prefix: str, offset: int) -> bytes | None:
    """Return a segment, as `read_segment`; raises ObjectLost for what a history names and has not."""
    return read_bounded(store, segment_key(prefix, offset), SEGMENT_BYTES_MAX)


def read_steps(store: ObjectStore, ref: AttemptRef, launch_id: str) -> list[StepLine]:
    """Return the steps that a launch ran and shipped, in order; a step twice: the later line."""
    lines = read_lines(store, journal_prefix(ref, launch_id, 0))
    steps = {step.step: step for step in _steps(lines)}
    return [steps[step] for step in sorted(steps)]


def first_steps(
    store: ObjectStore, ref: AttemptRef, launch_id: str, *, until: int
) -> list[StepLine]:
    """Return the steps of a launch up to `until`, in order, from as few segments as that takes."""
    found: list[StepLine] = []
    prefix = journal_prefix(ref, launch_id, 0)
    for offset in segment_offsets(store, prefix):
        found += _steps(parse_lines(read_segment(store, prefix, offset) or b""))
        if found and found[-1].step >= until:
            break
    return [step for step in found if step.step <= until]


def last_step(store: ObjectStore, ref: AttemptRef, launch_id: str) -> StepLine | None:
    """Return the newest step that was shipped, reading only the newest segments."""
    tail = read_tail(store, ref, launch_id, steps_max=1)
    return tail.steps[-1] if tail.steps else None


def newest_steps(store: ObjectStore, ref: AttemptRef, launch_id: str) -> list[StepLine]:
    """Return the steps of the newest segments only, in order: enough to tell how long one takes."""
    prefix = journal_prefix(ref, launch_id, 0)
    found: list[StepLine] = []
    for offset in segment_offsets(store, prefix)[-SEGMENTS_READ_MAX:]:
        found += _steps(parse_lines(read_segment(store, prefix, offset) or b""))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalTail:
    """The end of a journal: its newest steps, in order, and when its newest line was written.

    ranks, devices, evaluated: the other lines between these steps and behind them, in order.
    """

    steps: tuple[StepLine, ...] = ()
    last_line_at: datetime | None = None
    ranks: tuple[RanksLine, ...] = ()
    devices: tuple[DeviceLine, ...] = ()
    evaluated: tuple[EvaluatedLine, ...] = ()


def read_tail(
    store: ObjectStore, ref: AttemptRef, launch_id: str, *, steps_max: int
) -> JournalTail:
    """Return the newest `steps_max` steps of a launch, parsing no more lines than that takes.

    Of at most `SEGMENTS_READ_MAX` segments; a line with a step that cannot be read is left out.
    """
    steps: list[StepLine] = []
    others: dict[type, list[Any]] = {RanksLine: [], DeviceLine: [], EvaluatedLine: []}
    last_line_at: datetime | None = None
    prefix = journal_prefix(ref, launch_id, 0)
    for offset in segment_offsets(store, prefix)[: -SEGMENTS_READ_MAX - 1 : -1]:
        for line in lines_backwards(read_segment(store, prefix, offset) or b""):
            last_line_at = last_line_at or line_time(line)
            match parse_line(line):
                case StepLine() as step:
                    steps.append(step)
                case (RanksLine() | DeviceLine() | EvaluatedLine()) as other:
                    others[type(other)].append(other)
            if len(steps) >= steps_max:
                return _tail(steps, others, last_line_at)
    return _tail(steps, others, last_line_at)


def newest_values(
    store: ObjectStore, ref: AttemptRef, launch_id: str, *, lines_max: int
) -> dict[str, tuple[float, int]]:
    """Return the newest value of each metric of a launch, with its step: of its last `lines_max` lines.

    Of at most `SEGMENTS_READ_MAX` segments. An evaluation's `loss` is `evaluated/loss`, as in curves.
    """
    found: dict[str, tuple[float, int]] = {}
    prefix = journal_prefix(ref, launch_id, 0)
    for offset in segment_offsets(store, prefix)[: -SEGMENTS_READ_MAX - 1 : -1]:
        for line in lines_backwards(read_segment(store, prefix, offset) or b""):
            lines_max -= 1
            match parse_line(line):
                case StepLine() as step:
                    values = {**step.metrics, LOSS: step.loss}
                case EvaluatedLine() as evaluated:
                    values = {
                        f"{EVALUATED}/{LOSS}" if name == LOSS else name: value
                        for name, value in evaluated.metrics.items()
                    }
                case _:
                    values = {}
            for name, value in values.items():
                if name not in found and (number := _number(value)) is not None:
                    found[name] = (number, line["step"])
            if lines_max <= 0:
                return found
    return found


def _tail(
    steps: list[StepLine], others: Mapping[type, list[Any]], last_line_at: datetime | None
) -> JournalTail:
    """Return what was read backwards, in order."""
    return JournalTail(
        steps=tuple(reversed(steps)),
        last_line_at=last_line_at,
        ranks=tuple(reversed(others[RanksLine])),
        devices=tuple(reversed(others[DeviceLine])),
        evaluated=tuple(reversed(others[EvaluatedLine])),
    )


def parse_line(
    line: Mapping[str, Json],
) -> StepLine | RanksLine | DeviceLine | EvaluatedLine | None:
    """Return what a line holds; None where it is of another kind, or cannot be read."""
    match line.get("kind"):
        case "step":
            return _whole_step(line)
        case "ranks":
            return _ranks(line)
        case "device":
            return _device(line)
        case "evaluated":
            return _evaluated(line)
    return None


def _steps(lines: Iterable[Mapping[str, Json]]) -> Iterator[StepLine]:
    """Yield the steps; a line with a step that cannot be read is left out."""
    return (step for step in map(parse_line, lines) if isinstance(step, StepLine))


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


def lines_backwards(data: bytes) -> Iterator[dict[str, Json]]:
    """Yield the JSON objects of one segment, the last one first; a torn line is left out."""
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
            value = parse_json(line) if line else None
        except ValueError:  # torn, or damaged
            continue
        if isinstance(value, dict):
            yield value


def _joined(store: ObjectStore, prefix: str) -> bytes:
    """Return the segments as the file they came from; one that is missing leaves a line break."""
    joined = bytearray()
    end = 0  # of what was shipped, in the file on the gang's machine
    for offset in segment_offsets(store, prefix):
        data = read_segment(store, prefix, offset)
        if data is None:
            continue
        if offset > end:
            joined += b"\n"
        joined += data[max(0, end - offset) :]  # a segment shipped again may overlap
        end = max(end, offset + len(data))
    return bytes(joined)


def _step(line: Mapping[str, Json]) -> StepLine:
    metrics = _mapping(line.get("metrics"))
    return StepLine(
        at=line["t"],
        step=line["step"],
        loss=line["loss"],
        metrics=metrics,
        step_s=line.get("step_s") or 0.0,
        data_s=line.get("data_s") or 0.0,
        cursor_to=line.get("cursor_to"),
        indices_sha256=line.get("indices_sha256"),
        spent=spent_of(line),
        exchange_s=_number(line.get("exchange_s")),
        own_s=_number(line.get("own_s")),
        lr=_number(metrics.get("lr", line.get("lr"))),
        grad_norm=_number(metrics.get("grad_norm", line.get("grad_norm"))),
        samples=_whole(line.get("samples")),
    )


def _ranks(line: Mapping[str, Json]) -> RanksLine | None:
    step, over = line.get("step"), line.get("over")
    if not isinstance(step, int) or not isinstance(over, int) or line_time(line) is None:
        return None
    return RanksLine(
        at=line["t"],
        step=step,
        over=over,
        step_s=_by_rank(line.get("step_s")),
        own_s=_by_rank(line.get("own_s")),
        data_s=_by_rank(line.get("data_s")),
        util=_by_rank(line.get("util")),
        rss_bytes=_by_rank(line.get("rss_bytes")),
        device_bytes=_by_rank(line.get("device_bytes")),
    )


def _device(line: Mapping[str, Json]) -> DeviceLine | None:
    step, reasons = line.get("step"), line.get("throttled")
    if not isinstance(step, int) or line_time(line) is None:
        return None
    return DeviceLine(
        at=line["t"],
        step=step,
        uuid=_text(line.get("uuid")),
        name=_text(line.get("name")),
        util_percent=_number(line.get("util_percent")),
        memory_bytes=_number(line.get("memory_bytes")),
        memory_total_bytes=_number(line.get("memory_total_bytes")),
        power_w=_number(line.get("power_w")),
        temperature_c=_number(line.get("temperature_c")),
        throttled=tuple(map(str, reasons)) if isinstance(reasons, list) else (),
        xid=_whole(line.get("xid")),
        ecc=_whole(line.get("ecc")),
        rss_bytes=_number(line.get("rss_bytes")),
        cpu_percent=_number(line.get("cpu_percent")),
        disk_free_bytes=_number(line.get("disk_free_bytes")),
        read_bytes=_number(line.get("read_bytes")),
        problem=_text(line.get("problem")),
        drill=_text(line.get("drill")),
    )


def _evaluated(line: Mapping[str, Json]) -> EvaluatedLine | None:
    step = line.get("step")
    if not isinstance(step, int) or line_time(line) is None:
        return None
    numbers = {name: _number(value) for name, value in _mapping(line.get("metrics")).items()}
    found = {name: number for name, number in numbers.items() if number is not None}
    return EvaluatedLine(at=line["t"], step=step, metrics=found)


def _by_rank(values: Json) -> ByRank:
    return tuple(map(_number, values)) if isinstance(values, list) else ()


def _number(value: Json) -> float | None:
    """Return a finite number, else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a damaged line may hold any number of digits
        return None


def _whole(value: Json) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def spent_of(line: Mapping[str, Json]) -> TimeSpent | None:
    """Return the time spent by a line; None where it has none that can be read."""
    if not isinstance(line.get("spent"), dict):
        return None
    try:
        return TimeSpent(**{name: float(seconds) for name, seconds in line["spent"].items()})
    except (TypeError, ValueError):
        return None
