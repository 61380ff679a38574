"""`tracks snapshots`: add, list, quarantine and release snapshots of datasets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tracks_dagster.cli.common import (
    WholeGroup,
    as_json,
    deciding_options,
    open_app,
    print_answer,
    print_json,
    print_recorded,
    print_table,
)
from tracks_dagster.cli.terminal import console
from tracks_dagster.data.effects.datasets.catalog import DATASETS, ShippedDatasets
from tracks_dagster.data.effects.own_checks import read_checks
from tracks_dagster.data.effects.snapshots import add_files, checks_in_force
from tracks_dagster.holds.effects.quarantines import (
    consumers,
    find_any_snapshot,
    quarantine_snapshot,
    release_snapshot,
)
from tracks_dagster.holds.hold import short_id
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reading import open_ledger_to_read
from tracks_dagster.retry.stages import KITCHEN_SINK
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.nearest import did_you_mean
from tracks_dagster.track.text.safe_text import check_words
from tracks_dagster.track.text.units import counted
from tracks_dagster.wiring import open_tracks

_SNAPSHOT_TITLES = (
    *("dataset", "snapshot", "status", "rows", "files", "bytes", "committed", "from", "why"),
    "kitchen sink",
)


@click.group("snapshots", cls=WholeGroup)
def snapshots_command() -> None:
    """Add, list, quarantine and release snapshots of datasets."""


@snapshots_command.command("add")
@click.argument("dataset", metavar="NAME")
@click.argument("place", metavar="PATH|s3://BUCKET/PREFIX")
@click.option(
    "--in-place",
    is_flag=True,
    help="Record hashes and leave the files where they are; every attempt verifies them.",
)
@click.option(
    "--checks",
    "checks_file",
    metavar="FILE.py",
    type=click.Path(path_type=Path),
    help="Functions check_NAME(folder), or SCHEMAS = {pattern: pandera schema}; default: those of the "
    "newest snapshot that was added with any.",
)
@click.option("--no-checks", "is_unchecked", is_flag=True, help="Add it without any check.")
@as_json
def add(
    dataset: str,
    place: str,
    in_place: bool,
    checks_file: Path | None,
    is_unchecked: bool,
    as_json: bool,
) -> None:
    """Freeze the files of any format at PATH as a snapshot of the dataset NAME.

    The same files give the same snapshot; files that are stored already cost no bytes again. What
    checks one snapshot passed, the next has to pass too.
    """
    if checks_file is not None and is_unchecked:
        raise InvalidInput("--checks and --no-checks contradict each other; give one of them.")
    checks = None if checks_file is None else read_checks(checks_file)
    settings = Settings.from_environment()
    tracks = open_tracks(settings)
    if checks is None and not is_unchecked:
        checks = checks_in_force(tracks, dataset)
        if checks is not None:
            click.echo(
                f"The checks that a snapshot of {dataset} was added with are repeated; --checks "
                "FILE.py gives others, --no-checks none.",
                err=True,
            )
    with _bytes_bar() as (on_listed, progress):
        added = add_files(
            tracks,
            ShippedDatasets(settings.work),
            dataset,
            place,
            in_place=in_place,
            cache=settings.cache,
            checks=checks,
            on_listed=on_listed,
            progress=progress,
        )
    body = added.body
    stays = f", which stay in {body.in_place}" if body.in_place else ""
    what = f"{counted(body.file_count or 0, 'file')}, {body.total_bytes} bytes{stays}"
    how = f"{added.written_bytes} bytes were new" if not in_place else "nothing was copied"
    is_there = "" if added.is_new else " It was there already."
    checked = f" {counted(len(added.passed), 'check')} passed." if added.passed else ""
    print_answer(
        f"Snapshot {body.snapshot_id[:12]} of {dataset}: {what}; {how}.{is_there}{checked}",
        {
            "snapshot": to_json(body),
            "is_new": added.is_new,
            "passed": list(added.passed),
            "written_bytes": added.written_bytes,
        },
        as_json=as_json,
    )


@contextmanager
def _bytes_bar() -> Iterator[tuple[Callable[[int, int], None], Callable[[int], None]]]:
    """Show on a terminal's stderr how many bytes were dealt with, of how many."""
    if not sys.stderr.isatty():
        yield lambda files, total: None, lambda done: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=console(sys.stderr)) as bar:
        task = bar.add_task("looking at the files", total=None)
        yield (
            lambda files, total: bar.update(
                task, description=f"freezing {counted(files, 'file')}", total=total
            ),
            lambda done: bar.advance(task, done),
        )


@snapshots_command.command("list")
@click.argument("dataset", required=False)
@as_json
def list_snapshots(dataset: str | None, as_json: bool) -> None:
    """List the snapshots of DATASET, or of all datasets, oldest first.

    Each with what its newest kitchen sink found: a run of that stage, which reads all of it.
    """
    ledger = open_ledger_to_read(Settings.from_environment())
    rows = ledger.query(_SNAPSHOTS, {"dataset": dataset, "stage": KITCHEN_SINK})
    if as_json:
        print_json([{**row, "committed_at": str(row["committed_at"])} for row in rows])
    elif not rows:
        click.echo(_no_snapshot(ledger, dataset))
    else:
        print_table(_SNAPSHOT_TITLES, map(_snapshot_cells, rows), right=("rows", "files", "bytes"))


_SNAPSHOTS = """
select s.dataset, s.snapshot_id, s.status, s.quarantined_why, s.row_count, s.file_count, s.in_place,
    s.total_bytes, s.source, s.committed_at, k.run_id as kitchen_sink,
    case when k.stage_passed then 'passed' when not k.stage_passed then 'did not pass' else k.state end
        as kitchen_sink_state,
    coalesce(k.stage_why, k.state_why) as kitchen_sink_why
from snapshots s left join training_runs k on k.run_id = (
    select r.run_id from training_runs r
    where r.stage = :stage and r.dataset = s.dataset and r.snapshot_id = s.snapshot_id
    order by r.declared_at desc, r.run_id desc limit 1)
where cast(:dataset as text) is null or s.dataset = :dataset
order by s.dataset, s.committed_at, s.snapshot_id
"""


def _no_snapshot(ledger: Ledger, dataset: str | None) -> str:
    if dataset is None:
        return "There is no snapshot yet; `tracks snapshots add NAME PATH` makes one."
    if dataset in DATASETS:
        return f"There is no snapshot of dataset {dataset} yet; `tracks run` makes one."
    known = [row["dataset"] for row in ledger.query("select distinct dataset from snapshots")]
    raise UnknownRun(
        f"There is no dataset {dataset!r}; {did_you_mean(dataset, known)}"
        "`tracks snapshots list` names those that there are."
    )


@snapshots_command.command("quarantine")
@click.argument("dataset")
@click.argument("snapshot")
@deciding_options
def quarantine(dataset: str, snapshot: str, why: str, by: str, as_json: bool) -> None:
    """Refuse every new attempt on SNAPSHOT of DATASET, and name what has used it.

    Attempts that run continue. SNAPSHOT: the first digits of its id.
    """
    check_words({"why": why, "by": by})
    app = open_app()
    ref = find_any_snapshot(app.tracks, dataset, snapshot)
    record = quarantine_snapshot(app.tracks, ref, by=by, why=why)
    used = consumers(app.ledger, ref)
    facts = {"snapshot": to_json(ref), "status": "quarantined", "consumers": to_json(used)}
    what = f"Snapshot {short_id(ref)} of {dataset} is quarantined"
    print_recorded(what, facts, record, more=used.sentence, as_json=as_json)


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
    facts = {"snapshot": to_json(ref), "status": "usable"}
    what = f"Snapshot {short_id(ref)} of {dataset} may be trained on"
    print_recorded(what, facts, record, as_json=as_json)


def _snapshot_cells(row: dict[str, Json]) -> tuple[str, ...]:
    return (
        row["dataset"],
        row["snapshot_id"][:12],
        row["status"],
        "–" if row["row_count"] is None else str(row["row_count"]),
        "–" if row["file_count"] is None else str(row["file_count"]),
        str(row["total_bytes"]),
        str(row["committed_at"])[:19],
        row["source"],
        row["quarantined_why"] or "",
        f"{row['kitchen_sink']}: {row['kitchen_sink_state']}" if row["kitchen_sink"] else "–",
    )
