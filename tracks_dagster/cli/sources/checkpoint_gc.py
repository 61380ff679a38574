"""`tracks checkpoints gc`: collect by hand what the schedule collects, or see what it would."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tracks_dagster.checkpoints.effects.retention import Collected, collect
from tracks_dagster.checkpoints.effects.verification import fallback_words
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.cli.common import as_json, open_app
from tracks_dagster.cli.telling import Told, of_every_run, tell
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reading import open_dry_run, open_store_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import check_run_id
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef

BY = "tracks checkpoints gc"


@click.command("gc")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--dry-run", is_flag=True, help="Tell what would be done, and write nothing.")
@as_json
@click.pass_context
def command(ctx: click.Context, run_id: str | None, dry_run: bool, as_json: bool) -> None:
    """Supersede and delete what the rule of RUN, or of every run, keeps no longer.

    The newest checkpoint is read in full first: while it is not known to be good, nothing goes. Exit
    with 1 when one is corrupt, or a run could not be looked at; the others are collected all the same.
    """
    tracks, reader = _opened(dry_run)

    def one(each: str) -> Iterator[Told]:
        done = collect(tracks, reader, each, by=BY)
        row, text = _row(done, dry_run=dry_run), _text(done, dry_run=dry_run)
        yield Told(row=row, text=text, is_bad=bool(done.corrupt))

    told = of_every_run(tracks.store, one) if run_id is None else one(check_run_id(run_id))
    ctx.exit(tell(told, as_json=as_json, nothing="There is no run to collect."))


def _opened(dry_run: bool) -> tuple[Tracks, CheckpointReader]:
    settings = Settings.from_environment()
    if dry_run:
        return open_dry_run(settings)
    open_store_to_read(settings)  # an empty home is told, not made
    app = open_app()
    return app.tracks, app.checkpoints


def _row(done: Collected, *, dry_run: bool) -> dict[str, Json]:
    return {
        "run_id": done.run_id,
        "dry_run": dry_run,
        "read": [to_json(each) for each in done.read],
        "superseded": [to_json(each) for each in done.superseded],
        "deleted": [to_json(each) for each in done.deleted],
        "freed_bytes": done.freed_bytes,
        "waiting": list(done.waiting),
        "kept": [
            {"ref": to_json(j.checkpoint.ref), "status": j.checkpoint.status, "why": list(j.why)}
            for j in done.kept
        ],
        "leftover_count": done.leftover_count,
    }


def _text(done: Collected, *, dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    lines = [
        f"{done.run_id}: {len(done.superseded)} {would}superseded, {len(done.deleted)} {would}"
        f"deleted, {done.freed_bytes} bytes {would}freed, {done.leftover_count} objects without a "
        f"record {would}removed"
    ]
    for read in done.corrupt:
        record = f" by record {read.seq}" if read.seq is not None and not dry_run else ""
        lines.append(
            f"  {would}quarantined{record}: {_name(read.ref)}: {read.problem} "
            f"{fallback_words(read.fallback)}"
        )
    lines += [f"  {would}superseded: {_name(each.ref)}: {each.why}" for each in done.superseded]
    lines += [
        f"  {would}deleted: {_name(each.ref)}, {sum(each.chunks.values())} bytes in "
        f"{len(each.chunks)} chunks: {each.why}"
        for each in done.deleted
    ]
    lines += [f"  waits: {each}" for each in done.waiting]
    lines += [f"  kept: {_name(j.checkpoint.ref)}: {'; '.join(j.why)}" for j in done.kept]
    return "\n".join(lines)


def _name(ref: CheckpointRef) -> str:
    return f"step {ref.step} of attempt {ref.attempt_id}"
