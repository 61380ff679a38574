"""`tracks checkpoints`: what a run has committed, and what became of it."""

from __future__ import annotations

import click
from rich.table import Table

from tracks_dagster.cli.common import as_json, print_json, print_table
from tracks_dagster.core.body_json import to_json
from tracks_dagster.core.checkpoints import resume_target
from tracks_dagster.core.names import check_run_id
from tracks_dagster.core.records import Json, format_time
from tracks_dagster.core.run_state import CheckpointState, RunState
from tracks_dagster.wiring import Settings, open_tracks_to_read


@click.group("checkpoints")
def command() -> None:
    """Look at the checkpoints of a run."""


@command.command("list")
@click.argument("run_id")
@as_json
def list_checkpoints(run_id: str, as_json: bool) -> None:
    """List the committed checkpoints of RUN_ID, oldest first."""
    tracks = open_tracks_to_read(Settings.from_environment())
    state = tracks.run(check_run_id(run_id))
    rows = [_row(state, checkpoint) for checkpoint in state.checkpoints]
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo(f"Training run {run_id} has committed no checkpoint yet.")
    else:
        print_table(_table(rows))


def _row(state: RunState, checkpoint: CheckpointState) -> dict[str, Json]:
    target = resume_target(state.resumable) if state.resumable else None
    return {
        "attempt_id": checkpoint.ref.attempt_id,
        "step": checkpoint.ref.step,
        "status": checkpoint.status,
        "is_resume_target": checkpoint.ref == target,
        "trigger": checkpoint.body.trigger,
        "total_bytes": checkpoint.body.total_bytes,
        "committed_at": format_time(checkpoint.at),
        "pins": sorted(checkpoint.pins),
        "metrics": dict(checkpoint.body.metrics),
        "ref": to_json(checkpoint.ref),
    }


def _table(rows: list[dict[str, Json]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("attempt", "step", "status", "saved at", "bytes", "manifest", ""):
        table.add_column(title)
    for row in rows:
        table.add_row(
            str(row["attempt_id"]),
            str(row["step"]),
            row["status"],
            row["committed_at"][:19],
            str(row["total_bytes"]),
            row["ref"]["manifest_sha256"][:12],
            "resumes from here" if row["is_resume_target"] else ", ".join(row["pins"]),
        )
    return table
