"""What a look at ten million points costs: a million steps with ten metrics, in three attempts.

The journals lie in a folder as a trainer ships them, half a gigabyte in segments of 256 KiB with their
columns beside them; the newest attempt trains. `first` copies these; `parsed` looks first at journals
without them; later looks read what was copied, and what may have grown. Requests to the store are
those for journals and columns.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.commands import time_command
from tracks_dagster.curves.curve import Curves
from tracks_dagster.curves.effects.buckets import extent, read_buckets
from tracks_dagster.curves.effects.journals import Journals
from tracks_dagster.curves.effects.pixels import Pixels
from tracks_dagster.curves.effects.reading import axis_of, read_curves
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.settings import Settings
from tracks_dagster.stores import open_store
from tracks_dagster.stores.journal_columns import FORMAT, ColumnsWriter
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import format_time
from tracks_dagster.training.journal import SEGMENT_BYTES_MAX
from tracks_dagster.wiring import build

if TYPE_CHECKING:
    from tests.histories import History

STEPS = 1_000_000
METRICS = 10  # loss, step_s, data_s and samples_per_s, and six of the script
OWN = ("accuracy", "lr", "grad_norm", "entropy", "reward", "temperature")
ENDS = (400_000, 700_000, STEPS)  # of the attempts
LOST = 50  # steps, of each that ended
BATCH = 512
RUN_ID = "long"
ROUNDS = 5
BUCKETS = 240  # of a run in a comparison of many
VARIANTS = 997  # of what a step's metrics are

COLUMNS = f"/columns-{FORMAT}/"

AT_MOST = {
    "live_curves_first_s": 1.0,
    "live_curves_s": 1.0,
    "live_curves_zoomed_s": 1.0,
    "live_curves_requests": 3.0,
    "live_curves_command_peak_mb": 300.0,
}
WHY = {
    **dict.fromkeys(AT_MOST, "seconds: the machine was busy, or its files had left its memory"),
    "live_curves_requests": "a journal is read again",
    "live_curves_command_peak_mb": "more than a block is in memory",
}


def run(steps: int = STEPS) -> dict[str, float]:
    """Return seconds, requests to the store and memory of looks at the run."""
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        settings = Settings.from_environment({"TRACKS_HOME": folder})
        app = build(settings)
        began_at = time.perf_counter()
        _make(app.store, steps)
        made_s = time.perf_counter() - began_at
        cache = settings.cache
        cache.mkdir()
        store = CountedStore(open_store(settings.store_url))
        app.tracks.store = store

        def look(**asked: Any) -> Look:
            store.asked = 0
            began_at, cpu_at = time.perf_counter(), time.process_time()
            found = read_curves(app.tracks, RUN_ID, **{"cache": cache, **asked})
            took_s, cpu_s = time.perf_counter() - began_at, time.process_time() - cpu_at
            return Look(took_s, cpu_s, store.asked, found)

        app.tracks.run(RUN_ID)
        first = look()
        store.has_columns = False
        parsed = look(cache=settings.cache / "parsed")
        store.has_columns = True
        assert parsed.found == first.found
        again = [look() for _ in range(ROUNDS)]
        assert all(each.found == first.found for each in again)
        middle = (steps // 2, steps // 2 + steps // 100)
        zoomed = [look(metrics=["loss"], steps=middle) for _ in range(ROUNDS)]
        hours = [look(by="hours") for _ in range(ROUNDS)]
        compared = [_compare(app.tracks, cache / "curves") for _ in range(ROUNDS)]
        command = time_command(
            ("curves", RUN_ID), {"TRACKS_HOME": folder, "TRACKS_STORE": ""}, rounds=ROUNDS
        )
        stored = sum(path.stat().st_size for path in (cache / "curves").rglob("*.npz"))
        return {
            "live_curves_points": float(sum(each.points_read for each in first.found.curves)),
            "live_curves_made_s": made_s,
            "live_curves_first_s": first.took_s,
            "live_curves_first_cpu_s": first.cpu_s,
            "live_curves_first_requests": first.asked,
            "live_curves_parsed_s": parsed.took_s,
            "live_curves_parsed_cpu_s": parsed.cpu_s,
            "live_curves_parsed_requests": parsed.asked,
            "live_curves_s": _median(again),
            "live_curves_cpu_s": statistics.median(each.cpu_s for each in again),
            "live_curves_requests": max(each.asked for each in again),
            "live_curves_zoomed_s": _median(zoomed),
            "live_curves_by_hours_s": _median(hours),
            "live_curves_compared_cpu_s": statistics.median(compared),
            "live_curves_command_s": command.wall_s,
            "live_curves_command_cpu_s": command.cpu_s,
            "live_curves_command_peak_mb": command.peak_mb,
            "live_curves_stored_mb": stored / 1e6,
        }


def _compare(tracks: Tracks, cache: Path) -> float:
    """Return what one metric of this run costs a comparison, in seconds of the processor."""
    cpu_at = time.process_time()
    journals = Journals(tracks, tracks.run(RUN_ID), cache)
    axis = axis_of(journals, "step")
    begin, end = extent(journals, axis) or (0.0, 1.0)
    read_buckets(journals, axis, journals.choose(["loss"]), Pixels(begin, end, BUCKETS))
    return time.process_time() - cpu_at


class Look(NamedTuple):
    """One look: seconds, seconds of the processor, and requests to the store for journals."""

    took_s: float
    cpu_s: float
    asked: int
    found: Curves


def _median(looks: Sequence[Look]) -> float:
    return statistics.median(each.took_s for each in looks)


class CountedStore:
    """A store that counts what it is asked of journals and their columns. has_columns: shows these."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.asked = 0
        self.has_columns = True

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        """As of the store."""
        self.asked += "/journal/" in key or COLUMNS in key
        return self._store.get(key, bytes_max)

    def list(self, prefix: str) -> Iterator[str]:
        """As of the store."""
        self.asked += "/journal/" in prefix or COLUMNS in prefix
        keys = self._store.list(prefix)
        return keys if self.has_columns else (key for key in keys if COLUMNS not in key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _make(store: ObjectStore, steps: int) -> None:
    """Store the run: two attempts that ended, and one that trains."""
    from tests.bodies import CONFIG
    from tests.histories import History

    begin = datetime.now(UTC) - timedelta(days=2)
    history = History(RUN_ID, begin=begin).declare(config={**CONFIG, "global_batch": BATCH})
    rng = random.Random(7)
    resumed = 0
    for end in (int(end * steps / STEPS) for end in ENDS):
        history.open().supervise().place(world_size=1).restore()
        last = end if end == steps else end + LOST
        _ship(store, history, _lines(rng, resumed + 1, last, begin))
        history.commit(end)
        if end < steps:
            history.end("preempted", last_step=last)
        resumed = end
    history.write_to(store)


def _ship(store: ObjectStore, history: History, lines: Iterator[bytes]) -> None:
    """Store a journal in segments, as `training.journal` does."""
    number = len(history.state.attempts)
    prefix = journal_prefix(AttemptRef(RUN_ID, number), history.launch_id, 0)
    columns = ColumnsWriter(store, journal=prefix)
    offset, some = 0, bytearray()

    def put(*, is_full: bool = True) -> None:
        nonlocal offset
        store.put(f"{prefix}{offset:012d}.jsonl", bytes(some))
        if is_full:
            columns.add(offset, bytes(some))
            columns.store()
        offset += len(some)
        some.clear()

    for line in lines:
        if len(some) + len(line) > SEGMENT_BYTES_MAX:
            put()
        some.extend(line)
    put(is_full=False)


def _lines(rng: random.Random, first: int, last: int, begin: datetime) -> Iterator[bytes]:
    """Yield the lines of these steps, a tenth of a second each, as `training.journal` writes them."""
    metrics = [_metrics(rng) for _ in range(VARIANTS)]
    digest = f"{rng.getrandbits(256):064x}"
    for step in range(first, last + 1):
        seconds = 0.1 * (step - first + 1)
        at = format_time(begin + timedelta(seconds=0.1 * step))
        loss = 10.0 / (1 + step / 1000) + rng.random()
        yield (
            f'{{"kind":"step","t":"{at}","step":{step},"step_s":{0.09 + rng.random() / 100},'
            f'"data_s":{rng.random() / 1000},"loss":{loss},"metrics":{metrics[step % VARIANTS]},'
            f'"cursor_to":{step * BATCH},"indices_sha256":"{digest}","spent":{{"steps_s":'
            f'{0.9 * seconds},"data_s":{0.1 * seconds},"saving_s":0.0,"eval_s":0.0}}}}\n'
        ).encode()


def _metrics(rng: random.Random) -> str:
    return json.dumps({name: rng.random() for name in OWN}, separators=(",", ":"))
