"""Ledgers for tests: a process makes their tables once, and compiles their SQL once."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine

from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger


def new_ledger(path: Path) -> SqlLedger:
    """Return an empty ledger in a new file at `path`."""
    path.write_bytes(_empty_file())
    return open_ledger(f"sqlite:///{path}")


@functools.cache
def _empty_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made, whole = Path(folder, "made.db"), Path(folder, "whole.db")
        open_ledger(f"sqlite:///{made}")
        with closing(sqlite3.connect(made)) as connection:  # what lies in its -wal too
            connection.execute("vacuum into ?", [str(whole)])
        return whole.read_bytes()


def share_compiled_sql() -> None:
    """Let all engines on SQLite have the first one's dialect and compiled statements.

    SQLAlchemy compiles a statement once for each engine, for 2 ms, and each test has an engine.
    """
    first: list[Engine] = []
    make = Engine.__init__

    def make_shared(engine: Engine, pool: Any, dialect: Any, *args: Any, **given: Any) -> None:
        make(engine, pool, dialect, *args, **given)
        if type(dialect) is not SQLiteDialect_pysqlite:
            return
        if first and first[0].dialect.server_version_info is not None:  # it has connected
            engine.dialect, engine._compiled_cache = first[0].dialect, first[0]._compiled_cache
        else:
            first[:] = [engine]

    Engine.__init__ = make_shared
