"""`tracks runs`: all runs in one table, filtered, sorted, grouped; their tags, names and archive."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
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
    recorded,
    run_argument,
)
from tracks_dagster.cli.terminal import RECORDED, echo_whole
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.review.effects.run_table import Asked, Table, read_table
from tracks_dagster.review.effects.saved_views import (
    beside,
    find_view,
    read_shown,
    remove_view,
    save_view,
)
from tracks_dagster.review.effects.status import as_they_are_now
from tracks_dagster.review.run_table import (
    Spread,
    group,
    names_of,
    shown_cell,
    shown_spread,
    table_csv,
    title,
)
from tracks_dagster.settings import Settings, eval_tries, person, usable_prices
from tracks_dagster.track.bodies import ViewSaved
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, NothingYet, StoreError
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.view_state import SavedView
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
@click.option("--view", default="", metavar="NAME", help="A saved one; options beside it count.")
@click.option(
    "--save-view", "saved", default="", metavar="NAME", help="Save what is asked, for everybody."
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
    view: str,
    saved: str,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Show all runs in one table, finished ones too.

    \b
    --where 'lr<0.01 state=succeeded owner:ann'  all hold; : a part of a text
    --where 'loss<2 wide' --sort loss            a metric; a word of its name
    --where 'tag:paper archived=yes'             else archived ones are not shown
    --group experiment --columns loss,hours      mean ± deviation of each
    --where tag:paper --save-view paper          then --view paper, on /runs too

    Names: run, name, tag, state, project, owner, team, class, experiment, stage, intent, started,
    finished, hours, step, steps, attempts, ranks, reason, why, device_hours, money, dataset, commit,
    alias, archived; a key of the config; a metric's newest value (loss, or last.loss) with its step
    (at.loss), its best at a checkpoint (best.loss, best_at.loss), or one of an eval
    (eval.SUITE.METRIC). Filters and orders take what is on record; what trains is shown with what it
    reported since.
    """
    if ctx.invoked_subcommand is not None:
        return
    if as_csv and as_json:
        raise InvalidInput("--csv and --json exclude each other; choose one.")
    options = ViewSaved(
        name=saved or view,
        by=person(),
        filter=where,
        order=names_of(order),
        columns=names_of(columns),
        group=by,
    )
    found = _view(view) if view else None
    asked_view = options if found is None else beside(found.body, options)
    by = asked_view.group
    table, chosen, lacking = _read(asked_view, limit, found)
    for words in lacking:
        click.echo(words, err=True)
    if saved:
        record = save_view(open_app().tracks, asked_view)
        click.echo(f"The view {saved} is saved: {recorded(record)}.", err=True)
    if by:
        _print_groups(table, by, chosen, as_json=as_json)
    elif as_json:
        print_json([dict(run.values) for run in table.rows])
    elif as_csv:
        echo_whole(table_csv(table.rows, chosen), nl=False)
    else:
        _print_rows(table, chosen, is_filtered=bool(asked_view.filter))
    if (as_csv or as_json) and not by and table.is_more:
        click.echo(_is_more(table), err=True)
    if table.is_cut:
        click.echo(
            f"Only the newest {table.read} runs were looked at; there are older ones.", err=True
        )


def _view(name: str) -> SavedView:
    try:
        tracks = open_tracks_to_read(Settings.from_environment())
    except NothingYet as nothing:
        raise InvalidInput(f"There is no view {name[:60]!r}: nothing is stored yet.") from nothing
    return find_view(tracks, name)


def _read(
    view: ViewSaved, limit: int, found: SavedView | None
) -> tuple[Table, tuple[str, ...], tuple[str, ...]]:
    """Return the runs, the columns to show, and what a saved view asks for and no run has."""
    now, settings = utc_now(), Settings.from_environment()
    try:
        ledger = open_ledger_to_read(settings)
    except NothingYet:
        return Table(rows=(), read=0, is_more=False), view.columns, ()
    asked = Asked(where=view.filter, order=view.order, limit=limit)
    table, columns, lacking = read_shown(
        partial(read_table, ledger, now=now, prices=usable_prices(settings)[0]), asked, view, found
    )
    with suppress(NothingYet, StoreError):  # the ledger alone has the rest
        if not view.group:
            tracks, tries = open_tracks_to_read(settings), partial(eval_tries, settings)
            table = replace(table, rows=as_they_are_now(tracks, ledger, table.rows, tries))
    return table, columns, lacking


def _print_rows(table: Table, columns: Sequence[str], *, is_filtered: bool) -> None:
    if not table.rows:
        is_none_so = is_filtered or table.read
        none = "No run is so." if is_none_so else "No training run yet; `tracks run` starts one."
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
            *(shown_spread(each, spreads.get(each), len(runs)) for each in measured),
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
    from tracks_dagster.attempts.effects.labels import given_and_taken

    added, removed = given_and_taken(tags)
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


@runs_command.command("views")
@as_json
def views_command(as_json: bool) -> None:
    """List the saved views, the newest first."""
    try:
        state = open_tracks_to_read(Settings.from_environment()).find_views()
    except NothingYet:
        state = None
    views = () if state is None else state.offered[::-1]
    if as_json:
        print_json([{**to_json(view.body), "saved_at": format_time(view.at)} for view in views])
    elif not views:
        click.echo("No view is saved; `tracks runs --where … --save-view NAME` saves one.")
    else:
        print_table(("view", "by", "saved at", "what"), map(_view_cells, views))


def _view_cells(view: SavedView) -> tuple[str, ...]:
    body = view.body
    asked = {
        "--where": body.filter,
        "--sort": ",".join(body.order),
        "--columns": ",".join(body.columns),
        "--group": body.group,
    }
    words = " ".join(f"{option} {shlex.quote(text)}" for option, text in asked.items() if text)
    return body.name, body.by, format_time(view.at)[:16].replace("T", " "), words


@runs_command.command("remove-view")
@click.argument("name", metavar="VIEW")
@deciding_options
def remove_view_command(name: str, why: str, by: str, as_json: bool) -> None:
    """Offer a saved view to nobody any more; its records stay."""
    record = remove_view(open_app().tracks, name, by=by, why=why)
    print_recorded(f"the view {name} is removed", {"view": name}, record, as_json=as_json)
