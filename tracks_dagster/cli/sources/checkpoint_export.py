"""`tracks checkpoints export`: the weights of a checkpoint as one safetensors file."""

from __future__ import annotations

from pathlib import Path

import click

from tracks_dagster.cli.common import as_json, attempt_option, print_json
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.states.checkpoints import parse_at
from tracks_dagster.track.states.run_state import find_at
from tracks_dagster.training.saves.export import export_weights


@click.command("export")
@click.argument("target", metavar="RUN@STEP")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@attempt_option
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@as_json
def command(target: str, path: Path, attempt: int | None, force: bool, as_json: bool) -> None:
    """Write the weights of RUN@STEP to FILE (safetensors), every byte verified as it is read."""
    run_id, step = parse_at(target)
    tracks = open_tracks_to_read(Settings.from_environment())
    checkpoint = find_at(tracks.run(run_id), step, attempt_id=attempt)
    exported = export_weights(tracks.store, checkpoint.ref, path, overwrite=force)
    if as_json:
        print_json(to_json(exported))
        return
    click.echo(
        f"{exported.path}: {exported.tensor_count} tensors, {exported.total_bytes} bytes, of attempt "
        f"{checkpoint.ref.attempt_id}; weights_sha256 {exported.metadata['weights_sha256']}"
    )
