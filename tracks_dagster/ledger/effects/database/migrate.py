"""Creates the ledger's schema and brings it up to date. Safe when several processes start at once.

A migration that adds or changes a column also deletes every row of `track_cursors`: the next scan
then projects all tracks anew, and every row gets the new columns.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from tracks_dagster.ledger.effects.database.engine import place, transaction
from tracks_dagster.ledger.effects.database.reader_role import make_reader
from tracks_dagster.track.errors import LedgerError

HEAD = "0008"  # the newest migration; a test compares it with the folder
VERSION_TABLE = "ledger_version"  # not alembic's own name: Dagster's stands in the same database
LOCK_ID = 0x7472616B  # of the advisory lock on Postgres; "trak"
MIGRATIONS = Path(__file__).with_name("migrations")


def migrate(engine: Engine) -> None:
    """Bring the schema to `HEAD`, creating it if need be.

    Raises LedgerError when it cannot be reached, or is of a newer version.
    """
    with transaction(engine, "open", write=False) as connection:
        found = _version(connection)
    if found == HEAD:
        return
    with transaction(engine, "create the tables of", write=True) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK_ID)))
        found = _version(connection)  # another process may have been faster
        if found != HEAD:
            _upgrade(connection, found)
            if engine.dialect.name == "postgresql":
                make_reader(connection)


def check_schema(engine: Engine) -> None:
    """Raise LedgerError unless the schema is at `HEAD`; writes nothing."""
    with transaction(engine, "open", write=False) as connection:
        found = _version(connection)
    if found == HEAD:
        return
    where = f"the ledger at {place(engine.url)}"
    if found is None:
        raise LedgerError(f"Cannot read {where}: it has no tables yet; `tracks reindex` fills it.")
    if found > HEAD:
        raise _newer(engine, found)
    raise LedgerError(
        f"Cannot read {where}: an older version wrote it (schema {found}; this one reads {HEAD}). "
        "`tracks reindex` brings it up to date."
    )


def _newer(engine: Engine, found: str) -> LedgerError:
    return LedgerError(
        f"The ledger at {place(engine.url)} was written by a newer version (schema {found}; this one "
        f"knows {HEAD}). Install that version; nothing was changed."
    )


def _version(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.scalar(sa.text(f"select version_num from {VERSION_TABLE}"))
    return version


def _upgrade(connection: Connection, found: str | None) -> None:
    # Alembic takes a while to import, and is needed once in a ledger's life and version.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    known = [revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()]
    if found is not None and found not in known:
        raise _newer(connection.engine, found)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
