"""Empty ledgers for tests: the tables are made once in each process, and copied from then on."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

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
