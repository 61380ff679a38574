"""A second ledger beside the first: filled by one process, then put in its place at once.

So readers, and processes of the version that made the old ledger, find all of it until the new one is
whole. A second ledger's space is needed meanwhile.

- SQLite: another file, whose pages replace those of the first in one transaction. Renaming it would be
  quicker, and dangerous: a process that has the old file open would write into nowhere, and the old
  file's WAL might be taken for the new one's.
- Postgres: another schema, whose tables move into the first one's in one transaction.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tracks_dagster.ledger.effects.database.engine import (
    BUSY_POLL_S,
    BUSY_S_MAX,
    make_engine,
    place,
    reason,
    transaction,
)
from tracks_dagster.ledger.effects.database.schema import (
    LOCK_ID,
    READER,
    VERSION_TABLE,
    current_version,
    make_reader,
    make_schema,
    version_of,
)
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.ledger_views import VIEWS
from tracks_dagster.track.errors import LedgerError

WAIT_S_MAX = 300.0  # for another process that rebuilds the same ledger
WAIT_POLL_S = 0.5
FILE_SUFFIX = "-next"
SCHEMA_SUFFIX = "_ledger_next"

_log = logging.getLogger(__name__)

# What was granted on the old tables, which go.
_GRANTED = sa.text("""
    select table_name, grantee, privilege_type from information_schema.table_privileges
    where table_schema = current_schema() and grantee not in (current_user, :reader)
""")


def make_beside(engine: Engine, *, starts_over: bool) -> Engine:
    """Return the second ledger, with its tables: empty, or as an interrupted call left them.

    starts_over: False keeps what was left, if this version left it.
    """
    beside = _engine_of(engine)
    if _is_there(engine) and (starts_over or _version_left(beside) != current_version()):
        beside.dispose()
        _remove(engine)
    if engine.dialect.name == "postgresql":
        with transaction(engine, "create a schema for", write=True) as connection:
            name = _quoted(connection, _schema_of(connection))
            connection.exec_driver_sql(f"create schema if not exists {name}")
    make_schema(beside)
    return beside


def count_beside(engine: Engine) -> int | None:
    """Return how many tracks the second ledger holds by now; None where nobody fills one."""
    try:
        if not _is_there(engine):
            return None
        with transaction(_engine_of(engine, only_reads=True), "read", write=False) as connection:
            return int(connection.scalar(sa.text("select count(*) from track_cursors")) or 0)
    except LedgerError:  # it is being made, or has just gone
        return None


def swap(engine: Engine, beside: Engine) -> None:
    """Put the second ledger in the first one's place, all at once; it is gone afterwards.

    Raises LedgerError, with the first as it was.
    """
    beside.dispose()
    if engine.dialect.name == "postgresql":
        with transaction(engine, "put new tables in the place of", write=True) as connection:
            _move(connection)
    else:
        _overwrite(_file(engine.url), _file(beside.url))
        _remove(engine)


@contextmanager
def rebuilding_alone(engine: Engine) -> Iterator[Callable[[], object]]:
    """Keep other processes from rebuilding the same ledger; give what raises once they are not kept.

    Raises LedgerError when another process rebuilds it for longer than `WAIT_S_MAX`. A process that
    dies keeps nobody.
    """
    if engine.dialect.name != "postgresql":
        # The folder: a file of its own would stay there, and SQLite's file may not be opened twice.
        folder = os.open(_file(engine.url).absolute().parent, os.O_RDONLY)
        try:
            _wait(engine, lambda: _is_locked(folder))
            yield lambda: None
        finally:
            os.close(folder)
        return
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            _wait(engine, lambda: bool(connection.scalar(_TRY_LOCK, {"id": LOCK_ID})))
            yield lambda: connection.execute(sa.text("select 1"))
    except SQLAlchemyError as error:
        raise LedgerError(
            f"Cannot rebuild the ledger at {place(engine.url)}: {reason(error)}"
        ) from error


_TRY_LOCK = sa.text("select pg_try_advisory_lock(cast(:id as integer), hashtext(current_schema()))")


def _is_locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(engine: Engine, is_ours: Callable[[], bool]) -> None:
    """Wait until the lock is ours."""
    if is_ours():
        return
    where = f"the ledger at {place(engine.url)}"
    _log.warning(
        "Another process rebuilds %s, %d tracks so far; waiting for it, up to %d s.",
        where,
        count_beside(engine) or 0,
        WAIT_S_MAX,
    )
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_ours():
        if time.monotonic() > deadline:
            raise LedgerError(
                f"Cannot open {where}: another process still rebuilds it, "
                f"{count_beside(engine) or 0} tracks so far, after {WAIT_S_MAX:.0f} s of waiting. Ask "
                "again when it is done; nothing is lost, and until then the old ledger can be read."
            )
        time.sleep(WAIT_POLL_S)


def _engine_of(engine: Engine, *, only_reads: bool = False) -> Engine:
    """Return the second ledger's engine; nothing is made."""
    url = engine.url
    if engine.dialect.name == "postgresql":
        with transaction(engine, "open", write=False) as connection:
            name = _quoted(connection, _schema_of(connection))
        escaped = name.replace("\\", "\\\\").replace(" ", "\\ ")
        given = url.query.get("options", "")
        url = url.update_query_dict({"options": f"{given} -csearch_path={escaped}"})
    else:
        url = url.set(database=f"{url.database}{FILE_SUFFIX}")
    return make_engine(url, keep_connection=not only_reads, only_reads=only_reads)


def _schema_of(connection: Connection) -> str:
    return f"{connection.scalar(sa.text('select current_schema()'))}{SCHEMA_SUFFIX}"


def _quoted(connection: Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote_identifier(name)


def _file(url: URL) -> Path:
    return Path(str(url.database))


def _is_there(engine: Engine) -> bool:
    if engine.dialect.name != "postgresql":
        return os.access(f"{engine.url.database}{FILE_SUFFIX}", os.F_OK)
    with transaction(engine, "read", write=False) as connection:
        asked = sa.text("select exists (select from pg_namespace where nspname = :name)")
        return bool(connection.scalar(asked, {"name": _schema_of(connection)}))


def _version_left(beside: Engine) -> str | None:
    try:
        with transaction(beside, "open", write=False) as connection:
            return version_of(connection)
    except LedgerError:  # torn, as a full disk may leave it
        return None


def _remove(engine: Engine) -> None:
    if engine.dialect.name != "postgresql":
        for suffix in ("", "-wal", "-shm"):
            Path(f"{engine.url.database}{FILE_SUFFIX}{suffix}").unlink(missing_ok=True)
        return
    with transaction(
        engine, "remove what an interrupted rebuilding left of", write=True
    ) as connection:
        name = _quoted(connection, _schema_of(connection))
        connection.exec_driver_sql(f"drop schema {name} cascade")


def _overwrite(path: Path, beside: Path) -> None:
    """Replace the pages of a SQLite file in one transaction; readers keep what they started to read."""
    deadline = time.monotonic() + BUSY_S_MAX

    def give_up(status: int, _left: int, _all: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise sqlite3.OperationalError("database is locked")

    try:
        with closing(sqlite3.connect(beside)) as new, closing(sqlite3.connect(path)) as old:
            new.backup(old, progress=give_up, sleep=BUSY_POLL_S)
            with suppress(
                sqlite3.OperationalError
            ):  # a reader needs the WAL: who closes last ends it
                old.execute("pragma wal_checkpoint(truncate)")
    except sqlite3.Error as error:
        raise LedgerError(
            f"Cannot put a new ledger in the place of the one at {path}: {error}; it is as it was."
        ) from error


def _move(connection: Connection) -> None:
    """Move the new tables and views into the place of the old ones, with the rights on them."""
    old = _quoted(connection, str(connection.scalar(sa.text("select current_schema()"))))
    new = _quoted(connection, _schema_of(connection))
    tables = [*metadata.tables, VERSION_TABLE]
    granted = connection.execute(_GRANTED, {"reader": READER}).all()
    for view in reversed(VIEWS):
        connection.exec_driver_sql(f"drop view if exists {old}.{view}")
    for table in tables:
        connection.exec_driver_sql(f"drop table if exists {old}.{table}")
        connection.exec_driver_sql(f"alter table {new}.{table} set schema {old}")
    for view in VIEWS:
        connection.exec_driver_sql(f"alter view {new}.{view} set schema {old}")
    connection.exec_driver_sql(f"drop schema {new}")
    for table, grantee, right in granted:
        if table in (*tables, *VIEWS):
            role = "public" if grantee == "PUBLIC" else _quoted(connection, grantee)
            connection.exec_driver_sql(f"grant {right} on {old}.{table} to {role}")
    make_reader(connection)
    connection.exec_driver_sql(f"analyze {', '.join(f'{old}.{table}' for table in tables)}")
