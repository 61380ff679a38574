"""`tracks fsck`: does everything that the records name still hold?"""

from __future__ import annotations

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, print_json
from tracks_dagster.core.body_json import to_json
from tracks_dagster.services.fsck import Checked, fsck
from tracks_dagster.settings import Settings
from tracks_dagster.training.verifying import verify_checkpoint
from tracks_dagster.wiring import open_ledger_to_read, open_store_to_read


@click.command("fsck")
@as_json
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Check every track, checkpoint, snapshot and the ledger; exit with 1 when something is wrong.

    Reads every byte that a record names by hash, and repairs nothing.
    """
    settings = Settings.from_environment()
    store = open_store_to_read(settings)
    checked = fsck(store, open_ledger_to_read(settings), verify_checkpoint)
    print_json(to_json(checked)) if as_json else click.echo(_text(checked))
    ctx.exit(BAD_NEWS if checked.findings else 0)


def _text(checked: Checked) -> str:
    counted = (
        f"Checked {checked.track_count} tracks with {checked.record_count} records, "
        f"{checked.checkpoint_count} checkpoints, {checked.snapshot_count} snapshots: "
    )
    if not checked.findings:
        return counted + "everything holds."
    lines = [counted + f"{len(checked.findings)} finding(s)."]
    for finding in checked.findings:
        lines += ["", finding.where, f"  {finding.meaning}", f"  To do: {finding.to_do}"]
    return "\n".join(lines)
