"""`tracks export`: everything that explains a run in one file, for another machine."""

from __future__ import annotations

import hashlib
from functools import partial
from importlib.metadata import version
from pathlib import Path

import click

from tracks_dagster.cli.common import as_json, print_json, run_argument
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.review.effects.explain.reading import read_run
from tracks_dagster.review.effects.export import Exported, export_run
from tracks_dagster.settings import Settings
from tracks_dagster.stores.archive import SUFFIX, write_archive
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import check_run_id
from tracks_dagster.track.text.redact import redact

LEFT_OUT_NAMED_MAX = 10  # the manifest in the archive names all


@click.command("export")
@run_argument
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--with-chunks", is_flag=True, help="Add the weights: every checkpoint, whole.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@as_json
def export_command(
    run_id: str, path: Path | None, with_chunks: bool, force: bool, as_json: bool
) -> None:
    """Write RUN's track, evidence, journals and manifests to FILE (RUN.tar.gz by default).

    `tracks explain --archive FILE RUN` reads it on any machine. The same records give the same bytes.
    """
    check_run_id(run_id)
    settings = Settings.from_environment()
    tracks = open_tracks_to_read(settings)
    read_run(tracks, run_id)  # one that is not there leaves no file
    file = path or Path(f"{run_id}{SUFFIX}")
    with write_archive(file, overwrite=force) as add:
        exported = export_run(
            tracks,
            run_id,
            add,
            with_chunks=with_chunks,
            redact=partial(redact, secrets=settings.secrets),
            version=version("tracks-dagster"),
        )
    sha256 = _sha256_of(file)
    if as_json:
        print_json(
            {
                "path": str(file),
                "sha256": sha256,
                "size_bytes": file.stat().st_size,
                **to_json(exported),
            }
        )
    else:
        click.echo(_text(file, sha256, exported))


def _text(file: Path, sha256: str, exported: Exported) -> str:
    manifest = exported.manifest
    lines = [
        f"{file}: {exported.member_count} files, {file.stat().st_size} bytes; sha256 {sha256}",
        f"Runs in it: {', '.join(manifest.run_ids)}.",
    ]
    for each in manifest.left_out[:LEFT_OUT_NAMED_MAX]:
        lines.append(f"Not in it: {each.what}. {each.why}")
    if (more := len(manifest.left_out) - LEFT_OUT_NAMED_MAX) > 0:
        lines.append(f"Not in it: {more} more; MANIFEST.json in the archive names all.")
    if (broken := exported.broken) is not None:
        lines.append(f"Its track holds up to record {broken.seq - 1}. {broken.meaning}")
    lines.append(f"Read it anywhere: tracks explain --archive {file} {manifest.run_ids[0]}")
    return "\n".join(lines)


def _sha256_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
