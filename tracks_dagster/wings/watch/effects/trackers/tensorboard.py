"""TensorBoard's event files, written without TensorBoard: a folder for each run, one file in it.

A file is a sequence of records: a length (uint64), its checksum, an `Event` in protobuf, its checksum;
all little-endian, the checksums CRC32C, masked as TensorFlow's record writer does. TensorBoard's own
library begins a new file at each start and cannot tell what it wrote. Here a file beside it says so,
and bytes after that are cut off before anything is added: an export may be killed anywhere.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from tracks_dagster.curves.effects.rows import Row
from tracks_dagster.track import media
from tracks_dagster.track.crc32c import masked_crc32c
from tracks_dagster.track.errors import TrackerError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.media import Logged
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.safe_text import one_line
from tracks_dagster.wings.watch.effects.trackers.exporting import News, check_key, progressed
from tracks_dagster.wings.watch.exports import (
    BELOW_0,
    NOTHING_SENT,
    ExportedRun,
    Sent,
    as_histogram,
    as_table,
)

CURSOR_FILE = ".tracks-export.json"
LOCK_FILE = ".tracks-export.lock"
VERSION = "brain.Event:2"  # from which on a restart takes back what came after its step
BLOCK_BYTES = 1 << 20  # written at once
LOGGED_BYTES_MAX = 4 << 20  # of a thing that was logged: its checksum takes a second
TEXT_PLUGIN, TENSOR_OF_TEXT = b"text", 7  # DataType.DT_STRING
_NOT_PLAIN = re.compile(r"[^\w\s.,;:%/=→↓−-]")  # in a cell: Markdown or HTML might read it
START = 1  # SessionLog.SessionStatus


@dataclass(frozen=True, slots=True)
class TensorBoard:
    """A folder that `tensorboard --logdir` shows."""

    folder: Path

    @property
    def name(self) -> str:
        """Where it is."""
        return f"TensorBoard's folder {self.folder}"

    @contextmanager
    def open(self, run: ExportedRun) -> Iterator[_EventFile]:
        """Yield the run's event file; raises TrackerError where another export writes to it now."""
        folder = self.folder / run.run_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / LOCK_FILE).open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise TrackerError(
                        f"Another export writes to {folder} now; nothing was added. Try again when it "
                        "is done."
                    ) from error
                yield _EventFile(folder, run)
        except OSError as error:
            raise TrackerError(
                f"{run.run_id} cannot be exported to {folder}: {error.strerror or error}."
            ) from error


class _EventFile:
    """One run's event file, and how much of it counts."""

    def __init__(self, folder: Path, run: ExportedRun) -> None:
        self._path = folder / f"events.out.tfevents.{int(run.began_at)}.{run.run_id}"
        self._cursor = folder / CURSOR_FILE
        self._run = run
        self._bytes, self.sent = self._read()

    def _read(self) -> tuple[int, Sent]:
        """Return the bytes that count, and what they hold; nothing where either file is lost."""
        try:
            stored = parse_json(self._cursor.read_bytes())
            size, sent = int(stored["bytes"]), Sent.from_json(stored)
        except FileNotFoundError:
            return 0, NOTHING_SENT
        except (ValueError, KeyError, TypeError) as error:
            raise TrackerError(
                f"{self._cursor} does not say how far the export has come: {error}. Remove its folder "
                "to export the run again."
            ) from error
        check_key(stored, self._run, self._cursor.parent)
        there = self._path.stat().st_size if self._path.exists() else 0
        return (size, sent) if there >= size else (0, NOTHING_SENT)

    def write(self, news: News) -> None:
        """Implements `Target`."""
        sent = news.sent
        self._path.touch()
        with self._path.open("r+b") as file:  # "wb" would take from a reader what counts
            file.truncate(self._bytes)
            file.seek(self._bytes)
            block = bytearray(b"" if self._bytes else _record(_first(self._run.began_at)))
            if news.rollback is not None:
                block += _record(_restart(self._run.began_at, news.rollback.to_step + 1))
            for row in news.rows:
                block += _record(_scalars(row))
                sent = progressed(sent, row)
                if len(block) >= BLOCK_BYTES:
                    sent = self._add(file, block, news, sent)
                    block.clear()
            self._add(file, block, news, sent)

    def _add(self, file: BinaryIO, block: bytearray, news: News, sent: Sent) -> Sent:
        """Add a block, and what was logged up to there; return how far it has come."""
        things = news.logged(sent)
        for event in self._events(things, news):
            block += _record(event)
            if len(block) >= BLOCK_BYTES:
                self._commit(file, block, things.sent)
                block.clear()
        if block or things.sent != self.sent:
            self._commit(file, block, things.sent)
        return things.sent

    def _events(self, logged: Iterable[tuple[Logged, bytes]], news: News) -> Iterator[bytes]:
        """Yield an event for each thing that TensorBoard can show; the others are named."""
        for item, data in logged:
            try:
                event = _thing(self._run.began_at, item, data)
            except ValueError as error:
                news.leave_out(item, str(error))
                continue
            yield event

    def _commit(self, file: BinaryIO, block: bytearray, sent: Sent) -> None:
        """Add a block, which counts once the file beside says so."""
        file.write(block)
        file.flush()
        os.fsync(file.fileno())
        self._bytes += len(block)
        stored = {"key": self._run.key, "bytes": self._bytes, **sent.to_json()}
        scratch = self._cursor.with_suffix(".new")
        with scratch.open("wb") as cursor:
            cursor.write(json.dumps(stored).encode())
            cursor.flush()
            os.fsync(cursor.fileno())
        scratch.replace(self._cursor)
        self.sent = sent


def _first(at: float) -> bytes:
    return _double(1, at) + _bytes(3, VERSION.encode())


def _restart(at: float, step: int) -> bytes:
    """Return the event at which TensorBoard forgets what it has of `step` and later."""
    return _double(1, at) + _integer(2, step) + _bytes(7, _integer(1, START))


def _scalars(row: Row) -> bytes:
    return _double(1, row.at) + _integer(2, row.step) + _bytes(5, _summary(row.values))


def _summary(values: Mapping[str, float]) -> bytes:
    return b"".join(
        _bytes(1, _bytes(1, name.encode()) + _float(2, value)) for name, value in values.items()
    )


def _thing(at: float, item: Logged, data: bytes) -> bytes:
    """Return the event of a thing as `media/NAME`; raises ValueError where TensorBoard cannot show it.

    A tag has one kind: that of a metric would take the metric's chart.
    """
    if item.step < 0:
        raise ValueError(BELOW_0)
    value = _shown(item, data)
    if len(value) > LOGGED_BYTES_MAX:
        raise ValueError(
            f"TensorBoard would get {len(value)} bytes of it, at most {LOGGED_BYTES_MAX} are sent"
        )
    summary = _bytes(1, _bytes(1, f"media/{item.name}".encode()) + value)
    return _double(1, at) + _integer(2, item.step) + _bytes(5, summary)


def _shown(item: Logged, data: bytes) -> bytes:
    """Return the value of a summary (summary.proto) but its tag; a table is a text in Markdown.

    Raises ValueError where the bytes are not of that kind.
    """
    match item.kind:
        case media.IMAGE:
            width, height = _size(data)
            sizes = _integer(1, height) + _integer(2, width) + _integer(3, 4)
            return _bytes(4, sizes + _bytes(4, data))
        case media.AUDIO:
            return _bytes(6, _bytes(4, data) + _bytes(5, item.media_type.encode()))
        case media.HISTOGRAM:
            return _histogram(*as_histogram(data))
        case media.TABLE | media.CONFUSION:
            data = _markdown(*as_table(item, data)).encode()
    tensor = _integer(1, TENSOR_OF_TEXT) + _bytes(2, b"") + _bytes(8, data)
    return _bytes(8, tensor) + _bytes(9, _bytes(1, _bytes(1, TEXT_PLUGIN)))


def _markdown(columns: list[str], rows: list[list[Json]]) -> str:
    """Return a table as TensorBoard's text plugin shows it, whatever its cells are."""
    if not columns:
        return "a table without columns"
    lines = (f"| {' | '.join(map(_cell, row))} |" for row in ([*columns], *rows))
    return "\n".join([next(lines), "|" + " --- |" * len(columns), *lines])


def _cell(value: Json) -> str:
    text = one_line("" if value is None else str(value))
    return _NOT_PLAIN.sub(lambda found: f"&#{ord(found[0])};", text)


def _size(data: bytes) -> tuple[int, int]:
    """Return the width and height of a PNG; (1, 1) of another picture, which TensorBoard looks up."""
    if data.startswith(b"\x89PNG") and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    return 1, 1


def _histogram(counts: list[float], edges: list[float]) -> bytes:
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    total = sum(n * x for n, x in zip(counts, middles, strict=True))
    squares = sum(n * x * x for n, x in zip(counts, middles, strict=True))
    numbers = (edges[0], edges[-1], sum(counts), total, squares)
    fields = b"".join(_double(field, number) for field, number in enumerate(numbers, 1))
    packed = (_bytes(n, struct.pack(f"<{len(x)}d", *x)) for n, x in ((6, edges[1:]), (7, counts)))
    return _bytes(5, fields + b"".join(packed))


# Protobuf's wire format: a field's number and type, then its value.


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _float(number: int, value: float) -> bytes:
    return _varint(number << 3 | 5) + _single(value)


def _single(value: float) -> bytes:
    """Return four bytes; a number that is too large for them is infinite there."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return b"".join((length, masked_crc32c(length), event, masked_crc32c(event)))
