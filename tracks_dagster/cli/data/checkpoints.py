"""`tracks checkpoints`: list what a run has committed; save, pin and export checkpoints by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from tracks_dagster.attempts.effects.on_demand import ask_to_save, wait_for_save, why_not_saved
from tracks_dagster.checkpoints.effects.pins import find_pinned, pin, pin_of_person, unpin
from tracks_dagster.checkpoints.retention import judge
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    WholeGroup,
    added_option,
    as_json,
    attempt_option,
    cut_off_option,
    deciding_options,
    named_checkpoint,
    open_app,
    print_answer,
    print_json,
    print_recorded,
    print_table,
    run_argument,
    text_width,
)
from tracks_dagster.cli.data.checkpoint_upkeep import (
    advise_on_cadence,
    collect_checkpoints,
    verify_checkpoints,
)
from tracks_dagster.holds.effects.holds import BySource, Holds
from tracks_dagster.holds.effects.starts import describe_sources, next_start
from tracks_dagster.reading import (
    open_ledger_to_read,
    open_store_to_read,
    open_tracks_to_read,
)
from tracks_dagster.review.effects.bundle import describe_bundle, write_bundle
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, TrackBroken
from tracks_dagster.track.names import check_run_id
from tracks_dagster.track.records import Json, Record, format_time
from tracks_dagster.track.states.checkpoints import CheckpointRef, parse_at
from tracks_dagster.track.states.protection import RESUMES, pins_of
from tracks_dagster.track.states.run_state import CheckpointState
from tracks_dagster.track.states.stop_cause import (
    StopCause,
    check_not_cut_off,
    describe_stop,
    stop_cause,
)
from tracks_dagster.track.text.safe_text import check_words
from tracks_dagster.training.saves.export import ExportedFolder, export_checkpoint

_TITLES = ("attempt", "step", "status", "stop cause", "saved at", "bytes", "verified", "manifest")
WAIT_S = 300.0
WAIT_S_MAX = 24 * 3600.0


@click.group("checkpoints", cls=WholeGroup)
def checkpoints_command() -> None:
    """List, save, verify, collect and pin the checkpoints of a run."""


@checkpoints_command.command("list")
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
    except TrackBroken:  # of another run or of the quarantines: reported below
        sources, target = {}, state.resumes_from
    rows = [
        _row(
            each,
            sources.get(each.ref.manifest_sha256, {}),
            is_target=each.ref == target,
            cause=stop_cause(state, each.ref),
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
        print_table(_TITLES, map(_cells, rows))
        click.echo("\nwhy each is there")
        for row in rows:
            if row["why"]:
                click.echo(_why(row))
    if not as_json:
        for sentence in describe_sources(holds, state):
            click.echo(sentence)


def _row(
    checkpoint: CheckpointState,
    holds: BySource,
    *,
    is_target: bool,
    cause: StopCause,
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
        "stop_cause": cause.value,
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


def _cells(row: dict[str, Json]) -> tuple[str, ...]:
    return (
        str(row["attempt_id"]),
        str(row["step"]),
        row["status"],
        "–" if row["stop_cause"] == StopCause.TRAINED_ON else row["stop_cause"],
        row["committed_at"][:19],
        str(row["total_bytes"]),
        _verified(row),
        row["ref"]["manifest_sha256"][:12],
    )


def _verified(row: dict[str, Json]) -> str:
    """Return whether its bytes are known to be right, as of now: they may have rotted since."""
    if row["deleted_at"]:
        return "–"
    if row["quarantined_at"]:
        return "no: in quarantine"
    return "yes" if row["verified_at"] else "not yet"


def _why(row: dict[str, Json]) -> str:
    """Return why a checkpoint is there, below the table: beside it a terminal has no room."""
    words = f"step {row['step']} of attempt {row['attempt_id']}: {'; '.join(row['why'])}"
    return click.wrap_text(words, text_width(), subsequent_indent="  ")


@checkpoints_command.command("save")
@run_argument
@click.option("--wait", "wait_s", type=float, default=WAIT_S, show_default=True, help="Seconds.")
@as_json
@click.pass_context
def save_checkpoint(ctx: click.Context, run_id: str, wait_s: float, as_json: bool) -> None:
    """Ask the gang of RUN, on this machine or on the cluster, to save at the end of its running step.

    Waits until the checkpoint is committed and names it; exit with 1 when none came.
    """
    if not 0 < wait_s <= WAIT_S_MAX:
        raise InvalidInput(f"--wait is {wait_s:g}; use more than 0 and at most {WAIT_S_MAX:g} s.")
    open_store_to_read(Settings.from_environment())  # an empty home is an error, it is not made
    app = open_app()
    asked = ask_to_save(app.tracks, app.launcher_of, check_run_id(run_id))
    found = wait_for_save(app.tracks, asked, wait_s=wait_s)
    why_not = "" if found is not None else why_not_saved(app.tracks.run(run_id), asked)
    if as_json:
        print_json({"ref": to_json(found.ref) if found else None, "problem": why_not or None})
    elif found is not None:
        click.echo(
            f"Step {found.ref.step} of {run_id}, attempt {found.ref.attempt_id}, committed "
            f"({found.body.trigger}): record {found.seq}, manifest {found.ref.manifest_sha256}."
        )
    else:
        click.echo(why_not)
    ctx.exit(0 if found is not None else BAD_NEWS)


@checkpoints_command.command("pin")
@click.argument("at", metavar="RUN@STEP")
@attempt_option
@deciding_options
def pin_checkpoint(at: str, attempt: int | None, why: str, by: str, as_json: bool) -> None:
    """Hold the checkpoint RUN@STEP: it is neither superseded nor deleted until it is unpinned."""
    check_words({"why": why, "by": by})
    tracks = open_app().tracks
    ref = named_checkpoint(tracks, at, attempt)[1].ref
    record = pin(tracks, ref, holder=pin_of_person(by), by=by, why=why)
    _print_pin("pinned", ref, pin_of_person(by), record, as_json=as_json)


@checkpoints_command.command("unpin")
@click.argument("at", metavar="RUN@STEP")
@attempt_option
@click.option(
    "--holder", help="Whose pin, as `tracks checkpoints list` shows it; yours by default."
)
@deciding_options
def unpin_checkpoint(
    at: str, attempt: int | None, holder: str | None, why: str, by: str, as_json: bool
) -> None:
    """Let go of a pin on the checkpoint RUN@STEP; retention decides about it again."""
    check_words({"why": why, "by": by})
    run_id, step = parse_at(at)
    tracks = open_app().tracks
    name = holder or pin_of_person(by)
    ref = find_pinned(tracks.run(run_id), step, holder=name, attempt_id=attempt)
    _print_pin(
        "unpinned", ref, name, unpin(tracks, ref, holder=name, by=by, why=why), as_json=as_json
    )


def _print_pin(
    verb: str, ref: CheckpointRef, holder: str, record: Record | None, *, as_json: bool
) -> None:
    what = f"Step {ref.step} of {ref.run_id}, attempt {ref.attempt_id}, {verb} by {holder}"
    facts = {"ref": to_json(ref), "pin": holder, "status": verb}
    print_recorded(what, facts, record, as_json=as_json)


@checkpoints_command.command("export")
@click.argument("target", metavar="RUN@STEP")
@click.argument("path", metavar="[PATH]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--bundle",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Make this folder instead: weights, config, code, evals and lineage.",
)
@added_option
@attempt_option
@cut_off_option
@click.option("--force", is_flag=True, help="Replace a file that is there; a folder never is.")
@as_json
def export_command(
    target: str,
    path: Path | None,
    bundle: Path | None,
    added: tuple[Path, ...],
    then: Callable[[Path], None] | None,
    attempt: int | None,
    may_be_cut_off: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write the weights of RUN@STEP to the file PATH (safetensors), or, where the script commits
    folders, its files to a new folder PATH. Every byte is verified as it is read.

    With --bundle DIR, a folder to hand over: it loads with torch.load, and needs nothing of ours.
    """
    settings = Settings.from_environment()
    tracks = open_tracks_to_read(settings)
    state, checkpoint = named_checkpoint(tracks, target, attempt)
    if not may_be_cut_off:
        check_not_cut_off(state, checkpoint.ref, f"export {target}")
    stopped = describe_stop(state, checkpoint.ref)
    if bundle is not None and path is None:
        ledger = open_ledger_to_read(settings)
        made = write_bundle(tracks, ledger, state, checkpoint, bundle, added=added, then=then)
        answer = {**to_json(made), "stop_cause": stop_cause(state, checkpoint.ref).value}
        print_answer(f"{describe_bundle(made)} {stopped}", answer, as_json=as_json)
        return
    if path is None or bundle is not None or added or then:
        raise InvalidInput(
            "Name a PATH for the weights, or --bundle DIR; --add and --then go with --bundle."
        )
    exported = export_checkpoint(tracks.store, checkpoint.ref, path, overwrite=force)
    if as_json:
        print_json({**to_json(exported), "stop_cause": stop_cause(state, checkpoint.ref).value})
        return
    of_attempt = f"{exported.total_bytes} bytes, of attempt {checkpoint.ref.attempt_id}"
    if isinstance(exported, ExportedFolder):
        click.echo(f"{exported.path}: {exported.file_count} files, {of_attempt}. {stopped}")
        return
    click.echo(
        f"{exported.path}: {exported.tensor_count} tensors, {of_attempt}; "
        f"weights_sha256 {exported.metadata['weights_sha256']}. {stopped}"
    )


for each in (verify_checkpoints, collect_checkpoints, advise_on_cadence):
    checkpoints_command.add_command(each)
