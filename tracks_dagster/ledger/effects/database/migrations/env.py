"""Runs migrations on the connection, and in the transaction, that `migrate` has opened."""

from __future__ import annotations

from alembic import context

from tracks_dagster.ledger.effects.database.migrate import VERSION_TABLE
from tracks_dagster.ledger.effects.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
