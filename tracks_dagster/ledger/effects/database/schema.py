"""The ledger's schema: how it is made, and which version of it a database holds.

There are no migrations: the ledger is a projection, so one of an older version is rebuilt beside
the old one (`beside`). A version is a number, which says what is older, and a fingerprint of all that
the tables are made of, so that a changed column is noticed without anybody's help.

Also the role that may only read (`tracks sql` on Postgres).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import sha256

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tracks_dagster.ledger.effects.database.engine import place, transaction
from tracks_dagster.ledger.effects.database.tables import (
    SEARCH_INDEX,
    make_search_index,
    make_views,
    metadata,
    views,
)
from tracks_dagster.ledger.ledger_views import VIEWS, select_of
from tracks_dagster.track.errors import LedgerError

# Raise it when a column gets another meaning, which no fingerprint shows, and once for a release that
# changes the tables, so that older ones refuse them: tables of an equal number with another fingerprint
# are rebuilt in both directions, as checkouts want it. Migrations counted to 8.
PROJECTION = 10

VERSION_TABLE = "ledger_version"
_VERSION = sa.Table(
    VERSION_TABLE, sa.MetaData(), sa.Column("version_num", sa.Text, primary_key=True)
)
LOCK_ID = 0x7472616B  # of the advisory locks on Postgres; "trak"
READER = "tracks_reader"


@cache
def current_version() -> str:
    """Return the version that this code writes and reads: `0010-4f1d52a03b7c`."""
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
        for statement in _to_make_tables(engine.dialect.name):
            connection.exec_driver_sql(statement)
        make_search_index(connection)
        make_views(connection)
        _VERSION.create(connection)
        connection.execute(_VERSION.insert().values(version_num=current_version()))
        if engine.dialect.name == "postgresql":
            make_reader(connection)
    return current_version()


@cache
def _to_make_tables(dialect: str) -> tuple[str, ...]:
    """Return the statements, compiled once: a third of the time that it takes to make a ledger."""
    statements: list[str] = []

    def take(statement: sa.schema.ExecutableDDLElement, *_: object, **__: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine = sa.create_mock_engine(f"{dialect}://", take)
    metadata.create_all(engine, checkfirst=False)
    return tuple(statements)


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
            "Cannot write into the ledger: another version of this program has rebuilt it since "
            "this process started. Start it again, from the version that is installed now."
        )


def which_version(found: str) -> str:
    """Say of tables that are not this version's whose they are."""
    age = "an older" if _number(found) < PROJECTION else "another"
    return f"{age} version wrote it (schema {found}; this one reads {current_version()})"


def _number(version: str) -> int:
    number = version.partition("-")[0]
    return int(number) if number.isdecimal() else 0


# --- the role that may only read ------------------------------------------------------------------
#
# `tracks sql` takes it on, on Postgres. It cannot log in and owns nothing. It is made with the ledger's
# tables where the URL's role may make roles; elsewhere an administrator makes it.


_MAY_MAKE = sa.text("select rolsuper or rolcreaterole from pg_roles where rolname = current_user")
_IS_THERE = sa.text("select exists (select from pg_roles where rolname = :role)")
_MAY_TAKE_ON = sa.text("""
    select pg_has_role(current_user, oid, 'member') and not rolsuper
        and has_schema_privilege(oid, cast(:schema as text), 'usage')
        and (select bool_and(has_table_privilege(pg_roles.oid, to_regclass(name), 'select'))
             from unnest(cast(:names as text[])) name)
    from pg_roles where rolname = :role
""")
_MAY_WRITE = sa.text("""
    select bool_or(has_table_privilege(to_regclass(name), 'insert, update, delete, truncate'))
    from unnest(cast(:names as text[])) name
""")


def make_reader(connection: Connection) -> None:
    """Make the role and let it read every table and view of the ledger, where that may be done.

    Leaves the transaction as it was where it may not: the ledger works without the role.
    """
    if not connection.scalar(_MAY_MAKE):
        return
    try:
        with connection.begin_nested():
            if not connection.scalar(_IS_THERE, {"role": READER}):
                connection.exec_driver_sql(f"create role {READER} nologin")
            schema = connection.scalar(sa.text("select current_schema()"))
            for statement in _grants(connection, schema):
                connection.exec_driver_sql(statement)
    except DBAPIError:  # another ledger of this server makes it now, or a policy of the server's
        return


def take_on_reader(connection: Connection, schema: str) -> str | None:
    """Read as the role that may only read, to the end of the transaction.

    schema: where the ledger's tables are. Returns None; or, where the role cannot be taken on though
    the present one may write, a warning with the statements that make it.
    """
    names = [*metadata.tables, *views.tables]
    if connection.scalar(_MAY_TAKE_ON, {"role": READER, "schema": schema, "names": names}):
        connection.exec_driver_sql(f"set local role {READER}")
        return None
    if not connection.scalar(_MAY_WRITE, {"names": names}):
        return None
    user = connection.scalar(sa.text("select current_user"))
    return (
        f"`tracks sql` reads as {user}, a role that may also write, for there is no {READER} that may "
        f"only read; nothing is written anyway. To make it: create role {READER} nologin; "
        f"{'; '.join(_grants(connection, schema))};"
    )


def _grants(connection: Connection, schema: str) -> list[str]:
    quote = connection.dialect.identifier_preparer.quote
    user = connection.scalar(sa.text("select session_user"))
    tables = ", ".join(f"{quote(schema)}.{name}" for name in [*metadata.tables, *views.tables])
    return [
        f"grant {READER} to {quote(user)}",
        f"grant usage on schema {quote(schema)} to {READER}",
        f"grant select on {tables} to {READER}",
    ]
