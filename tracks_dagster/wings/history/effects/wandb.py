"""W&B's offline runs, `wandb/offline-run-…`, without its package: the log `run-….wandb` has it all.

The log is LevelDB's: blocks of 32 KiB, records with a checksum in one or several pieces, each a message
of wandb_internal.proto. A folder is an attempt; a run that was resumed has several of one id.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tracks_dagster.reasons.evidence import Evidence, RankEnd
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.wings.history import wire
from tracks_dagster.wings.history.curves import POINTS_MAX, parted, point
from tracks_dagster.wings.history.effects.foreign import folders_in, object_of
from tracks_dagster.wings.history.source import (
    SILENT_S,
    BadRow,
    NotEnded,
    Point,
    Read,
    SourceAttempt,
    time_of,
)

MAGIC = b":W&B"
HEAD_BYTES, BLOCK_BYTES, RECORD_HEAD_BYTES = 7, 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
# Fields of wandb_internal.proto's Record, and of what lies in it.
HISTORY, SUMMARY, CONFIG, STATS, RUN, EXIT = 2, 3, 5, 7, 17, 18
KEY, NESTED_KEY, VALUE_JSON = 1, 2, 16
UNKNOWN = {
    "cause": "W&B does not say who started a run again",
    "checkpoints": "W&B does not say which checkpoint a run resumed from",
}


@dataclass(slots=True, kw_only=True)
class _Log:
    """What a log holds."""

    run: bytes = b""
    config: dict[str, Json] = field(default_factory=dict)
    summary: dict[str, Json] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    exit_code: int | None = None
    newest_at: float | None = None
    bad: list[BadRow] = field(default_factory=list)
    beyond: int = 0  # values that are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Wandb:
    """A folder `wandb`, or one of a run in it. Implements `History`."""

    path: Path
    now: datetime
    system: str = "wandb"

    @property
    def origin(self) -> str:
        return str(self.path)

    def read(self) -> Iterator[Read]:
        is_any, before = False, set[str]()
        for folder in [self.path, *folders_in(self.path)]:
            for path in sorted(folder.glob("run-*.wandb")):
                is_any = True
                try:
                    yield from self._of_run(path, before)
                except (ValueError, TypeError, KeyError, OverflowError) as error:
                    yield BadRow(line=0, why=str(error), file=self._name(path))
        if not is_any:
            raise InvalidInput(
                f"{self.path} has no folder of a run of W&B with a run-….wandb in it, as "
                "wandb/offline-run-20260101_120000-abcd1234 has."
            )

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.path))

    def _of_run(self, path: Path, before: set[str]) -> Iterator[Read]:
        """Yield the attempts of a log. before: ids of the runs that had one; another resumes it."""
        log = _read(path, self._name(path))
        yield from log.bad
        metadata: Mapping[str, Any] = {}
        beside = path.parent / "files" / "wandb-metadata.json"
        if beside.is_file():
            try:
                metadata = object_of(beside)
            except ValueError as error:
                yield BadRow(line=0, why=str(error), file=self._name(beside))
        started_s = _seconds(wire.first(log.run, 17))
        if not log.run or started_s is None:
            raise ValueError("its log does not say which run it is of, or when that began")
        started_at = time_of(started_s)
        newest_s = max(started_s, log.newest_at or started_s)
        ended_at = time_of(newest_s)
        if log.exit_code is None and (self.now - ended_at).total_seconds() < SILENT_S:
            yield NotEnded()
            return
        whole = _attempt(path, log, metadata, started_at, ended_at)
        if whole.run in before and log.points:
            whole = replace(whole, resumed_step=max(0, min(each.step for each in log.points) - 1))
        before.add(whole.run)
        yield from parted(whole, log.points, beyond=log.beyond)


def _attempt(
    path: Path, log: _Log, metadata: Mapping[str, Any], started_at: datetime, ended_at: datetime
) -> SourceAttempt:
    run_id, project, name = (wire.text(log.run, number) for number in (1, 3, 8))
    gpus = metadata.get("gpu_count")
    host = str(metadata.get("host") or wire.text(log.run, 13))
    code = log.exit_code
    words = "its log has no end" if code is None else f"W&B exit code: {code}"
    ends = () if code is None else (RankEnd(rank=0, exit_code=code & 0xFF),)
    unknown = dict(UNKNOWN)
    if type(gpus) is not int or gpus < 1:
        unknown["devices"] = "W&B saw no GPU: one device is counted"
    row = dict(metadata)
    if isinstance(row.get("args"), list):  # "--token", "…": a secret shows behind its name only
        row["args"] = " ".join(map(str, row["args"]))
    return SourceAttempt(
        id=path.parent.name,
        run=run_id or path.parent.name,
        title=" / ".join(filter(None, (project, name))) or run_id,
        owner=str(metadata.get("username") or wire.text(log.run, 2)),
        team=wire.text(log.run, 2),
        submitted_at=started_at,
        started_at=started_at,
        ended_at=ended_at,
        devices=gpus if type(gpus) is int and gpus > 0 else 1,
        device_class=str(metadata.get("gpu") or "unknown"),
        nodes=(host,) if host else (),
        evidence=Evidence(run_id="", attempt_id=0, launch_id=None, ranks=ends),
        row={"metadata": row, "config": log.config, "summary": log.summary, "exit_code": code},
        config=log.config,
        succeeded=words if code == 0 else None,
        failed=words,
        metrics={k: v for k, v in log.summary.items() if type(v) in (int, float) and k[:1] != "_"},
        unknown=unknown,
    )


def _read(path: Path, file: str) -> _Log:
    log = _Log()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror or error}") from error
    for number, record in enumerate(_records(data, file, log.bad), 1):
        try:
            for kind, value in wire.fields(record):
                if isinstance(value, bytes):
                    _take(log, kind, value)
        except ValueError as error:
            log.bad.append(BadRow(line=number, why=str(error), file=file))
    return log


def _take(log: _Log, kind: int, value: bytes) -> None:
    if kind == RUN:
        log.run = log.run or value
        log.config |= _items(wire.first(value, 4), 1)
    elif kind == CONFIG:
        log.config |= _items(value, 1)
    elif kind == SUMMARY:
        log.summary |= _items(value, 1)
    elif kind == EXIT:
        log.exit_code = wire.integer(value, 1) or 0
    elif kind == STATS:
        log.newest_at = _seconds(wire.first(value, 2)) or log.newest_at
    elif kind == HISTORY:
        _take_history(log, value)
    log.config.pop("_wandb", None)


def _take_history(log: _Log, value: bytes) -> None:
    items = _items(value, 1)
    at, step = items.get("_timestamp"), items.get("_step")
    if step is None:
        step = wire.integer(wire.first(value, 2), 1) or 0
    if not isinstance(at, int | float):
        raise ValueError("a row of its history has no time")
    log.newest_at = max(time_of(at).timestamp(), log.newest_at or 0.0)
    for name, each in items.items():
        if name.startswith("_") or type(each) not in (int, float):
            continue
        if len(log.points) >= POINTS_MAX:
            log.beyond += 1
        else:
            log.points.append(point(name, step, each, float(at)))


def _items(message: bytes, number: int) -> dict[str, Json]:
    """Return the items of a config, a summary or a row of the history, by their names."""
    found: dict[str, Json] = {}
    for each, value in wire.fields(message):
        if each != number or not isinstance(value, bytes):
            continue
        nested = [
            v.decode("utf-8", "replace")
            for n, v in wire.fields(value)
            if n == NESTED_KEY and isinstance(v, bytes)
        ]
        name = wire.text(value, KEY) or ".".join(nested)
        found[name] = parse_json(wire.text(value, VALUE_JSON) or "null", foreign=True)
    return found


def _seconds(timestamp: bytes) -> float | None:
    """Return a Timestamp as seconds since 1970; None where there is none."""
    seconds = wire.integer(timestamp, 1)
    return None if seconds is None else seconds + (wire.integer(timestamp, 2) or 0) / 1e9


def _records(data: bytes, file: str, bad: list[BadRow]) -> Iterator[bytes]:
    """Yield the records of a log; what is damaged is named, and the rest of its block left out."""
    if not data.startswith(MAGIC):
        raise ValueError("it does not begin as a log of W&B")
    at, parts = HEAD_BYTES, b""
    while at + RECORD_HEAD_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < RECORD_HEAD_BYTES:
            at, left = at + left, BLOCK_BYTES
            continue
        checksum, size, kind = struct.unpack_from("<IHB", data, at)
        begin, end = at + RECORD_HEAD_BYTES, at + RECORD_HEAD_BYTES + size
        if end > len(data):
            break
        piece = data[begin:end]
        if not FULL <= kind <= LAST or zlib.crc32(piece, zlib.crc32(bytes([kind]))) != checksum:
            bad.append(BadRow(line=0, why=f"it is damaged at byte {at}", file=file))
            at, parts = at + left, b""
            continue
        parts = piece if kind in (FULL, FIRST) else parts + piece
        if kind in (FULL, LAST):
            yield parts
        at = end
    if at < len(data):
        bad.append(BadRow(line=0, why=f"it is cut at byte {at}", file=file))
