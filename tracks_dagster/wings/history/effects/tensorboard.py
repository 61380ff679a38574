"""TensorBoard's event files, read without TensorBoard: a folder with some is a run.

A record is a length (uint64), its checksum, an `Event` in protobuf, its checksum, all little-endian. An
attempt begins where the step of a tag falls, be it in a file or from one to the next.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.track.crc32c import masked_crc32c
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.wings.history import wire
from tracks_dagster.wings.history.curves import POINTS_MAX, parted, point
from tracks_dagster.wings.history.source import (
    SILENT_S,
    BadRow,
    NotEnded,
    Point,
    Read,
    SourceAttempt,
    time_of,
)

FILES = "*.tfevents.*"
CHECKED_BYTES_MAX = 64 * 1024  # of a record; what is larger is a picture, which is not read
RECORD_BYTES_MAX = 1 << 30
HPARAMS = b"hparams"
UNKNOWN = {
    "cause": "event files do not say who started a run again",
    "checkpoints": "event files know no checkpoints",
    "devices": "event files do not say how many there were: one is counted",
    "nodes": "event files do not say where a run ran",
    "owner": "event files do not say whose a run is",
    "end": "event files do not say how a run ended",
}
SINGLES, DOUBLES = 1, 2  # DataType.DT_FLOAT, DT_DOUBLE


@dataclass(slots=True, kw_only=True)
class _Run:
    points: list[Point] = field(default_factory=list)
    config: dict[str, Json] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)  # the first and the last
    bad: list[BadRow] = field(default_factory=list)
    beyond: int = 0  # values that are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBoard:
    """A folder as `tensorboard --logdir` takes it. Implements `History`."""

    path: Path
    now: datetime
    system: str = "tensorboard"

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self) -> Iterator[Read]:
        runs: dict[Path, list[Path]] = {}
        for each in sorted(self.path.rglob(FILES)):
            if each.is_file():
                runs.setdefault(each.parent, []).append(each)
        if not runs:
            raise InvalidInput(f"{self.path} has no event file of TensorBoard, …tfevents.… .")
        for folder, files in runs.items():
            run = _Run()
            for path in files:
                _read(path, str(path.relative_to(self.path)), run)
            yield from run.bad
            if not run.times:
                continue
            name = str(folder.relative_to(self.path))
            begin_s, end_s = run.times
            ended_at = time_of(end_s)
            if (self.now - ended_at).total_seconds() < SILENT_S:
                yield NotEnded()
                continue
            started_at = time_of(begin_s)
            whole = SourceAttempt(
                id=name,
                run=self.path.resolve().name if name == "." else name,
                title=self.path.resolve().name if name == "." else name,
                submitted_at=started_at,
                started_at=started_at,
                ended_at=ended_at,
                evidence=Evidence(run_id="", attempt_id=0, launch_id=None, ranks=()),
                row={"files": [path.name for path in files], "hparams": run.config},
                config=run.config,
                failed="event files do not say how it ended",
                unknown=UNKNOWN,
            )
            yield from parted(whole, run.points, beyond=run.beyond)


def _read(path: Path, file: str, run: _Run) -> None:
    for number, event in enumerate(_records(path, file, run.bad), 1):
        try:
            _take(event, run)
        except ValueError as error:
            run.bad.append(BadRow(line=number, why=str(error), file=file))


def _take(event: bytes, run: _Run) -> None:
    """Take in an `Event`: wall_time 1, step 2, summary 5, of `Value`s 1."""
    at = step = 0.0
    values: list[bytes] = []
    for number, value in wire.fields(event):
        if number == 1:
            at = wire.number_in(value)
        elif number == 2 and isinstance(value, int):
            step = value if value < 2**63 else value - 2**64
        elif number == 5 and isinstance(value, bytes):
            values += [v for n, v in wire.fields(value) if n == 1 and isinstance(v, bytes)]
    at = time_of(at).timestamp()
    run.times = [min(at, *run.times[:1]) if run.times else at, max([at, *run.times[1:]])]
    for each in values:
        if HPARAMS in each[:4096]:
            run.config |= _hparams(each)
        found = _scalar(each)
        if found is not None and len(run.points) >= POINTS_MAX:
            run.beyond += 1
        elif found is not None:
            run.points.append(point(wire.text(each, 1), step, found, at))


def _scalar(value: bytes) -> float | None:
    """Return the number of a `Value`: simple_value 2, or tensor 8; None of a picture, a text."""
    for number, each in wire.fields(value):
        if number == 2:
            return wire.number_in(each)
        if number == 8 and isinstance(each, bytes):
            return _of_tensor(each)
    return None


def _of_tensor(tensor: bytes) -> float | None:
    """Return the only number of a `TensorProto`: dtype 1, shape 2, content 4, floats 5, doubles 6."""
    kind = wire.integer(tensor, 1)
    if kind not in (SINGLES, DOUBLES) or wire.first(tensor, 2):
        return None
    data = wire.first(tensor, 4) or wire.first(tensor, 5 if kind == SINGLES else 6)
    return wire.number_in(data) if len(data) == (4 if kind == SINGLES else 8) else None


def _hparams(value: bytes) -> dict[str, Json]:
    """Return the hparams of a `Value`: SummaryMetadata 9, its plugin 1, its content 2, of that
    session_start_info 3, of that a map 1 of name 1 and google.protobuf.Value 2."""
    plugin = wire.first(wire.first(value, 9), 1)
    started = wire.first(wire.first(plugin, 2), 3) if wire.first(plugin, 1) == HPARAMS else b""
    found: dict[str, Json] = {}
    for number, each in wire.fields(started):
        if number == 1 and isinstance(each, bytes):
            for kind, given in wire.fields(wire.first(each, 2)):
                if kind == 2:
                    found[wire.text(each, 1)] = wire.number_in(given)
                elif kind == 3 and isinstance(given, bytes):
                    found[wire.text(each, 1)] = given.decode("utf-8", "replace")
                elif kind == 4:
                    found[wire.text(each, 1)] = bool(given)
    return found


def _records(path: Path, file: str, bad: list[BadRow]) -> Iterator[bytes]:
    """Yield the records of a file; the rest of it is left out where it is cut or damaged."""
    at = 0
    try:
        with path.open("rb") as opened:
            while head := opened.read(12):
                size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else 0
                if len(head) < 12 or masked_crc32c(head[:8]) != head[8:] or size > RECORD_BYTES_MAX:
                    bad.append(BadRow(line=0, why=f"it is cut or damaged at byte {at}", file=file))
                    return
                data = opened.read(size + 4)
                if len(data) < size + 4:
                    bad.append(BadRow(line=0, why=f"it is cut at byte {at}", file=file))
                    return
                if size <= CHECKED_BYTES_MAX:
                    if masked_crc32c(data[:-4]) == data[-4:]:
                        yield data[:-4]
                    else:
                        bad.append(BadRow(line=0, why=f"it is damaged at byte {at}", file=file))
                at += 12 + len(data)
    except OSError as error:
        bad.append(BadRow(line=0, why=f"it cannot be read: {error.strerror or error}", file=file))
