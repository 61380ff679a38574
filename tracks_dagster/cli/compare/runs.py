"""`tracks runs`: all runs in one table, filtered, sorted, grouped; their tags, names and archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from tracks_dagster.cli.common import (
    WholeGroup,
    as_json,
    by_option,
    deciding_options,
    open_app,
    print_json,
    print_recorded,
    print_table,
    run_argument,
)
from tracks_dagster.cli.terminal import RECORDED, echo_whole
from tracks_dagster.reading import open_ledger_to_read
from tracks_dagster.review.effects.run_table import READ_MAX, Asked, Table, read_table
from tracks_dagster.review.run_table import (
    Spread,
    default_columns,
    group,
    shown_cell,
    shown_spread,
    table_csv,
    title,
)
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import InvalidInput, NothingYet
from tracks_dagster.track.text.units import counted
from tracks_dagster.wiring import utc_now


@click.group("runs", cls=WholeGroup, invoke_without_command=True)
@click.option("--where", default="", metavar="FILTER", help="lr<0.01 state=succeeded owner:ann")
@click.option(
    "--sort",
    "order",
    default="",
    metavar="NAMES",
    help="By these, with commas; -NAME: the largest first. Without: the newest first.",
)
@click.option("--columns", default="", metavar="NAMES", help="Which, with commas.")
@click.option(
    "--group", "by", default="", metavar="NAME", help="Mean and spread of runs alike in it."
)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="How many rows; groups are of all runs.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print rows of CSV.")
@as_json
@click.pass_context
def runs_command(
    ctx: click.Context,
    where: str,
    order: str,
    columns: str,
    by: str,
    limit: int,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Show all runs in one table, finished ones too.

    \b
    --where 'lr<0.01 state=succeeded owner:ann'  all hold; : a part of a text
    --where 'loss<2 wide' --sort loss            a metric; a word of its name
    --where 'tag:paper archived=yes'             else archived ones are not shown
    --group experiment --columns loss,hours      mean ± deviation of each

    Names: run, name, tag, state, project, owner, team, class, experiment, stage, intent, started,
    finished, hours, step, steps, attempts, ranks, reason, why, device_hours, dataset, commit, alias,
    archived; a key of the config; a metric of the newest checkpoint (loss, or last.loss), or of an
    eval (eval.SUITE.METRIC).
    """
    if ctx.invoked_subcommand is not None:
        return
    if as_csv and as_json:
        raise InvalidInput("--csv and --json exclude each other; choose one.")
    asked = Asked(where=where, order=_names(order), limit=limit)
    table, chosen = _read(asked, _names(columns), by)
    if by:
        _print_groups(table, by, chosen, as_json=as_json)
    elif as_json:
        print_json([dict(run.values) for run in table.rows])
    elif as_csv:
        echo_whole(table_csv(table.rows, chosen), nl=False)
    else:
        _print_rows(table, chosen)
    if (as_csv or as_json) and not by and table.is_more:
        click.echo(_is_more(table), err=True)
    if table.is_cut:
        click.echo(
            f"Only the newest {table.read} runs were looked at; there are older ones.", err=True
        )


def _read(asked: Asked, columns: tuple[str, ...], by: str) -> tuple[Table, tuple[str, ...]]:
    """Return the runs and the columns to show; for groups of all runs that fit these columns alone."""
    now = utc_now()
    try:
        ledger = open_ledger_to_read(Settings.from_environment())
    except NothingYet:
        return Table(rows=(), read=0, is_more=False), columns
    if not by or not columns:
        table = read_table(ledger, asked, now=now)
        columns = columns or default_columns(table.rows)
    if by:
        table = read_table(ledger, replace(asked, limit=READ_MAX, names=(by, *columns)), now=now)
    return table, columns


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for each in text.split(",") if (name := each.strip()))


def _print_rows(table: Table, columns: Sequence[str]) -> None:
    if not table.rows:
        none = "No run is so." if table.read else "No training run yet; `tracks run` starts one."
        click.echo(none)
        return
    numbers = [
        name
        for name in columns
        if any(isinstance(run.get(name), int | float) for run in table.rows)
    ]
    rows = [[shown_cell(name, run.get(name)) for name in columns] for run in table.rows]
    print_table(
        [title(name) for name in columns],
        rows,
        right=[title(name) for name in numbers],
        whole=("run",),
    )
    if table.is_more:
        click.echo(_is_more(table))


def _is_more(table: Table) -> str:
    return f"{counted(len(table.rows), 'run')} of more; --limit shows others."


def _print_groups(table: Table, by: str, columns: Sequence[str], *, as_json: bool) -> None:
    groups = group(table.rows, by, columns)
    measured = [name for name in columns if any(name in each for _, each in groups.values())]
    if as_json:
        found = [
            {
                by: name,
                "runs": len(runs),
                "columns": {key: _facts(each) for key, each in spreads.items()},
            }
            for name, (runs, spreads) in groups.items()
        ]
        print_json(found)
        return
    rows = [
        (
            name or "–",
            str(len(runs)),
            *(shown_spread(spreads.get(each), len(runs)) for each in measured),
        )
        for name, (runs, spreads) in groups.items()
    ]
    titles = [title(name) for name in measured]
    print_table((by, "runs", *titles), rows, right=("runs", *titles))


def _facts(spread: Spread) -> dict[str, float | None]:
    return {
        "count": spread.count,
        "mean": spread.mean,
        "deviation": spread.deviation,
        "least": spread.least,
        "most": spread.most,
    }


@runs_command.command(
    "tag", context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]}
)
@run_argument
@click.argument("tags", metavar="TAG|-TAG...", nargs=-1, required=True, type=RECORDED)
@by_option
@as_json
def tag_command(run_id: str, tags: tuple[str, ...], by: str, as_json: bool) -> None:
    """Give RUN tags; -TAG takes one away."""
    removed = [tag.removeprefix("-") for tag in tags if tag.startswith("-")]
    added = [tag for tag in tags if not tag.startswith("-")]
    _label(run_id, as_json=as_json, by=by, added=added, removed=removed)


@runs_command.command("rename")
@run_argument
@click.argument("name", type=RECORDED)
@by_option
@as_json
def rename_command(run_id: str, name: str, by: str, as_json: bool) -> None:
    """Give RUN a name for people; "" takes it away. Its id stays."""
    _label(run_id, as_json=as_json, by=by, called=name)


@runs_command.command("archive")
@run_argument
@click.option("--back", is_flag=True, help="Take it out of the archive.")
@deciding_options
def archive_command(run_id: str, back: bool, why: str, by: str, as_json: bool) -> None:
    """Leave RUN out of tables that do not ask for `archived=yes`; nothing is lost."""
    _label(run_id, as_json=as_json, by=by, why=why, is_archived=not back)


def _label(run_id: str, *, as_json: bool, **changes: Any) -> None:
    from tracks_dagster.attempts.effects.labels import label  # the table, above, only reads

    app = open_app()
    record = label(app.tracks, run_id, **changes)
    labels = app.tracks.run(run_id).labels
    facts = {
        "run_id": run_id,
        "tags": list(labels.tags),
        "name": labels.name,
        "is_archived": labels.archived_at is not None,
    }
    named = f" ({labels.name})" if labels.name else ""
    put_away = "; archived" if facts["is_archived"] else ""
    what = f"{run_id}{named}: {', '.join(labels.tags) or 'no tag'}{put_away}"
    print_recorded(what, facts, record, as_json=as_json)
