"""`tracks projects`: which projects Dagster knows, for their schedules and the launchpad."""

from __future__ import annotations

from pathlib import Path

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import WholeGroup, as_json, print_answer, print_json, print_table
from tracks_dagster.data.effects.projects import (
    Registered,
    add_project,
    load_projects,
    read_to_add,
    remove_project,
)
from tracks_dagster.home.home_folder import check_home, prepare_home
from tracks_dagster.settings import Settings
from tracks_dagster.track.records import Json

SEEN = "`tracks up` sees it within ten seconds"


@click.group("projects", cls=WholeGroup)
def projects_command() -> None:
    """Add projects to Dagster: their schedules, and the launchpad's choice of them."""


@projects_command.command("add")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@as_json
def add_command(folder: Path, as_json: bool) -> None:
    """Add the project of DIR, whose tracks.yaml may have a schedule.

    The folder stays where it is: a run that is declared from Dagster stores its files as they are then.
    """
    home = Settings.from_environment().home
    check_home(home)
    project = read_to_add(folder)
    prepare_home(home)
    add_project(home, project.name, folder)
    schedule = project.schedule
    when = "It has no schedule." if schedule is None else f"It trains {schedule.words}."
    sentence = f"Added {project.name}. {when} {SEEN}."
    added = Registered(name=project.name, folder=folder.absolute(), project=project)
    print_answer(sentence, _facts(added), as_json=as_json)


@projects_command.command("list")
@as_json
@click.pass_context
def list_command(ctx: click.Context, /, as_json: bool) -> None:
    """List the projects that Dagster knows, those that ship first; exit 1 where one cannot be read."""
    given = Settings.from_environment()
    check_home(given.home)
    found = load_projects(given.home, given.examples)
    if as_json:
        print_json([_facts(each) for each in found])
    else:
        print_table(("project", "folder", "dataset", "class", "schedule"), map(_cells, found))
    for each in found:
        if each.problem:
            click.echo(each.problem, err=True)
    ctx.exit(BAD_NEWS if any(each.problem for each in found) else 0)


@projects_command.command("remove")
@click.argument("name")
@as_json
def remove_command(name: str, as_json: bool) -> None:
    """Take NAME away from Dagster; its folder and its runs stay.

    Its schedule goes with it.
    """
    home = Settings.from_environment().home
    check_home(home)
    folder = remove_project(home, name)
    sentence = f"Removed {name}; its folder {folder} stays as it is. {SEEN}."
    print_answer(sentence, {"name": name, "folder": str(folder)}, as_json=as_json)


def _facts(each: Registered) -> dict[str, Json]:
    project = each.project
    schedule = None if project is None else project.schedule
    return {
        "name": each.name,
        "folder": str(each.folder),
        "dataset": None if project is None else project.dataset,
        "class": None if project is None else project.workload_class,
        "schedule": None if schedule is None else schedule.words,
        "problem": each.problem or None,
    }


def _cells(each: Registered) -> tuple[str, ...]:
    facts = _facts(each)
    when = "cannot be read" if each.problem else facts["schedule"] or "–"
    return (each.name, facts["folder"], facts["dataset"] or "–", facts["class"] or "–", when)
