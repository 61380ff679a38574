"""`tracks import`: what another system ran, read from its own records."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import click

from tracks_dagster.cli.common import as_json, by_option, print_json, print_table
from tracks_dagster.cli.terminal import console
from tracks_dagster.settings import Settings, usable_rules
from tracks_dagster.track.errors import (
    Contended,
    InvalidInput,
    LedgerError,
    OutcomeUnknown,
    StoreUnavailable,
)
from tracks_dagster.track.records import Json
from tracks_dagster.track.text import units
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.history import jsonl
from tracks_dagster.wings.history.effects.files import (
    LinesOfFile,
    LinesOfSlurm,
    OnBytes,
    changed_at,
)
from tracks_dagster.wings.history.effects.importing import Imported, import_history
from tracks_dagster.wings.history.effects.mlflow import MLflow, MLflowServer
from tracks_dagster.wings.history.effects.neptune import Neptune
from tracks_dagster.wings.history.effects.optuna import Optuna
from tracks_dagster.wings.history.effects.ray import Ray
from tracks_dagster.wings.history.effects.skypilot import SkyPilot
from tracks_dagster.wings.history.effects.tensorboard import TensorBoard
from tracks_dagster.wings.history.effects.wandb import Wandb
from tracks_dagster.wings.history.logbook import Logbook
from tracks_dagster.wings.history.slurm_lines import SlurmLines
from tracks_dagster.wings.history.source import History
from tracks_dagster.wiring import open_tracks

# Those that are a folder or a database, whose format a module of their own reads.
PLACES: Mapping[str, Callable[[Path, datetime, tzinfo], History]] = {
    "mlflow": lambda path, now, zone: MLflow(path=path, now=now),
    "wandb": lambda path, now, zone: Wandb(path=path, now=now),
    "neptune": lambda path, now, zone: Neptune(path=path, now=now),
    "ray": lambda path, now, zone: Ray(path=path, now=now, zone=zone),
    "tensorboard": lambda path, now, zone: TensorBoard(path=path, now=now),
    "skypilot": lambda path, now, zone: SkyPilot(path=path, zone=zone),
    "optuna": lambda path, now, zone: Optuna(path=path, zone=zone),
}
SYSTEMS = ("slurm", *PLACES, "jsonl", "logbook")
ALSO_CALLED = {"raytune": "ray"}
ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,15}")
MLFLOW_TOO = (
    ", or a server by its http address: of a database that is not a file start one with "
    "`mlflow server --backend-store-uri ADDRESS`"
)
SHOWN_MAX = 20  # rows that could not be read, and reasons
EVERY_S_MIN = 10.0  # between two looks of --follow
LOOK_BACK = timedelta(
    days=2
)  # of --follow: what ended since the last look may have begun long before
# The source, the store or the ledger may not be there yet, or be gone for a while.
AWAY = (InvalidInput, OSError, StoreUnavailable, OutcomeUnknown, Contended, LedgerError)
NEXT = (
    "tracks goodput --by reason",
    "tracks status {name}",
    "tracks simulate --policy FILE --last 90d",
    'tracks sql "select termination_reason, count(*), sum(gpu_seconds)/3600 from training_attempts '
    "where pool = 'imported/{name}' group by 1 order by 3 desc\"",
)


@click.command("import")
@click.argument("system", type=click.Choice((*SYSTEMS, *ALSO_CALLED)))
@click.argument("path", required=False, type=click.Path())
@click.option("--name", help="How the history is called, and its runs begin; else as SYSTEM.")
@click.option(
    "--timezone", "zone", metavar="ZONE", help="Of times that name none, as Europe/Paris; else UTC."
)
@click.option(
    "--last", metavar="90d", default="90d", show_default=True, help="Without PATH: how far back."
)
@click.option(
    "--by-name",
    is_flag=True,
    help="Jobs of one name, user and folder are one run, not each its own.",
)
@click.option("--follow", is_flag=True, help="Go on with what ends from now on, until Ctrl-C.")
@click.option("--every", metavar="60s", default="60s", show_default=True, help="Of --follow.")
@click.option("--dry-run", is_flag=True, help="Read and judge everything; write nothing.")
@by_option
@as_json
def import_command(
    system: str,
    path: str | None,
    name: str | None,
    zone: str | None,
    last: str,
    by_name: bool,
    follow: bool,
    every: str,
    dry_run: bool,
    by: str,
    as_json: bool,
) -> None:
    """Import the runs that SYSTEM ran or recorded, from PATH, or from Slurm's own programs.

    PATH is a file of lines (slurm: of `sacct`, `scontrol show node` or `sinfo -R`; jsonl, logbook), a
    folder (mlflow, wandb, neptune, ray, tensorboard), a database (mlflow, skypilot, optuna) or the
    address of a server (mlflow). Metrics become curves.

    Each ended attempt is judged by the same rules as one of ours, with the row that it was read from as
    evidence. Importing again adds what is new. Nothing of ours acts on an imported run.

    docs/import.md says what each system needs.
    """
    system = ALSO_CALLED.get(system, system)
    name = name or system
    if NAME.fullmatch(name) is None:
        raise InvalidInput(f"--name {name!r}: use 1 to 16 of a-z, 0-9 and -.")
    settings = Settings.from_environment()
    tracks = open_tracks(settings)
    rules, problem = usable_rules(settings)
    if problem:
        click.echo(f"Judged without your own rules: {problem}", err=True)
    every_s = max(EVERY_S_MIN, _seconds("--every", every))
    since = datetime.now(UTC) - timedelta(seconds=_seconds("--last", last))

    def look(since: datetime) -> bool:
        """Import once; return whether all was there that was asked for."""
        with _bar(path) as (on_bytes, on_stored):
            history = _source(
                system, path, zone=_zone(zone), by_name=by_name, since=since, on_bytes=on_bytes
            )
            done = import_history(
                tracks, history, name, rules=rules, by=by, dry_run=dry_run, on_stored=on_stored
            )
        if as_json:
            print_json(_json(name, done, dry_run=dry_run))
        else:
            _print(name, history, done, dry_run=dry_run)
        return not (isinstance(history, LinesOfSlurm) and history.is_cut)

    if not follow:
        look(since)
        return
    while True:
        began = datetime.now(UTC)
        try:
            if look(since):
                since = began - LOOK_BACK
        except AWAY as error:
            click.echo(f"Not read: {error} It is read again in {every_s:g} s.", err=True)
        time.sleep(every_s)


def _source(
    system: str,
    given: str | None,
    *,
    zone: tzinfo,
    by_name: bool,
    since: datetime,
    on_bytes: OnBytes,
) -> History:
    """Return what is read; raises InvalidInput for a system that needs a path, or takes no address."""
    if system == "slurm" and given is None:
        now = SlurmLines(zone=UTC, seen_at=datetime.now(UTC), by_name=by_name)
        return LinesOfSlurm(since=since, parse=now.read)
    what = "folder or database" if system in PLACES else "file"
    if given is None:
        raise InvalidInput(f"Name the {what} to import: tracks import {system} PATH.")
    if address := ADDRESS.match(given):
        if system == "mlflow" and address[1].lower() in ("http", "https"):
            return MLflowServer(uri=given, now=datetime.now(UTC))
        raise InvalidInput(
            f"PATH is an address ({address[0]}…), and tracks import {system} reads a {what}"
            f"{MLFLOW_TOO if system == 'mlflow' else ' of this machine: copy it here, and name that'}."
        )
    path = Path(given).absolute()  # for the record
    if system in PLACES:
        return PLACES[system](path, datetime.now(UTC), zone)
    parse = Logbook(zone=zone).read if system == "logbook" else jsonl.read
    if system == "slurm":
        parse = SlurmLines(zone=zone, seen_at=changed_at(path), by_name=by_name).read
    return LinesOfFile(system=system, path=path, parse=parse, on_bytes=on_bytes)


def _zone(name: str | None) -> tzinfo:
    if name is None:
        return UTC
    try:
        return units.time_zone(name)
    except ValueError as error:
        raise InvalidInput(f"--timezone: {error}") from error


def _seconds(option: str, text: str) -> float:
    try:
        return units.duration_s(text)
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}") from error


@contextmanager
def _bar(given: str | None) -> Iterator[tuple[OnBytes, Callable[[int], object]]]:
    """Show on a terminal's stderr how much was read, and how many attempts are stored."""
    if not sys.stderr.isatty():
        yield lambda count: None, lambda count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    stored, path = 0, Path(given or "")
    total = path.stat().st_size if path.is_file() else None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(sys.stderr)) as bar:
        task = bar.add_task("reading", total=total)

        def on_stored(count: int) -> None:
            nonlocal stored
            stored += count
            bar.update(task, description=f"{counted(stored, 'attempt')} stored")

        yield lambda count: bar.advance(task, count), on_stored


def _print(name: str, history: History, done: Imported, *, dry_run: bool) -> None:
    verb = "Would import" if dry_run else "Imported"
    what = f"{counted(done.new, 'attempt')} of {counted(len(done.runs), 'run')}"
    also = [
        f"{done.known} known before" if done.known else "",
        f"{done.grown} with more than before" if done.grown else "",
        f"{done.not_ended} not ended yet" if done.not_ended else "",
        f"{counted(done.bad_count, 'line')} not read" if done.bad_count else "",
    ]
    rest = f" ({', '.join(filter(None, also))})" if any(also) else ""
    if done.new or not done.nodes:
        click.echo(f"{verb} {what} from {history.origin}{rest}.")
    if done.nodes:
        click.echo(f"{verb} {counted(done.nodes_new, 'new state')} of {_nodes(done)}.")
    if done.new:
        click.echo(f"From {str(done.first_at)[:16]}Z to {str(done.last_at)[:16]}Z:")
        rows = [
            (reason, str(count), f"{done.device_seconds[reason] / 3600:.1f}")
            for reason, count in done.reasons.most_common(SHOWN_MAX)
        ]
        print_table(
            ("ended as", "attempts", "device hours"), rows, right=("attempts", "device hours")
        )
        for fact, why in sorted(done.unknown.items()):
            click.echo(f"Not known: {fact.replace('_', ' ')}: {why}.")
    for each in done.bad[:SHOWN_MAX]:
        click.echo(f"Not read: {each.place}: {each.why}.", err=True)
    if done.bad_count > SHOWN_MAX:
        click.echo(
            f"… and {done.bad_count - SHOWN_MAX} more lines; --json names {len(done.bad)}.",
            err=True,
        )
    if done.new and not dry_run:
        click.echo("Now, for example:")
        for command in NEXT:
            click.echo(f"  {command.format(name=name)}")


def _nodes(done: Imported) -> str:
    """Describe the nodes that were listed: "2 nodes, of which n2 takes no job"."""
    out = [name for name, node in sorted(done.nodes.items()) if node.out]
    more = f" and {len(out) - SHOWN_MAX} more" if len(out) > SHOWN_MAX else ""
    which = f"{', '.join(out[:SHOWN_MAX])}{more}" if out else "none"
    return f"{counted(len(done.nodes), 'node')}; drained, down or failing: {which}"


def _json(name: str, done: Imported, *, dry_run: bool) -> Json:
    return {
        "history": name,
        "dry_run": dry_run,
        "new": done.new,
        "runs": len(done.runs),
        "known": done.known,
        "grown": done.grown,
        "not_ended": done.not_ended,
        "nodes": len(done.nodes),
        "nodes_new": done.nodes_new,
        "reasons": dict(done.reasons),
        "device_seconds": dict(done.device_seconds),
        "first_at": done.first_at,
        "last_at": done.last_at,
        "unknown": done.unknown,
        "bad_count": done.bad_count,
        "bad": [{"file": each.file, "line": each.line, "why": each.why} for each in done.bad],
    }
