"""Migrations of the ledger, run by `migrate`; alembic finds them by this folder."""
