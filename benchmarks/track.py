"""What an append costs: a note in a local track against a bare file written and fsynced.

The durable create (temporary file, fsync, link, fsync of the folder) needs two fsyncs, so a ratio
of about two is the floor; what lies above it is ours.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tracks_dagster.stores import open_store
from tracks_dagster.track.bodies import Note
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.track import Track

ROUNDS = 300


def run() -> dict[str, float]:
    """Return seconds (medians) and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        track = Track(open_store(folder), "runs/bench", now=lambda: datetime.now(UTC))
        raw = Path(folder) / "raw"
        raw.mkdir()
        appended, written, read = [], [], []
        for index in range(ROUNDS):
            draft = _note(index)
            appended.append(_seconds(partial(track.note, draft)))
            written.append(_seconds(partial(_write_and_fsync, raw / str(index))))
            read.append(_seconds(track.refresh))
    append_s, write_s = statistics.median(appended), statistics.median(written)
    return {
        "append_s": append_s,
        "raw_write_fsync_s": write_s,
        "append_to_raw_write_fsync": append_s / write_s,
        "look_for_new_records_to_append": statistics.median(read) / append_s,
    }


def _note(index: int) -> Draft:
    body = to_json(Note(by="bench", text=f"note {index}"))
    return Draft(uid=uuid.uuid4().hex, kind=Kind.NOTE, body=body)


def _write_and_fsync(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"x" * 300)
        file.flush()
        os.fsync(file.fileno())


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
