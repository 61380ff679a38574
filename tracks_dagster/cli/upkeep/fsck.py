"""`tracks fsck` and `reindex`: check everything that the records name, and rebuild the ledger."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    archive_option,
    as_json,
    print_answer,
    print_json,
    settings_for,
)
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reading import open_ledger_to_read, open_store_to_read
from tracks_dagster.recovery.effects.fsck import Checked, check_archive, fsck, is_left_out, no_store
from tracks_dagster.settings import Settings
from tracks_dagster.stores.archive import ArchiveStore
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import LedgerError, StoreUnsuitable
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.text.units import counted
from tracks_dagster.training.saves.manifest import read_manifest, verify_checkpoint
from tracks_dagster.wiring import reindex

NOTHING_CHECKED = Checked(
    track_count=0, record_count=0, checkpoint_count=0, snapshot_count=0, findings=()
)
PROBLEMS_NAMED_MAX = 100  # tracks that a rebuild names


@click.command("fsck")
@archive_option
@as_json
@click.pass_context
def fsck_command(ctx: click.Context, archive: Path | None, as_json: bool) -> None:
    """Check every track, checkpoint, snapshot and the ledger; exit with 1 when something is wrong.

    Reads every byte that a record names by hash, and repairs nothing. With --archive it checks an
    exported run: every file in it, then what is there of its tracks.
    """
    checked = _fsck() if archive is None else _fsck_archive(archive)
    print_json(to_json(checked)) if as_json else click.echo(_text(checked))
    ctx.exit(BAD_NEWS if checked.findings else 0)


def _fsck() -> Checked:
    settings = Settings.from_environment()
    store = open_store_to_read(settings)
    return fsck(store, _ledger(settings), verify_checkpoint)


def _ledger(settings: Settings) -> Ledger | LedgerError:
    """Return the ledger, or why it cannot be read: a finding beside those of the store."""
    try:
        return open_ledger_to_read(settings)
    except LedgerError as error:
        return error


def _fsck_archive(path: Path) -> Checked:
    """Check the archive's members; then its tracks, with a ledger that is made of them."""
    archive = ArchiveStore(path.absolute())
    found = tuple(check_archive(archive))
    try:
        manifest = archive.manifest()
    except StoreUnsuitable:
        return replace(NOTHING_CHECKED, findings=found)

    def verify(store: ObjectStore, ref: CheckpointRef) -> object:
        is_whole = ref.run_id in manifest.chunks_of
        return verify_checkpoint(store, ref) if is_whole else read_manifest(store, ref)

    try:
        ledger = open_ledger_to_read(settings_for(path))
    except StoreUnsuitable as error:
        return replace(NOTHING_CHECKED, findings=(*found, no_store(error)))
    checked = fsck(archive, ledger, verify, is_absent=partial(is_left_out, manifest))
    return replace(checked, findings=(*found, *checked.findings))


def _text(checked: Checked) -> str:
    checks = (
        f"Checked {checked.track_count} tracks with {checked.record_count} records, "
        f"{checked.checkpoint_count} checkpoints, {checked.snapshot_count} snapshots: "
    )
    if not checked.findings:
        return checks + "everything holds."
    lines = [f"{checks}{counted(len(checked.findings), 'finding')}."]
    for finding in checked.findings:
        lines += ["", finding.where, f"  {finding.meaning}", f"  To do: {finding.to_do}"]
    return "\n".join(lines)


@click.command("reindex")
@click.option(
    "--forget-lost",
    "forgets_lost",
    is_flag=True,
    help="Forget what the ledger remembers of records that the store no longer holds.",
)
@as_json
@click.pass_context
def reindex_command(ctx: click.Context, forgets_lost: bool, as_json: bool) -> None:
    """Rebuild the ledger from the tracks; safe at any time, also while runs go on.

    Readers find the old ledger until the new one is whole. A track that cannot be taken in whole is
    named, all others are rebuilt, and the exit code is 1.
    """
    done = reindex(Settings.from_environment(), forgets_lost=forgets_lost)
    print_answer(
        f"Rebuilt the ledger from {done.track_count} tracks.",
        {"track_count": done.track_count, "problems": list(done.problems)},
        as_json=as_json,
    )
    for problem in done.problems[:PROBLEMS_NAMED_MAX]:
        click.echo(problem, err=True)
    if len(done.problems) > PROBLEMS_NAMED_MAX:
        click.echo(
            f"And {len(done.problems) - PROBLEMS_NAMED_MAX} more; `tracks fsck` names all.",
            err=True,
        )
    ctx.exit(BAD_NEWS if done.problems else 0)
