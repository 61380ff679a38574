"""A rank's journal: one JSON object a line, in the kernel before the next step begins.

A line is appended to a file with `os.write`, so kill -9 of the rank loses none that was written; a
crash of the machine loses what was not shipped. A full disk costs lines, never training. A thread
ships the file to the store every two seconds: segments follow one another, each keyed by its first
byte's offset, and the newest is put again, longer, until it is full. Nothing in a journal is ever
needed to decide.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from json import encoder
from pathlib import Path

from tracks_dagster.stores.journal_columns import ColumnsWriter
from tracks_dagster.track.errors import StoreError
from tracks_dagster.track.ports import Clock, ObjectStore
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.training.signals.device_watch import DeviceWatch

SHIP_EVERY_S = 2.0
HEARTBEAT_EVERY_S = 10.0
SEGMENT_BYTES_MAX = 256 * 1024
LAST_SHIP_S_MAX = 10.0  # how long an ending rank waits for its shipping thread
LAST_WRITE_S_MAX = 5.0  # and for a line that another thread is writing


def _line_encoder() -> Callable[[Mapping[str, Json]], str]:
    """Return an encoder of lines. `json.JSONEncoder.encode` would make its part in C again for each."""
    plain = json.JSONEncoder(separators=(",", ":"), check_circular=False)
    make = getattr(encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    chunks = make(
        None, plain.default, encoder.encode_basestring_ascii, None, ":", ",", False, False, True
    )
    return lambda line: "".join(chunks(line, 0))


_to_json = _line_encoder()


class Journal:
    """Appends lines and ships them. `write` is safe from several threads."""

    def __init__(
        self,
        path: Path,
        store: ObjectStore,
        *,
        prefix: str,
        now: Clock,
        memory: Callable[[], Json] | None = None,
        watch: DeviceWatch | None = None,
        columns: ColumnsWriter | None = None,
    ) -> None:
        """Open `path` for appending and start shipping it under `prefix` (ends with "/").

        memory: what the rank took so far; it stands in each heartbeat, and in a line at the end.
        watch: looked at with each heartbeat, for a `device` line. columns: gets each full segment.
        """
        self.watch = watch
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size  # no other process writes to a launch's journal
        self._lost_count = 0
        self._unshipped_count = 0  # tries in a row
        self._store = store
        self._prefix = prefix
        self._now = now
        self._memory = memory
        self._columns = columns
        self._step = 0
        self._segment_start = 0  # offset of the segment that is not full yet
        self._shipped = 0  # offset up to which the store has the file
        self._lock = threading.Lock()  # of shipping
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def write(self, kind: str, **fields: Json) -> None:
        """Append one line; it is in the kernel when this returns, whole.

        One that the machine refuses (a full disk) is lost: the first is complained of, and `close`
        says how many there were. Of a closed journal nothing happens.
        """
        self._write_line(kind, fields)

    def write_step(self, step: int, fields: Mapping[str, Json]) -> None:
        """Append the line of a finished step."""
        self._step = step
        self._write_line("step", fields, step=step)

    def _write_line(self, kind: str, fields: Mapping[str, Json], **first: Json) -> None:
        line = {"kind": kind, "t": format_time(self._now()), **first, **fields}
        data = _to_json(line).encode() + b"\n"
        with self._writing:
            if self._file is None:
                return
            try:
                _append(self._file, data, size=self._size)
                self._size += len(data)
            except OSError as error:
                self._lost_count += 1
                if self._lost_count == 1:
                    complain(f"journal: lost the {kind} line of {self._path}: {error}")

    def ship(self) -> None:
        """Bring every whole line into the store; raises StoreError when it cannot be reached."""
        with self._lock:
            data = self._unshipped()
            while data and self._segment_start + len(data) > self._shipped:
                segment = _whole_lines(data, SEGMENT_BYTES_MAX)
                self._store.put(f"{self._prefix}{self._segment_start:012d}.jsonl", segment)
                self._shipped = self._segment_start + len(segment)
                data = data[len(segment) :]
                if data or len(segment) >= SEGMENT_BYTES_MAX:
                    self._take_in(self._segment_start, segment)
                    self._segment_start = self._shipped
            if self._columns is not None:
                self._columns.store()

    def _take_in(self, offset: int, segment: bytes) -> None:
        """Hand a full segment to the columns; what goes wrong there costs them alone."""
        if self._columns is None:
            return
        try:
            self._columns.add(offset, segment)
        except Exception as error:  # noqa: BLE001 - this thread is the run's heartbeat
            self._columns = None
            complain(f"journal: no more columns beside {self._path.name}: {error!r}")

    def close(self, *, ship: bool) -> None:
        """Stop the thread and, unless this launch was fenced, ship what is left; bounded."""
        self._closing.set()
        if self.watch is not None:
            self.watch.close()
        self._thread.join(LAST_SHIP_S_MAX)
        if self._memory is not None:
            self.write("memory", memory=self._memory())
        if ship and not self._thread.is_alive():  # else the store does not answer
            self._try_ship()
        if self._unshipped_count > 1:
            complain(f"journal: {self._unshipped_count} tries to ship {self._path.name} failed")
        if self._lost_count > 1:
            complain(f"journal: lost {self._lost_count} lines of {self._path}")
        # Else a disk hangs, and the end of the process closes it.
        if self._writing.acquire(timeout=LAST_WRITE_S_MAX):
            file, self._file = self._file, None
            self._writing.release()
            if file is not None:
                os.close(file)

    def _run(self) -> None:
        heartbeat_in_s = 0.0  # soon: a rank that is killed early has recorded its memory
        while not self._closing.wait(SHIP_EVERY_S):
            heartbeat_in_s -= SHIP_EVERY_S
            if heartbeat_in_s <= 0:
                heartbeat_in_s = HEARTBEAT_EVERY_S
                memory = {} if self._memory is None else {"memory": self._memory()}
                self.write("heartbeat", step=self._step, **memory)
                if self.watch is not None:
                    self.write("device", step=self._step, **self.watch.look())
            self._try_ship()

    def _try_ship(self) -> None:
        try:
            self.ship()
        except StoreError as error:  # the next turn ships more; the file on this machine has it all
            self._unshipped_count += 1
            if (
                self._unshipped_count == 1
            ):  # every few seconds it would bury what the trainer prints
                complain(f"journal: cannot ship {self._path.name}, trying on: {error}")
            return
        if self._unshipped_count:
            complain(
                f"journal: shipped {self._path.name} after {self._unshipped_count} failed tries"
            )
            self._unshipped_count = 0

    def _unshipped(self) -> bytes:
        """Return the whole lines from the segment on that is not full; none when it is unreadable."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._segment_start)
                lines = file.read().rpartition(b"\n")
        except OSError as error:
            complain(f"journal: cannot read {self._path}: {error}")
            return b""
        return lines[0] + lines[1]


def complain(text: str) -> None:
    """Write it to stderr, which may lie on the disk that is full: then nobody learns of it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _append(file: int, data: bytes, *, size: int) -> None:
    """Write `data` whole behind the `size` bytes of `file`, or nothing of it; raises OSError."""
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError:
        os.ftruncate(file, size)  # half a line would tear the next one too
        raise


def _whole_lines(data: bytes, size: int) -> bytes:
    """Return the first lines of `data`, about `size` bytes and at least one line."""
    end = data.rfind(b"\n", 0, size)
    return data[: (end if end >= 0 else data.index(b"\n")) + 1]
