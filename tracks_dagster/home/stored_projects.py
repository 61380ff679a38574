"""Projects that are stored for everybody who has the store, and their files in this home.

A version is a record of the track `projects/NAME`, and the archive that it names. Where a home has no
folder of its own for a project, its link `projects/NAME` leads to the newest version, unpacked in the
home: what reads the links knows it, also while the store is away.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tracks_dagster.attempts.effects.local.checkout import DISTRIBUTION
from tracks_dagster.attempts.effects.local.project_code import (
    read_project_code,
    with_interpreters,
)
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.projects.effects.project_file import FILE, NAME
from tracks_dagster.projects.effects.registered import (
    FOLDER,
    SHIPPED,
    VERSIONS,
    Registered,
    find_registered,
    version_of,
)
from tracks_dagster.track.addressed import read_addressed, write_addressed
from tracks_dagster.track.bodies import ProjectRemoved, ProjectStored
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import PROJECTS
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind, sha256_hex
from tracks_dagster.track.states.project_state import ProjectState, StoredVersion
from tracks_dagster.track.track import project_code_key, project_diff_key
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.training.projects.code import lay_out

KEPT_MAX = 2  # unpacked versions of a project: who reads the older one may not be done
SHA256_DIGITS = 16  # in the name of an unpacked version


def store_project(
    tracks: Tracks, found: FoundCode, *, by: str, where: str, place: str, why: str = ""
) -> tuple[StoredVersion, bool]:
    """Store a version of a project; return what is trained by its name now, and whether it is new.

    The same files of the same commit again are not a new version.
    """
    name, diff, sha256 = found.project.name, found.code_diff, sha256_hex(found.archive)
    code = found.code if diff is None else replace(found.code, diff_sha256=sha256_hex(diff))
    write_addressed(tracks.store, project_code_key(name, sha256), found.archive)
    if diff is not None:
        write_addressed(tracks.store, project_diff_key(name, sha256_hex(diff)), diff)
    body = ProjectStored(
        project=name,
        code_sha256=sha256,
        code=code,
        by=by,
        where=where,
        place=tracks.clean(place),
        why=why,
    )
    draft = tracks.draft(Kind.PROJECT_STORED, body)

    def choose(state: ProjectState | None) -> Draft | None:
        newest = None if state is None else state.newest
        of_newest = newest and (newest.body.code_sha256, newest.body.code.git_commit)
        return None if of_newest == (sha256, code.git_commit) else draft

    record = tracks.decide_project(name, choose)
    state = tracks.find_project(name)
    assert state is not None, "it was stored"
    return state.versions[-1], record is not None


def remove_stored(tracks: Tracks, name: str, *, by: str, why: str = "") -> bool:
    """Let nothing train a project by its name; return whether it was stored. Its versions stay."""
    draft = tracks.draft(Kind.PROJECT_REMOVED, ProjectRemoved(project=name, by=by, why=why))

    def choose(state: ProjectState | None) -> Draft | None:
        return None if state is None or state.newest is None else draft

    return tracks.decide_project(name, choose) is not None


def sync_projects(tracks: Tracks, home: Path) -> Iterator[str]:
    """Link the newest version of every stored project; yield what is wrong with one of them.

    Raises StoreError where the store cannot be listed.
    """
    linked = {path.name for path in (home / FOLDER / VERSIONS).glob("*")}
    for name in sorted(filter(NAME.fullmatch, {*tracks.store.folders(PROJECTS), *linked})):
        try:
            sync_project(tracks, home, name)
        except Exception as error:  # noqa: BLE001 - of that project alone
            yield f"The stored project {name} is as it was here: {problem_of(error)}"


def sync_project(tracks: Tracks, home: Path, name: str) -> None:
    """Link the newest version of a stored project, unless this home has a folder of its own for it.

    Raises ObjectLost or InvalidInput for files that are lost or no archive.
    """
    link = home / FOLDER / name
    if name in SHIPPED or not NAME.fullmatch(name):
        return
    if os.path.lexists(link) and version_of(link) is None:
        return
    state = tracks.find_project(name)
    newest = None if state is None else state.newest
    if newest is None:
        link.unlink(missing_ok=True)
        shutil.rmtree(home / FOLDER / VERSIONS / name, ignore_errors=True)
        return
    sha256 = newest.body.code_sha256
    folder = home / FOLDER / VERSIONS / name / f"{newest.number}-{sha256[:SHA256_DIGITS]}"
    if not folder.is_dir():
        key = project_code_key(name, sha256)
        code = read_addressed(tracks.store, key)
        try:
            lay_out(folder, code=code, key=key, files={})
        except OSError:
            if not folder.is_dir():
                raise  # else another process was faster
    _point(link, folder)
    for older in sorted(folder.parent.glob("[1-9]*"), key=_number)[:-KEPT_MAX]:
        shutil.rmtree(older, ignore_errors=True)


def _point(link: Path, folder: Path) -> None:
    """Make `link` lead to `folder`, in one step."""
    target = folder.relative_to(link.parent)
    if link.is_symlink() and link.readlink() == target:
        return
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target, target_is_directory=True)
    fresh.replace(link)


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


def file_of_version(store: ObjectStore, version: StoredVersion) -> str:
    """Return the project's file of a stored version; raises ObjectLost."""
    key = project_code_key(version.body.project, version.body.code_sha256)
    with tarfile.open(fileobj=io.BytesIO(read_addressed(store, key))) as tar:
        found = tar.extractfile(FILE)
        return "" if found is None else found.read().decode("utf-8", "replace")


def find_project(tracks: Tracks, home: Path, examples: Path, name: str) -> Registered:
    """Return that project as it is trained in this home now: of its folder, or the newest version.

    Raises InvalidInput naming those that exist.
    """
    sync_project(tracks, home, name)
    return find_registered(home, examples, name)


def code_of(tracks: Tracks, found: Registered, *, launcher: str | None) -> FoundCode:
    """Return the code of a project of this home: of its folder as it is now, or as it was stored.

    launcher: as of `read_project_code`. Raises InvalidInput, SettingsError or ObjectLost.
    """
    project, store = found.read(), tracks.store
    if found.version is None:
        return read_project_code(
            found.folder, store_url=store.url, clean=tracks.clean, launcher=launcher
        )
    state = tracks.find_project(found.name)
    if state is None or len(state.versions) < found.version:
        raise InvalidInput(
            f"The store does not have version {found.version} of {found.name}, which this home has: it "
            "is another store. Add the project here: `tracks projects add DIR`."
        )
    body = state.versions[found.version - 1].body
    diff = body.code.diff_sha256
    return FoundCode(
        project=with_interpreters(project, store.url, launcher),
        archive=read_addressed(store, project_code_key(found.name, body.code_sha256)),
        folder=f"{PROJECTS}{found.name}@{found.version}",
        code=replace(
            body.code, package_version=importlib.metadata.version(DISTRIBUTION), diff_sha256=None
        ),
        code_diff=None
        if diff is None
        else read_addressed(store, project_diff_key(found.name, diff)),
    )
