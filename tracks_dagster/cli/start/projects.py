"""`tracks projects`: which projects Dagster knows, for their schedules and the launchpad."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path

import click

from tracks_dagster.attempts.effects.local.git_source import PREFIX, fetched, parse_git_source
from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    WholeGroup,
    as_json,
    by_option,
    open_app,
    print_answer,
    print_json,
    print_table,
)
from tracks_dagster.cli.terminal import RECORDED
from tracks_dagster.home.home_folder import check_home
from tracks_dagster.home.stored_projects import (
    file_of_version,
    remove_stored,
    store_project,
    sync_project,
)
from tracks_dagster.projects.effects.project_file import FILE
from tracks_dagster.projects.effects.registered import (
    Registered,
    add_project,
    check_free,
    drop_link,
    load_projects,
    read_to_add,
    remove_project,
)
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import (
    NothingYet,
    StoreError,
    StoreUnavailable,
    TracksError,
    UnknownRun,
)
from tracks_dagster.track.names import PROJECTS
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.project_state import StoredVersion
from tracks_dagster.track.unforeseen import problem_of

SEEN = "`tracks up` sees it within ten seconds"
COMMIT_DIGITS = 12
_TITLES = ("project", "trains", "dataset", "class", "schedule")
_VERSIONS = ("version", "stored at", "by", "on", "commit", "of", "why")


@click.group("projects", cls=WholeGroup)
def projects_command() -> None:
    """Add projects to Dagster: their schedules, and the launchpad's choice of them."""


@projects_command.command("add")
@click.argument("source", metavar="DIR|GIT")
@click.option(
    "--stored",
    is_flag=True,
    help="Here too, train what is stored now; not the folder as it will be.",
)
@click.option("--why", type=RECORDED, help="What is new in this version; it is recorded.")
@by_option
@as_json
def add_command(source: str, stored: bool, why: str | None, by: str, as_json: bool) -> None:
    """Add the project of DIR, whose tracks.yaml may have a schedule, and store this version of it.

    Who has the store knows it then: its schedule, the launchpad, pods. In this home the project is
    the folder as it is whenever a run is declared, unless you say --stored.

    GIT is git+https://HOST/PATH@REF or git+file:///PATH@REF, with #subdirectory=FOLDER: it is fetched
    now, and stored. A password in it is not recorded.
    """
    home = Settings.from_environment().home
    check_home(home)
    with _folder(source) as (folder, place):
        project = read_to_add(folder)
        is_linked = not stored and not source.startswith(PREFIX)
        if is_linked:
            check_free(home, project.name, folder)
        app = open_app()
        # Its interpreter is asked for where it starts.
        found = read_project_code(
            folder, store_url=app.store.url, clean=app.redact, starts_here=False
        )
        for remark in found.remarks:
            click.echo(remark, err=True)
        version, is_new = store_project(
            app.tracks, found, by=by, where=platform.node(), place=place, why=why or ""
        )
    if is_linked:
        add_project(home, project.name, folder)
    else:
        drop_link(home, project.name)
        sync_project(app.tracks, home, project.name)
    schedule = project.schedule
    when = "It has no schedule." if schedule is None else f"It trains {schedule.words}."
    of = "Stored as" if is_new else "It is stored already, as"
    here = " Here it is the folder as it is." if is_linked else ""
    sentence = f"Added {project.name}. {when} {of} version {version.number}.{here} {SEEN}."
    added = Registered(
        name=project.name,
        folder=folder.absolute(),
        project=project,
        version=None if is_linked else version.number,
    )
    print_answer(sentence, {**_facts(added), **_stored(version)}, as_json=as_json)


@projects_command.command("list")
@as_json
@click.pass_context
def list_command(ctx: click.Context, /, as_json: bool) -> None:
    """List the projects that this home and its store have, those that ship first; exit 1 where one
    cannot be read."""
    given = Settings.from_environment()
    check_home(given.home)
    found = {each.name: _facts(each) for each in load_projects(given.home, given.examples)}
    stored, away = {}, ""
    try:
        stored = _read_stored(given)
    except TracksError as error:
        away = f"What is stored is not known now: {error}"
    rows = [
        _with_stored(found.get(name, {**_NOT_HERE, "name": name}), stored.get(name))
        for name in (*found, *(each for each in stored if each not in found))
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(_TITLES, map(_cells, rows))
    problems = [row["problem"] for row in rows if row["problem"]]
    for text in (*problems, *filter(None, [away])):
        click.echo(text, err=True)
    ctx.exit(BAD_NEWS if problems else 0)


@projects_command.command("show")
@click.argument("name")
@as_json
def show_command(name: str, as_json: bool) -> None:
    """Show the stored versions of NAME, and how its tracks.yaml differs from the version before."""
    tracks = open_tracks_to_read(Settings.from_environment())
    state = tracks.find_project(name)
    if state is None:
        raise UnknownRun(
            f"No version of {name!r} is stored; `tracks projects list` shows what there is, `tracks "
            "projects add DIR` stores one."
        )
    lines: list[str] = []
    if len(state.versions) > 1:
        lines = _changes(tracks.store, *state.versions[-2:])
    if as_json:
        versions = [_stored(each)["stored"] for each in state.versions]
        print_json(
            {"name": name, "is_removed": state.newest is None, "versions": versions, "diff": lines}
        )
        return
    print_table(_VERSIONS, map(_version_cells, state.versions))
    if state.removed is not None:
        click.echo(f"Removed by {state.removed.by}. {state.removed.why}".rstrip())
    for line in lines:
        click.echo(line)


@projects_command.command("remove")
@click.argument("name")
@by_option
@click.option("--why", type=RECORDED, help="Why, in words; it is recorded.")
@as_json
def remove_command(name: str, by: str, why: str | None, as_json: bool) -> None:
    """Take NAME away from Dagster, for everybody who has the store.

    Its schedule goes with it; its folder, its stored versions and its runs stay. Nothing is removed
    while the store does not answer.
    """
    given = Settings.from_environment()
    check_home(given.home)
    try:
        state = open_tracks_to_read(given).find_project(name)
        is_stored = state is not None and state.newest is not None
        if is_stored:  # before its folder: while it is stored, it would be here again
            remove_stored(open_app().tracks, name, by=by, why=why or "")
    except NothingYet:
        is_stored = False
    except StoreError as error:
        raise StoreUnavailable(
            f"Cannot remove {name}, which is stored for everybody: {error} Nothing was removed; try "
            "again once the store answers."
        ) from error
    folder = None
    found = load_projects(given.home, given.examples)
    if not is_stored or name in {each.name for each in found if each.version is None}:
        folder = remove_project(given.home, name)
    if is_stored:
        sync_project(open_app().tracks, given.home, name)
    what = f"its folder {folder} stays as it is" if folder else "its stored versions stay"
    sentence = f"Removed {name}; {what}. {SEEN}."
    facts = {
        "name": name,
        "folder": None if folder is None else str(folder),
        "was_stored": is_stored,
    }
    print_answer(sentence, facts, as_json=as_json)


@contextmanager
def _folder(source: str) -> Iterator[tuple[Path, str]]:
    """Give the folder that a source names, for as long as it is there, and what is recorded of it."""
    if not source.startswith(PREFIX):
        yield Path(source), str(Path(source).absolute())
        return
    git = parse_git_source(source)
    with fetched(git) as folder:
        yield folder, git.place


def _read_stored(given: Settings) -> dict[str, StoredVersion | str]:
    """Return the newest version of each stored project, or why it cannot be read; writes nothing.

    Raises what the store raises where it cannot be listed.
    """
    try:
        tracks = open_tracks_to_read(given)
    except NothingYet:
        return {}
    found: dict[str, StoredVersion | str] = {}
    for name in sorted(tracks.store.folders(PROJECTS)):
        try:
            state = tracks.find_project(name)
            if state is not None and state.newest is not None:
                found[name] = state.newest
        except Exception as error:  # noqa: BLE001 - of that project alone
            found[name] = f"What is stored of {name} cannot be read: {problem_of(error)}"
    return found


def _facts(each: Registered) -> dict[str, Json]:
    project = each.project
    schedule = None if project is None else project.schedule
    return {
        "name": each.name,
        "folder": str(each.folder),
        "version": each.version,
        "dataset": None if project is None else project.dataset,
        "class": None if project is None else project.value("workload_class"),
        "schedule": None if schedule is None else schedule.words,
        "problem": each.problem or None,
    }


_NOT_HERE: dict[str, Json] = dict.fromkeys(
    ("folder", "version", "dataset", "class", "schedule", "problem")
)


def _with_stored(row: dict[str, Json], stored: StoredVersion | str | None) -> dict[str, Json]:
    """Return a row with what is stored of its project, or why that cannot be read."""
    if isinstance(stored, str):
        return {**row, "stored": None, "problem": row["problem"] or stored}
    return {**row, **_stored(stored)}


def _stored(version: StoredVersion | None) -> dict[str, Json]:
    """Return the newest stored version under its key; None where there is none."""
    if version is None:
        return {"stored": None}
    body = version.body
    return {
        "stored": {
            "version": version.number,
            "at": format_time(version.at),
            "by": body.by,
            "where": body.where,
            "place": body.place,
            "git_commit": body.code.git_commit,
            "git_dirty": body.code.dirty,
            "code_sha256": body.code_sha256,
            "why": body.why,
        }
    }


def _changes(store: ObjectStore, older: StoredVersion, newer: StoredVersion) -> list[str]:
    """Return what a version changed of the project's file, as a diff."""
    return list(
        unified_diff(
            file_of_version(store, older).splitlines(),
            file_of_version(store, newer).splitlines(),
            f"{FILE}, version {older.number}",
            f"{FILE}, version {newer.number}",
            lineterm="",
        )
    )


def _cells(row: dict[str, Json]) -> tuple[str, ...]:
    when = row["schedule"] or ("cannot be read" if row["problem"] else "–")
    return (row["name"], _trains(row), row["dataset"] or "–", row["class"] or "–", when)


def _trains(row: dict[str, Json]) -> str:
    """Say what a run of that name trains here."""
    stored = row["stored"]
    if row["folder"] is not None and row["version"] is None:
        also = "" if stored is None else f" (stored: version {stored['version']})"
        return f"{row['folder']}, as it is{also}"
    if row["folder"] is None and stored is None:
        return "stored, and cannot be read"
    number = row["version"] or stored["version"]
    by = "" if stored is None else f" of {stored['by']}, {stored['at'][:16]}Z"
    return f"stored version {number}{by}"


def _version_cells(version: StoredVersion) -> tuple[str, ...]:
    body = version.body
    commit = (body.code.git_commit or "–")[:COMMIT_DIGITS] + ("+" if body.code.dirty else "")
    at = f"{format_time(version.at)[:19]}Z"
    return (str(version.number), at, body.by, body.where, commit, body.place, body.why)
