"""The ledger: the SQL projection of all tracks, on SQLite or Postgres.

Everybody may read it; only the projector writes it, by `apply`. It holds nothing that the tracks do
not say, so a ledger that is lost or broken costs a `tracks reindex` and nothing else.
"""

from __future__ import annotations

from tracks_dagster.ledger.effects.database.engine import make_engine
from tracks_dagster.ledger.effects.database.migrate import check_schema, migrate
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger


def open_ledger(url: str) -> SqlLedger:
    """Return the ledger at `url`, its schema created or brought up to date.

    url: `sqlite:///PATH`, in a folder that exists, or `postgresql+psycopg2://…`, in whose default
    schema the tables are made. Safe from several processes at once.

    Raises LedgerError when it cannot be reached or is of a newer version, SettingsError when `url`
    names no ledger.
    """
    engine = make_engine(url)
    migrate(engine)
    return SqlLedger(engine)


def open_ledger_to_read(url: str) -> SqlLedger:
    """Return the ledger at `url`, a file or database that exists, for whoever only reads.

    Nothing is created or brought up to date. Raises LedgerError when it cannot be read as it is.
    """
    engine = make_engine(url, only_reads=True)
    check_schema(engine)
    return SqlLedger(engine)
