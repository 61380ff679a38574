"""`tracks checkpoints`: what a run has committed, what became of it, and what is done about it."""

from __future__ import annotations

import click
from rich.table import Table

from tracks_dagster.checkpoints.retention import judge
from tracks_dagster.cli.common import as_json, print_json, print_table, run_argument
from tracks_dagster.cli.groups import WholeGroup
from tracks_dagster.cli.sources import (
    checkpoint_advice,
    checkpoint_export,
    checkpoint_gc,
    checkpoint_pins,
    checkpoint_save,
    checkpoint_verify,
)
from tracks_dagster.holds.effects.holds import BySource, Holds
from tracks_dagster.holds.effects.starts import describe_sources, next_start
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.names import check_run_id
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.protection import RESUMES, pins_of
from tracks_dagster.track.states.run_state import CheckpointState


@click.group("checkpoints", cls=WholeGroup)
def command() -> None:
    """List, save, verify, collect and pin the checkpoints of a run."""


@command.command("list")
@run_argument
@as_json
def list_checkpoints(run_id: str, as_json: bool) -> None:
    """List the committed checkpoints of RUN, oldest first, and why each is still there."""
    tracks = open_tracks_to_read(Settings.from_environment())
    state = tracks.run(check_run_id(run_id))
    judged = {each.checkpoint.seq: each.why for each in judge(state, tracks.now())}
    holds = Holds(tracks)
    try:
        sources, target = holds.of_checkpoints(state), next_start(holds, state).resume
    except TrackBroken:  # of another run or of the quarantines: said below
        sources, target = {}, state.resumes_from
    rows = [
        _row(
            each,
            sources.get(each.ref.manifest_sha256, {}),
            is_target=each.ref == target,
            pins=pins_of(state, each),
            why=judged.get(each.seq, ()),
        )
        for each in state.checkpoints
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo(f"Training run {run_id} has committed no checkpoint yet.")
    else:
        print_table(_table(rows))
    if not as_json:
        for sentence in describe_sources(holds, state):
            click.echo(sentence)


def _row(
    checkpoint: CheckpointState,
    holds: BySource,
    *,
    is_target: bool,
    pins: tuple[str, ...],
    why: tuple[str, ...],
) -> dict[str, Json]:
    sources = [hold.source for hold in holds.values()]
    words = [f"no start from it: {source} is in quarantine" for source in sources]
    words += [RESUMES] if is_target else []
    times = {
        name: format_time(at) if at is not None else None
        for name, at in (
            ("verified_at", checkpoint.verified_at),
            ("superseded_at", checkpoint.superseded_at),
            ("quarantined_at", checkpoint.quarantined_at),
            ("deleted_at", checkpoint.deleted_at),
        )
    }
    return {
        "attempt_id": checkpoint.ref.attempt_id,
        "step": checkpoint.ref.step,
        "status": checkpoint.status,
        "is_resume_target": is_target,
        "trigger": checkpoint.body.trigger,
        "total_bytes": checkpoint.body.total_bytes,
        "committed_at": format_time(checkpoint.at),
        **times,
        "pins": list(pins),
        "why": [*words, *(each for each in why if each != RESUMES)],
        "quarantined_by": sources,
        "metrics": dict(checkpoint.body.metrics),
        "ref": to_json(checkpoint.ref),
    }


def _table(rows: list[dict[str, Json]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("attempt", "step", "status", "saved at", "bytes", "verified", "manifest", "why"):
        table.add_column(title)
    for row in rows:
        table.add_row(
            str(row["attempt_id"]),
            str(row["step"]),
            row["status"],
            row["committed_at"][:19],
            str(row["total_bytes"]),
            "yes" if row["verified_at"] else "not yet",
            row["ref"]["manifest_sha256"][:12],
            "; ".join(row["why"]),
        )
    return table


for each in (checkpoint_verify.command, checkpoint_gc.command, *checkpoint_pins.COMMANDS):
    command.add_command(each)
command.add_command(checkpoint_save.command)
command.add_command(checkpoint_advice.command)
command.add_command(checkpoint_export.command)
