"""Connections to the ledger's database, whose waits all have an end.

Transactions that are meant to write take their lock at once; the others cannot write.

A connection is closed after each transaction: appends are rare, a closed connection cannot go stale,
and a forked worker inherits none. Only a reindex keeps its own, for it makes thousands in a row.

Who only reads a SQLite file may have to copy it: see `to_read`.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.pool import NullPool, Pool, QueuePool

from tracks_dagster.track.errors import LedgerError, RowRefused, SettingsError

_log = logging.getLogger(__name__)

CONNECT_S_MAX = 10  # for a Postgres to answer
BUSY_S_MAX = 30  # for another writer of the same rows, or of the same SQLite file
BUSY_POLL_S = 0.01  # between two tries where SQLite does not wait by itself
READ_S_MAX = 60  # for one reading query on Postgres
ROOM_BYTES_MIN = 64 * 1024  # SQLite makes an index of 32 KiB beside a file that is read
MEMORY = "/dev/shm"  # where the temporary folder is full too

# Part of what SQLite writes where its disk is full, in place of saying so.
_OF_A_DISK = ("disk I/O error", "unable to open database file", "database or disk is full")
# Part of what a Postgres writes that cannot answer now → what to do.
_OF_THE_SERVER = {
    "the database system is": "it does so for a while; try again when it is up",
    "too many clients": "end other clients or raise max_connections, then try again",
    "connection slots": "end other clients or raise max_connections, then try again",
    "too many connections for": "end other clients or raise that limit, then try again",
    "server closed the connection": "it was stopped or crashed; see its log, then try again",
    "terminating connection": "it was stopped or crashed; see its log, then try again",
    "in a read-only transaction": (
        "the server takes no writes now: it is a standby, or default_transaction_read_only is set"
    ),
    "due to statement timeout": "it was too slow, or statement_timeout of the role is too short",
}


def make_engine(
    url: str | URL, *, keep_connection: bool = False, only_reads: bool = False
) -> Engine:
    """Return an engine for `url`, without connecting; raises SettingsError for what is not one.

    keep_connection: one connection at a time stays open, until the engine is disposed of.
    only_reads: nothing is set in a SQLite file, which may lie where nothing can be written.
    """
    pool = QueuePool if keep_connection else NullPool
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise SettingsError(
            "The ledger's URL cannot be read; write sqlite:///PATH or "
            "postgresql+psycopg2://user:password@host:port/database."
        ) from error
    match parsed.get_backend_name():
        case "sqlite":
            return _sqlite_engine(parsed, pool, only_reads=only_reads)
        case "postgresql":
            timeout = {"connect_timeout": parsed.query.get("connect_timeout", CONNECT_S_MAX)}
            return sa.create_engine(parsed, poolclass=pool, connect_args=timeout)
        case other:
            raise SettingsError(f"The ledger cannot live in {other!r}; use SQLite or Postgres.")


@contextmanager
def transaction(engine: Engine, what: str, *, write: bool) -> Iterator[Connection]:
    """Give a connection within a transaction, committed at the end and rolled back on an error.

    write: False makes every attempt to write an error and rolls back at the end, too: some functions
    of Postgres write in a read-only transaction. Raises LedgerError: "Cannot `what` …", and RowRefused
    where it is a value that the database does not take.
    """
    try:
        with (
            engine.connect().execution_options(write=write) as connection,
            connection.begin() as begun,
        ):
            if engine.dialect.name == "postgresql":
                _limit_postgres(connection, write=write)
            yield connection
            if not write:
                opened: Any = connection.connection.dbapi_connection
                begun.rollback()
                if isinstance(opened, _ReadConnection):
                    opened.reading.check_unchanged()
    except SQLAlchemyError as error:
        kind = RowRefused if _is_of_a_value(error) else LedgerError
        where = f"the ledger at {place(engine.url)}"
        full = _full(engine.url)
        raise kind(f"Cannot {what} {where}: {reason(error, full)}") from error
    except (ValueError, OverflowError) as error:  # of a driver, at a value that it cannot bind
        where = f"the ledger at {place(engine.url)}"
        raise RowRefused(f"Cannot {what} {where}: {error}.") from error


def _full(url: URL) -> str | None:
    is_file = url.get_backend_name() == "sqlite" and url.database
    return full_disk(Path(url.database).absolute().parent) if is_file and url.database else None


def _is_of_a_value(error: SQLAlchemyError) -> bool:
    """Translate what every try meets again: a database that is away, full, busy or damaged."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, StatementError)
    state = getattr(error.orig, "pgcode", None)
    if isinstance(state, str):
        return state[:2] in _OF_A_VALUE or state == _OF_ANOTHER_TYPE
    of_a_value = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)
    return isinstance(error.orig, of_a_value) or "binding parameter" in str(error.orig)


# SQLSTATE classes of Postgres: data exception, constraint, cardinality, program limit (an index entry).
_OF_A_VALUE = frozenset({"22", "23", "21", "54"})
_OF_ANOTHER_TYPE = "42804"


def place(url: URL) -> str:
    """Return where the ledger lives, for people: without user, password and options."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    host = url.host or url.query.get("host") or "the local socket"
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{host}{port}/{url.database or ''}"


def reason(error: SQLAlchemyError, full: str | None = None) -> str:
    """Say in one sentence what went wrong, and what to do where that is known.

    full: that the disk of SQLite's file is, in words.
    """
    found = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    line = (str(found).strip().splitlines() or [type(found).__name__])[0].rstrip(".")
    for part, what_to_do in _OF_THE_SERVER.items():
        if part in line:
            return f"{line.rpartition('FATAL:')[2].strip()}; {what_to_do}."
    if line.startswith("connection to server"):
        _, is_refusal, words = line.partition("FATAL:")
        if is_refusal:
            return f"{words.strip()}; correct TRACKS_POSTGRES_URL, or create what is missing."
        return f"{line}; see that the server is up and TRACKS_POSTGRES_URL right."
    if full is not None and any(part in line for part in _OF_A_DISK):
        return f"{line}. {full}"
    if "could not translate host name" in line:
        return f"{line}; correct the host in TRACKS_POSTGRES_URL."
    if "not a database" in line or "malformed" in line:
        return f"{line}; move the file away and run `tracks reindex`, which rebuilds it."
    return f"{line}."


def _sqlite_engine(url: URL, pool: type[Pool], *, only_reads: bool) -> Engine:
    if not url.database or url.database == ":memory:":
        raise SettingsError("The ledger needs a file: write sqlite:///PATH.")
    if not Path(url.database).absolute().parent.is_dir():
        raise SettingsError(f"The ledger's folder does not exist: {Path(url.database).parent}.")
    path = Path(url.database)
    engine = (
        sa.create_engine(url, poolclass=pool, creator=partial(_connect_to_read, path))
        if only_reads
        else sa.create_engine(url, poolclass=pool, connect_args={"timeout": BUSY_S_MAX})
    )

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver begins no transaction of its own: we do
        if only_reads:
            return
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")  # a reindex restores what a crash takes

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes later would fail on a busy file, not wait.
        if connection.get_execution_options().get("write"):
            connection.exec_driver_sql("PRAGMA query_only = OFF")  # a kept one may have read before
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql("PRAGMA query_only = ON")
            connection.exec_driver_sql("BEGIN")

    return engine


class _ReadConnection(sqlite3.Connection):
    """A connection that knows how its file was opened."""

    reading: SqliteFile


def _connect_to_read(path: Path) -> _ReadConnection:
    reading = to_read(path)
    opened = sqlite3.connect(
        reading.uri, uri=True, timeout=BUSY_S_MAX, factory=_ReadConnection, check_same_thread=False
    )
    opened.reading = reading
    return opened


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work side by side, from the file's first connection on.

    SQLite does not wait for a process that is turning the same new file around: it calls it locked.
    """
    deadline = time.monotonic() + BUSY_S_MAX
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(BUSY_POLL_S)


def _limit_postgres(connection: Connection, *, write: bool) -> None:
    if write:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{BUSY_S_MAX}s'")
    else:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{READ_S_MAX}s'")


# --- SQLite's file, for anyone who only reads --------------------------------------------------------
#
# A file in WAL mode is read with the help of two files beside it, which SQLite makes and removes. On a
# read-only mount, or as another user, it cannot, and refuses. What is done then depends on what is
# there:
#
# - no WAL, or an empty one: the file is whole, and is read as `immutable`. SQLite then takes no notice
#   of a writer elsewhere (the home's owner, or another host), so the file's times and sizes are
#   compared before and after; `check_unchanged` refuses what was read while it changed. No copy: a
#   ledger of a million attempts has 7 GB.
# - a WAL and its index: a writer lives, or was killed; SQLite reads along with it.
# - a WAL without an index, as a copy of a home may have: both are copied to a folder of this process's
#   own, where SQLite can recover them.
#
# On a full disk, or one without inodes, SQLite has the right to make the two and no room for them: then
# the file is read in the same ways, and the cause is a warning.

FileLook = tuple[
    tuple[int, int] | None, ...
]  # (modified at in ns, bytes) of the file and of its WAL


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """The URI to open, and what the file looked like where a writer would go unnoticed, else None."""

    path: Path
    uri: str
    seen: FileLook | None = None

    def check_unchanged(self) -> None:
        """Raise LedgerError when the file was written since it was opened."""
        if self.seen is not None and _look(self.path) != self.seen:
            raise LedgerError(
                f"The ledger at {self.path} was written while it was read, where this user cannot take "
                "part in its locks; ask again."
            )


def to_read(path: Path) -> SqliteFile:
    """Return how the file is read from here; raises LedgerError when it cannot be copied."""
    wal, index = _beside(path, "-wal"), _beside(path, "-shm")
    full = full_disk(path.parent)
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        if full is None or _can_be_read(_uri(path, "rw")):
            return SqliteFile(path, _uri(path, "rw"))
        _warn_once(f"{full} The ledger is read without a place beside it; nothing can be recorded.")
    seen = _look(path)
    if seen[1] is None or seen[1][1] == 0:
        return SqliteFile(path, _uri(path, "ro&immutable=1"), seen)
    if os.access(index, os.R_OK) and (full is None or _can_be_read(_uri(path, "ro"))):
        return SqliteFile(path, _uri(path, "ro"))
    return SqliteFile(path, _uri(_copied(path, wal, full), "rw"), seen)


def _copied(path: Path, wal: Path, full: str | None) -> Path:
    """Return a copy of the file and its WAL in a folder of this process; raises LedgerError."""
    problems = []
    for place in (tempfile.gettempdir(), MEMORY):
        try:
            folder = Path(tempfile.mkdtemp(prefix="tracks-ledger-", dir=place))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            for each in (path, wal):
                shutil.copyfile(each, folder / each.name)
        except OSError as error:
            problems.append(f"{place} ({error.strerror or error})")
        else:
            return folder / path.name
    raise LedgerError(
        f"Cannot read the ledger at {path}: it has records in {wal.name}, and cannot be copied to "
        f"{' or '.join(problems)}. {full or ''}".rstrip()
    )


def _can_be_read(uri: str) -> bool:
    """Whether SQLite can make, beside the file, what it reads with; other troubles are not met here."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as opened:
        opened.execute("select 1 from sqlite_schema limit 1").fetchone()
        return True
    return False


def full_disk(folder: Path) -> str | None:
    """Say that the disk of `folder` has no room, or no inodes, left; None where it has both."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    if found.f_bavail * found.f_frsize < ROOM_BYTES_MIN:
        return f"The disk of {folder} is full; free some space."
    if found.f_files and found.f_favail == 0:
        return f"The disk of {folder} has no inodes left; remove some files."
    return None


@functools.cache
def _warn_once(words: str) -> None:
    _log.warning("%s", words)


def _look(path: Path) -> FileLook:
    return tuple(_size_and_time(each) for each in (path, _beside(path, "-wal")))


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.absolute()))}?mode={mode}"
