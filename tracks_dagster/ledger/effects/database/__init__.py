"""The ledger: the SQL projection of all tracks, on SQLite or Postgres.

Everybody may read it; only the projector writes it, by `apply`. It holds nothing that the tracks do
not say, so a ledger that is lost or broken costs a `tracks reindex` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.engine import Engine

from tracks_dagster.ledger.effects.database.beside import count_beside
from tracks_dagster.ledger.effects.database.engine import make_engine, place
from tracks_dagster.ledger.effects.database.schema import (
    current_version,
    make_schema,
    read_version,
    which_version,
)
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.track.errors import LedgerError


def open_ledger(
    url: str, *, when_outdated: Callable[[SqlLedger], object] | None = None
) -> SqlLedger:
    """Return the ledger at `url`, its tables made where there are none.

    url: `sqlite:///PATH`, in a folder that exists, or `postgresql+psycopg2://…`, in whose default
    schema the tables are made. Safe from several processes at once. when_outdated: is called with a
    ledger of an older version, to rebuild it.

    Raises LedgerError when it cannot be reached, is of a newer version, or of an older one that nobody
    rebuilds; SettingsError when `url` names no ledger.
    """
    engine = make_engine(url)
    ledger, found = SqlLedger(engine), make_schema(engine)
    if found != current_version():
        if when_outdated is None:
            raise _outdated(engine, found)
        when_outdated(ledger)
    return ledger


def open_ledger_to_read(url: str) -> SqlLedger:
    """Return the ledger at `url`, a file or database that exists, for anyone who only reads.

    Nothing is created or brought up to date. Raises LedgerError when it cannot be read as it is.
    """
    engine = make_engine(url, only_reads=True)
    found = read_version(engine)
    if found is None:
        raise LedgerError(
            f"Cannot read the ledger at {place(engine.url)}: it has no tables yet; `tracks reindex` "
            "fills it."
        )
    if found != current_version():
        raise _outdated(engine, found)
    return SqlLedger(engine)


def _outdated(engine: Engine, found: str) -> LedgerError:
    so_far = count_beside(engine)
    progress = "" if so_far is None else f" That has started: {so_far} tracks so far."
    return LedgerError(
        f"Cannot read the ledger at {place(engine.url)}: {which_version(found)}. `tracks reindex` "
        f"rebuilds it.{progress}"
    )
