"""The ledger's schema: what it is made of, and which version of it a database holds.

There are no migrations: the ledger is a projection, so one of an older version is projected anew beside
the old one (`beside`). A version is a number, which says what is older, and a fingerprint of all that
the tables are made of, so that a changed column is noticed without anybody's help.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import sha256

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from tracks_dagster.ledger.effects.database.engine import place, transaction
from tracks_dagster.ledger.effects.database.reader_role import make_reader
from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.database.text_search import SEARCH_INDEX, make_search_index
from tracks_dagster.ledger.effects.database.views import make_views
from tracks_dagster.ledger.ledger_views import VIEWS, select_of
from tracks_dagster.track.errors import LedgerError

# Raise it when a column gets another meaning, which no fingerprint shows, and once for a release that
# changes the tables, so that older ones refuse them: tables of an equal number with another fingerprint
# are projected anew in both directions, as checkouts want it. Migrations counted to 8.
PROJECTION = 9

VERSION_TABLE = "ledger_version"
_VERSION = sa.Table(
    VERSION_TABLE, sa.MetaData(), sa.Column("version_num", sa.Text, primary_key=True)
)
LOCK_ID = 0x7472616B  # of the advisory locks on Postgres; "trak"


@cache
def current_version() -> str:
    """Return the version that this code writes and reads: `0009-4f1d52a03b7c`."""
    fingerprint = sha256("\n".join(_described()).encode()).hexdigest()[:12]
    return f"{PROJECTION:04d}-{fingerprint}"


def _described() -> Iterator[str]:
    """Yield what the fingerprint is taken of, in a form that no release of SQLAlchemy changes."""
    for table in sorted(metadata.tables.values(), key=lambda table: table.name):
        for column in table.columns:
            kind = type(column.type).__name__
            yield f"{table.name}.{column.name} {kind} {column.nullable} {column.primary_key}"
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            where = index.dialect_options["postgresql"]["where"]
            yield f"{index.name} {table.name} {[c.name for c in index.columns]} {where}"
    for statements in SEARCH_INDEX.values():
        yield from statements
    for view in VIEWS:
        yield f"{view} {select_of(view)}"


def make_schema(engine: Engine) -> str:
    """Make the tables in an empty database; return the version of those that are there.

    Safe from several processes at once. Raises as `read_version`.
    """
    found = read_version(engine)
    if found is not None:
        return found
    with transaction(engine, "create the tables of", write=True) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK_ID)))
        found = version_of(connection)
        if found is not None:  # another process was faster
            return found
        metadata.create_all(connection, checkfirst=False)
        make_search_index(connection)
        make_views(connection)
        _VERSION.create(connection)
        connection.execute(_VERSION.insert().values(version_num=current_version()))
        if engine.dialect.name == "postgresql":
            make_reader(connection)
    return current_version()


def read_version(engine: Engine) -> str | None:
    """Return the version of the tables, None where there are none.

    Raises LedgerError when they cannot be reached, or are of a newer version.
    """
    with transaction(engine, "open", write=False) as connection:
        found = version_of(connection)
    if found is not None and _number(found) > PROJECTION:
        raise LedgerError(
            f"The ledger at {place(engine.url)} was written by a newer version (schema {found}; this "
            f"one knows {current_version()}). Install that version; nothing was changed."
        )
    return found


def version_of(connection: Connection) -> str | None:
    """Return the version of the tables, None where there are none."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.scalar(sa.select(_VERSION.c.version_num))
    return version


def check_version(connection: Connection) -> None:
    """Raise LedgerError when another version has put its tables in the place of this one's."""
    if connection.scalar(sa.select(_VERSION.c.version_num)) != current_version():
        raise LedgerError(
            "Cannot write into the ledger: another version of this program has projected it anew since "
            "this process began. Start it again, from the version that is installed now."
        )


def which_version(found: str) -> str:
    """Say of tables that are not this version's whose they are."""
    age = "an older" if _number(found) < PROJECTION else "another"
    return f"{age} version wrote it (schema {found}; this one reads {current_version()})"


def _number(version: str) -> int:
    number = version.partition("-")[0]
    return int(number) if number.isdecimal() else 0
