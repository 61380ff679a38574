"""`tracks tune`: declare a study, or take it up, and follow it to its end."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import click

from tracks_dagster.attempts.effects.local.project_code import project_folder, read_project_code
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, by_option, print_json_line
from tracks_dagster.cli.start.follow import Interrupts, Keeper
from tracks_dagster.cli.start.progress_line import View, open_view
from tracks_dagster.cli.start.snapshots import datasets_of, ensure_snapshots
from tracks_dagster.home.dagster_home import DagsterHome
from tracks_dagster.home.home_folder import check_home
from tracks_dagster.projects.effects.project_file import FILE
from tracks_dagster.settings import Settings
from tracks_dagster.studies.effects.study_file import read_study
from tracks_dagster.studies.words import as_facts, best_words, opens, sentence, summary
from tracks_dagster.submitting import tune
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import run_track, study_track
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.track.text.redact import redact
from tracks_dagster.wiring import App, build, open_dagster_home, utc_now

LOOK_S = 1.0
WAIT_S = 3600.0


@click.command("tune")
@click.argument(
    "file", metavar="[FILE]", type=click.Path(path_type=Path, dir_okay=False), required=False
)
@click.option(
    "--project",
    "folder",
    type=click.Path(path_type=Path),
    show_default="the one you are in",
    help="Folder of the project, with its tracks.yaml.",
)
@click.option(
    "--detach", is_flag=True, help="Declare it and return; `tracks up` lets its trials train."
)
@click.option(
    "--wait-s",
    type=float,
    default=WAIT_S,
    show_default=True,
    help="Give up following after so many seconds without a change.",
)
@by_option
@as_json
@click.pass_context
def tune_command(
    ctx: click.Context,
    /,
    file: Path | None,
    folder: Path | None,
    detach: bool,
    wait_s: float,
    by: str,
    as_json: bool,
) -> None:
    """Search a project's config for the best value of a metric, under a budget.

    FILE describes the study; without it, the section `study:` of the project's tracks.yaml does
    (docs/tuning.md). Every trial is a training run, so that it survives preemption and failure; who is
    given more steps goes on from its own checkpoint. The same command continues a study that was
    interrupted or stopped, and one that had reached a cap once its file gives it more.

    Exit 1 where no trial was measured.
    """
    given = Settings.from_environment()
    home_of_code = project_folder(folder)
    if home_of_code is None:
        raise InvalidInput(
            f"There is no {FILE} here or above. Go to a project's folder, or give it: --project DIR."
        )
    asked = read_study(file or home_of_code / FILE, is_section=file is None)
    found = read_project_code(
        home_of_code, store_url=given.store_url, clean=partial(redact, secrets=given.secrets)
    )
    check_home(given.home)
    app, home = build(given), open_dagster_home(given)
    ensure_snapshots(app, home, datasets_of(found.project))
    study = tune(app, found, asked, by=by, remark=partial(click.echo, err=True))
    if not detach:
        study = _followed(app, home, study.declared.study, wait_s=wait_s)
    if as_json:
        print_json_line(as_facts(study))
    else:
        click.echo(f"{summary(study, utc_now())}\n{best_words(study)}")
    ctx.exit(BAD_NEWS if study.finished is not None and study.best is None else 0)


def _followed(app: App, home: DagsterHome, name: str, *, wait_s: float) -> StudyState:
    """Follow the study until it is finished, interrupted, or has not changed for `wait_s`."""
    study = app.tracks.study(name)
    if study.finished is not None:
        return study
    with Interrupts() as interrupts, home.daemon(), open_view() as view:
        keeper = Keeper(home.ensure_daemon, home.why_daemon_ended, view.event)
        shown, changed_at, before = 0, time.monotonic(), -1
        while time.monotonic() - changed_at < wait_s:
            study = app.tracks.study(name)
            shown = _show(app, view, name, shown)
            heads = shown + sum(
                len(app.tracks.records(run_track(rung.proposed.run_id)))
                for rung in study.open_rungs
            )
            if heads != before or opens(study, utc_now()) is not None:  # it waits for its hours
                before, changed_at = heads, time.monotonic()
            if study.finished is not None:
                return study
            if interrupts.count:
                view.event(f"{name} is left; to continue: the same command, or tracks up")
                return study
            keeper.keep()
            time.sleep(LOOK_S)
        view.event(
            f"{name} has not changed for {wait_s:g} s; `tracks status` says what it waits for"
        )
    return study


def _show(app: App, view: View, name: str, shown: int) -> int:
    records = app.tracks.records(study_track(name))
    for record in records[shown:]:
        view.event(sentence(record))
    return len(records)
