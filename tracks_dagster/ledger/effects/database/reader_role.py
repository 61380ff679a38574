"""The role of Postgres that may read the ledger and nothing else; `tracks sql` takes it on.

It cannot log in and owns nothing. It is made with the ledger's tables where the URL's role may make
roles; elsewhere an administrator makes it, by `how_to_make`.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tracks_dagster.ledger.effects.database.tables import metadata
from tracks_dagster.ledger.effects.database.views import views

READER = "tracks_reader"

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
    the present one may write, a sentence that says so and what makes it.
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
        f"only read; nothing is written all the same. To make it: create role {READER} nologin; "
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
