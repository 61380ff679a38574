"""`tracks snapshots`: the snapshots of datasets, and whether anybody may train on them."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import (
    WholeGroup,
    as_json,
    deciding_options,
    open_app,
    print_answer,
    print_json,
    print_table,
    recorded,
    seq_of,
)
from tracks_dagster.holds.effects.quarantines import (
    consumers,
    find_any_snapshot,
    quarantine_snapshot,
    release_snapshot,
    short_id,
)
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reading import open_ledger_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.nearest import did_you_mean
from tracks_dagster.track.text.safe_text import check_words

_TITLES = ("dataset", "snapshot", "status", "rows", "bytes", "committed", "from", "why")


@click.group("snapshots", cls=WholeGroup)
def snapshots_command() -> None:
    """List the snapshots of datasets, quarantine and release them."""


@snapshots_command.command("list")
@click.argument("dataset", required=False)
@as_json
def list_snapshots(dataset: str | None, as_json: bool) -> None:
    """List the snapshots of DATASET, or of all datasets, oldest first."""
    ledger = open_ledger_to_read(Settings.from_environment())
    rows = ledger.query(
        "select dataset, snapshot_id, status, quarantined_why, row_count, total_bytes, source, "
        "committed_at from snapshots where cast(:dataset as text) is null or dataset = :dataset "
        "order by dataset, committed_at, snapshot_id",
        {"dataset": dataset},
    )
    if as_json:
        print_json([{**row, "committed_at": str(row["committed_at"])} for row in rows])
    elif not rows:
        click.echo(_none(ledger, dataset))
    else:
        print_table(_TITLES, map(_cells, rows), right=("rows", "bytes"))


def _none(ledger: Ledger, dataset: str | None) -> str:
    if dataset is None:
        return "There is no snapshot yet; `tracks run` makes one."
    known = [row["dataset"] for row in ledger.query("select distinct dataset from snapshots")]
    hint = did_you_mean(dataset, known) or "`tracks run` makes one."
    return f"There is no snapshot of dataset {dataset} yet; {hint.rstrip()}"


@snapshots_command.command("quarantine")
@click.argument("dataset")
@click.argument("snapshot")
@deciding_options
def quarantine(dataset: str, snapshot: str, why: str, by: str, as_json: bool) -> None:
    """Refuse every new attempt on SNAPSHOT of DATASET, and name what has used it.

    Attempts that run go on. SNAPSHOT: the first digits of its id.
    """
    check_words({"why": why, "by": by})
    app = open_app()
    ref = find_any_snapshot(app.tracks, dataset, snapshot)
    record = quarantine_snapshot(app.tracks, ref, by=by, why=why)
    used = consumers(app.ledger, ref)
    facts = {"snapshot": to_json(ref), "status": "quarantined", "consumers": to_json(used)}
    print_answer(
        f"Snapshot {short_id(ref)} of {dataset} is quarantined: {recorded(record)}. {used.sentence}",
        {**facts, "seq": seq_of(record)},
        as_json=as_json,
    )


@snapshots_command.command("release")
@click.argument("dataset")
@click.argument("snapshot")
@deciding_options
def release(dataset: str, snapshot: str, why: str, by: str, as_json: bool) -> None:
    """Let attempts train on SNAPSHOT of DATASET again; a refused run needs `tracks retry` as well."""
    check_words({"why": why, "by": by})
    app = open_app()
    ref = find_any_snapshot(app.tracks, dataset, snapshot)
    record = release_snapshot(app.tracks, ref, by=by, why=why)
    print_answer(
        f"Snapshot {short_id(ref)} of {dataset} may be trained on: {recorded(record)}.",
        {"snapshot": to_json(ref), "status": "usable", "seq": seq_of(record)},
        as_json=as_json,
    )


def _cells(row: dict[str, Json]) -> tuple[str, ...]:
    return (
        row["dataset"],
        row["snapshot_id"][:12],
        row["status"],
        str(row["row_count"]),
        str(row["total_bytes"]),
        str(row["committed_at"])[:19],
        row["source"],
        row["quarantined_why"] or "",
    )
