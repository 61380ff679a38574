"""Projects in the store: versions, and homes that have nothing of them but the store."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tracks_dagster.attempts.effects.local.code_archive import pack_folder
from tracks_dagster.attempts.effects.local.git_source import fetched, parse_git_source
from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.home.stored_projects import (
    code_of,
    file_of_version,
    find_project,
    remove_stored,
    store_project,
    sync_projects,
)
from tracks_dagster.projects.effects.registered import add_project, load_projects
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import InvalidInput, ObjectLost
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.project_state import StoredVersion
from tracks_dagster.track.track import project_code_key
from tracks_dagster.wiring import App, build

Machine = Callable[[str], App]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Makes machines that share a store and nothing else, by their names."""

    def made(name: str) -> App:
        given = {"TRACKS_HOME": str(tmp_path / name), "TRACKS_STORE": str(tmp_path / "store")}
        return build(Settings.from_environment(given))

    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "mine"
    path.mkdir()
    (path / "train.py").write_text("print('hello')\n")
    (path / "tracks.yaml").write_text("name: tiny\nentry: train.py\nranks: 1\n")
    return path


def store(app: App, folder: Path, **more: str) -> tuple[StoredVersion, bool]:
    found = read_project_code(folder, store_url=app.store.url, clean=app.redact)
    return store_project(app.tracks, found, by="ann", where="a", place=str(folder), **more)


def projects_of(app: App) -> dict[str, int | None]:
    found = load_projects(app.settings.home, app.settings.examples)
    return {each.name: each.version for each in found if not each.is_shipped}


def synced(app: App) -> list[str]:
    return list(sync_projects(app.tracks, app.settings.home))


def code(app: App, name: str = "tiny") -> bytes:
    settings = app.settings
    found = find_project(app.tracks, settings.home, settings.examples, name)
    return code_of(app.tracks, found, launcher=LOCAL).archive


def test_the_same_files_of_the_same_commit_are_one_version(machine: Machine, folder: Path) -> None:
    app = machine("a")
    first, is_new = store(app, folder, why="It begins.")
    assert (first.number, is_new) == (1, True)
    assert [store(app, folder)[1] for _ in range(2)] == [False, False]
    (folder / "train.py").write_text("print('bye')\n")
    second, is_new = store(app, folder)
    assert (second.number, is_new) == (2, True)
    rows = app.ledger.query(
        "select number, is_current, stored_by, why from project_versions order by number"
    )
    assert [tuple(row.values()) for row in rows] == [
        (1, False, "ann", "It begins."),
        (2, True, "ann", ""),
    ]


def test_a_machine_that_has_the_store_alone_trains_the_version_that_was_stored(
    machine: Machine, folder: Path
) -> None:
    a, b = machine("a"), machine("b")
    version, _ = store(a, folder)
    shutil.rmtree(folder)
    assert synced(b) == []
    assert projects_of(b) == {"tiny": 1}
    found = find_project(b.tracks, b.settings.home, b.settings.examples, "tiny")
    assert found.read().entry == ("train.py",)
    taken = code_of(b.tracks, found, launcher=LOCAL)
    assert sha256_hex(taken.archive) == version.body.code_sha256
    assert taken.folder == "projects/tiny@1"


def test_a_new_version_replaces_the_old_one_everywhere_but_where_a_folder_is_linked(
    machine: Machine, folder: Path
) -> None:
    a, b = machine("a"), machine("b")
    add_project(a.settings.home, "tiny", folder)
    for ranks in (1, 2, 3, 4):
        (folder / "tracks.yaml").write_text(f"name: tiny\nentry: train.py\nranks: {ranks}\n")
        store(a, folder)
        for each in (a, b):
            assert synced(each) == []
    assert (projects_of(a), projects_of(b)) == ({"tiny": None}, {"tiny": 4})
    versions = sorted(
        each.name[0] for each in (b.settings.home / "projects/.stored/tiny").iterdir()
    )
    assert versions == ["3", "4"]  # who reads the older one may not be done
    (folder / "train.py").write_text("print('as it is')\n")
    assert code(a) != code(b)


def test_a_project_that_was_removed_is_gone_from_every_home_and_may_come_back(
    machine: Machine, folder: Path
) -> None:
    a, b = machine("a"), machine("b")
    store(a, folder)
    synced(b)
    assert [remove_stored(a.tracks, "tiny", by="ann") for _ in range(2)] == [True, False]
    assert (synced(b), projects_of(b)) == ([], {})
    with pytest.raises(InvalidInput, match="'tiny' is not a project"):
        code(b)
    assert store(a, folder)[0].number == 2
    assert code(b)


def test_a_store_that_is_away_leaves_what_was_known(
    machine: Machine, folder: Path, tmp_path: Path
) -> None:
    a, b = machine("a"), machine("b")
    store(a, folder)
    synced(b)
    (tmp_path / "store").rename(tmp_path / "away")
    [found] = [each for each in load_projects(b.settings.home, b.settings.examples) if each.version]
    assert found.read().name == "tiny"


def test_a_version_that_this_program_cannot_read_is_reported_and_hides_no_other(
    machine: Machine, folder: Path
) -> None:
    a, b = machine("a"), machine("b")
    store(a, folder)
    (folder / "tracks.yaml").write_text("name: other\nentry: train.py\n")
    found = read_project_code(folder, store_url=a.store.url, clean=a.redact)
    (folder / "tracks.yaml").write_text("name: other\nentry: train.py\nof_tomorrow: 1\n")
    newer = _pack(folder)
    store_project(a.tracks, replace(found, archive=newer), by="ann", where="a", place="x")
    assert synced(b) == []
    problems = {
        each.name: each.problem for each in load_projects(b.settings.home, b.settings.examples)
    }
    assert "of_tomorrow" in problems["other"]
    assert problems["tiny"] == ""


def _pack(folder: Path) -> bytes:
    return pack_folder(folder).data


def test_files_that_the_store_lost_are_reported_and_hide_no_other(
    machine: Machine, folder: Path
) -> None:
    a, b = machine("a"), machine("b")
    version, _ = store(a, folder)
    (folder / "tracks.yaml").write_text("name: other\nentry: train.py\n")
    store(a, folder)
    a.store.put(project_code_key("tiny", version.body.code_sha256), b"other bytes")
    [problem] = synced(b)
    assert "The stored project tiny is as it was here" in problem
    assert projects_of(b) == {"other": 1}
    with pytest.raises(ObjectLost, match="expected sha256"):
        code(b)


def test_the_file_of_a_version_is_read_from_its_archive(machine: Machine, folder: Path) -> None:
    app = machine("a")
    version, _ = store(app, folder)
    assert file_of_version(app.store, version) == (folder / "tracks.yaml").read_text()


# --- git ------------------------------------------------------------------------------------------


@pytest.fixture
def repository(folder: Path, tmp_path: Path) -> Path:
    """A repository with the project below `ml`, whose second commit changes it."""
    root = tmp_path / "repository"
    shutil.copytree(folder, root / "ml")
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    git(root, "init", "-qb", "trunk")
    for text in ("first", "second"):
        (root / "ml" / "train.py").write_text(f"print('{text}')\n")
        git(root, "add", ".")
        git(root, *identity, "commit", "-qm", text)
        git(root, "tag", text)
    return root


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("ref", "text"), [("@first", "first"), ("@trunk", "second"), ("", "second")]
)
def test_a_project_is_fetched_from_a_repository_at_a_ref(
    repository: Path, ref: str, text: str, machine: Machine
) -> None:
    source = parse_git_source(f"git+file://{repository}{ref}#subdirectory=ml")
    with fetched(source) as folder:
        assert (folder / "train.py").read_text() == f"print('{text}')\n"
        found = read_project_code(folder, store_url="", clean=machine("a").redact)
    assert found.code.git_commit == git(repository, "rev-parse", f"{text}^{{commit}}")
    assert source.place == f"git+file://{repository}{ref or '@HEAD'}#subdirectory=ml"


def test_a_ref_that_is_not_there_is_reported_in_gits_words(repository: Path) -> None:
    with (
        pytest.raises(InvalidInput, match=r"Cannot fetch git\+file://.*@none: .*none"),
        fetched(parse_git_source(f"git+file://{repository}@none")),
    ):
        pass


def test_a_password_in_an_address_is_used_and_recorded_nowhere() -> None:
    source = parse_git_source("git+https://ci:hunter2@example.org/team/ml.git@v1")
    assert source.url == "https://ci:hunter2@example.org/team/ml.git"
    assert source.place == "git+https://example.org/team/ml.git@v1"


@pytest.mark.parametrize(
    "text",
    [
        "git+http://example.org/a@b",
        "git+https://u:hunter2@example.org/a@-b",
        "git+https://example.org",
        "git+https://example.org/a#subdirectory=../b",
        "git+ext::sh -c true",
    ],
)
def test_an_address_that_names_no_project_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"write git\+https://HOST/PATH@REF") as refused:
        parse_git_source(text)
    assert "hunter2" not in str(refused.value)
