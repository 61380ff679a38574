"""`tracks sql`: one SELECT over the ledger, which it cannot change."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import click
from rich.table import Table

from tracks_dagster.cli.common import as_json, print_json, print_table
from tracks_dagster.ledger.effects.sql.sql_query import run_sql
from tracks_dagster.reading import open_ledger_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, format_time


@click.command("sql")
@click.argument("query")
@as_json
def command(query: str, as_json: bool) -> None:
    """Run QUERY, one SELECT over the ledger's tables and views, and print what it gives.

    The tables: training_runs, training_attempts, checkpoints, evals, promotions, datasets,
    snapshots, notes. The views: attempt_time, run_time, waste_by_reason, dead_retries, budget_burn,
    interruptions, eval_lag. The same text runs on Postgres as it stands. Functions are those that
    only compute; an error about another one lists them.
    """
    settings = Settings.from_environment()
    open_ledger_to_read(settings)  # says what to do where there is none, or one of another version
    columns, rows = run_sql(
        settings.ledger_url, query, warn=lambda warning: click.echo(warning, err=True)
    )
    told = [[_plain(value) for value in row] for row in rows]
    if as_json:
        _check_names(columns)
        print_json([dict(zip(columns, row, strict=True)) for row in told])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in told:
        table.add_row(*("" if value is None else str(value) for value in row))
    print_table(table)


def _check_names(columns: list[str]) -> None:
    """Raise InvalidInput where two columns have one name, of which an object of JSON keeps one."""
    twice = ", ".join(sorted(name for name, count in Counter(columns).items() if count > 1))
    if twice:
        raise InvalidInput(
            f"Two columns are named {twice}, and JSON can hold one of each: name them apart with `as`."
        )


def _plain(value: Json) -> Json:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return format_time(value)
    return value.isoformat() if isinstance(value, datetime) else value
