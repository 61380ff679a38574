"""What of a project's folder is stored with a run: its files as one tar, the same bytes every time.

With git: what it tracks, and what it neither tracks nor ignores. Without: all files. Caches and
environments are left out, unless git tracks them; files that are called like keys always. Names, modes
and contents decide the bytes; owners and times do not, so that unchanged code has the same sha256.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import islice
from os import DirEntry, scandir
from pathlib import Path

from tracks_dagster.attempts.effects.local.checkout import GIT_S_MAX, git, is_apart
from tracks_dagster.attempts.effects.local.key_files import key_part, may_hold_secret
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.text.private_keys import holds_private_key
from tracks_dagster.track.text.safe_text import one_line

CODE_BYTES_MAX = 64 * 1024 * 1024  # of all files together; every attempt unpacks them
FILES_MAX = 20_000
LOOKED_MAX = 10 * FILES_MAX  # names in a folder without git, with those that are left out
LARGEST_NAMED = 3
SUBMODULES_DEPTH_MAX = 8

# Of files and of folders on the way to them, where git does not track them.
LEFT_OUT = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", ".venv", "venv", "node_modules", "*.egg-info"),
    *(".tracks", ".tracks-notebook", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".nox"),
    *(".ipynb_checkpoints", ".DS_Store", "wandb", "mlruns", "lightning_logs"),
    # What tests leave, which `pytest --tracks` allows.
    *(".hypothesis", ".coverage", ".coverage.*"),
)
NAMED_MAX = 5  # files in a remark


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCode:
    """A tar of a folder's files. names: of the files, relative to the folder, sorted.

    keys: what was left out, as it is called like a key; suspects: files in it that may hold a secret.
    """

    data: bytes
    names: tuple[str, ...]
    keys: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """Of the tar."""
        return sha256_hex(self.data)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a person should read before the code is stored, a sentence or two each."""
        found = []
        if self.keys:
            found.append(
                f"Not stored with the code, being called like keys: {_listed(self.keys)}. Give secrets "
                "to the trainer by its environment; give another name to what is not one."
            )
        if self.suspects:
            found.append(
                f"Stored with the code, and may hold secrets: {_listed(self.suspects)}. The store "
                "keeps them for ever; let .gitignore leave out what holds one."
            )
        return tuple(found)


def _listed(names: tuple[str, ...]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(map(one_line, names[:NAMED_MAX])) + (f" and {more} more" if more > 0 else "")


def pack_folder(folder: Path, *, needed: Iterable[str] = ()) -> PackedCode:
    """Return the files of `folder`; needed: names of those without which the project cannot start.

    Raises InvalidInput naming what cannot be stored: too much (with the largest files), a link that
    leads out of the folder, a file that cannot be read or holds a private key, a needed file that is
    left out.
    """
    most = 2 * FILES_MAX  # each may come twice
    try:
        names = list(islice(_names(folder), most + 1))  # of a disk's root there are millions
    except OSError as error:  # a name that is too long
        raise _unread(Path(error.filename or folder), error) from error
    if len(names) > most:
        raise _too_many(folder)
    called_so = {name: key_part(name) for name in sorted(set(names))}
    found = _pack(folder, [name for name, key in called_so.items() if key is None])
    for name in needed:
        if called_so.get(name) is not None:
            raise InvalidInput(
                f"{name} is not stored with the run: {called_so[name]} is called like a key. Call it "
                "otherwise."
            )
        if name not in found.names:
            raise InvalidInput(
                f"{name} is not stored with the run: git ignores it, or its name is one of those left "
                f"out ({', '.join(LEFT_OUT)}). Add it to git, or call it otherwise."
            )
    return replace(
        found, keys=tuple(sorted({key for key in called_so.values() if key is not None}))
    )


def pack_script(script: Path, *others: str) -> PackedCode:
    """Return one file and those of these names beside it; raises InvalidInput where one cannot be read,
    or they are too large."""
    return _pack(script.parent, sorted({script.name, *others}))


def _pack(folder: Path, names: list[str]) -> PackedCode:
    if len(names) > FILES_MAX:
        raise _too_many(folder)
    sizes = {name: _size(folder, name) for name in names}
    if (total := sum(sizes.values())) > CODE_BYTES_MAX:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST_NAMED]
        listed = ", ".join(f"{name} ({sizes[name]} bytes)" for name in largest)
        raise InvalidInput(
            f"{folder} has {total} bytes to store; at most {CODE_BYTES_MAX} are stored with a run. The "
            f"largest files: {listed}. Let .gitignore leave out what is not code; `tracks snapshots "
            "add` takes data."
        )
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        suspects = tuple(name for name in names if may_hold_secret(name, _add(tar, folder, name)))
    return PackedCode(data=written.getvalue(), names=tuple(names), suspects=suspects)


def _size(folder: Path, name: str) -> int:
    try:
        return (folder / name).lstat().st_size
    except OSError as error:
        raise _unread(folder / name, error) from error


def _add(tar: tarfile.TarFile, folder: Path, name: str) -> bytes:
    """Add a file or a link, with nothing of this machine in its header; return what it holds."""
    path, member = folder / name, tarfile.TarInfo(name)
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            member.type, member.linkname = tarfile.SYMTYPE, _inner_target(folder, path)
            tar.addfile(member)
            return b""
        if stat.S_ISREG(mode):
            data = path.read_bytes()
            if holds_private_key(data):
                raise InvalidInput(
                    f"{path} holds a private key, which would be stored with the run and copied to "
                    "every machine that trains it. Move it out of the folder, or let .gitignore leave "
                    f"it out (`git rm --cached {name}` where git tracks it)."
                )
            member.size, member.mode = len(data), 0o755 if mode & stat.S_IXUSR else 0o644
            tar.addfile(member, io.BytesIO(data))
            return data
        raise InvalidInput(
            f"{path} is not a file, folder or link; remove it, or let git ignore it."
        )
    except OSError as error:
        raise _unread(path, error) from error


def _unread(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path} cannot be read to be stored with the run: {error.strerror}.")


def _inner_target(folder: Path, link: Path) -> str:
    """Return where a link leads to, relative to it; raises InvalidInput where that is not stored."""
    if _leads_to_itself(link):
        raise InvalidInput(
            f"The link {link} leads to itself, over {link.readlink()}; remove it, or let git ignore it."
        )
    root, target = folder.resolve(), link.resolve()
    if not target.is_relative_to(root):
        raise InvalidInput(
            f"The link {link} leads out of the project, to {target}, which is not stored with the run. "
            "Put a copy in its place, or let git ignore it (data belongs into a snapshot)."
        )
    return os.path.relpath(target, link.parent.resolve())


def _too_many(folder: Path) -> InvalidInput:
    return InvalidInput(
        f"{folder} has more than {FILES_MAX} files to store, the most that are stored with a run. Let "
        ".gitignore leave out what is not code, or keep the project in a folder of its own."
    )


def _leads_to_itself(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _names(folder: Path, depth: int = 0) -> Iterator[str]:
    """Yield the names of what is stored, in no order, some twice."""
    tracked = git(folder, None, "ls-files", "-z", "--cached", "--", ".")
    if tracked is None or (not tracked and is_apart(folder)):
        yield from (name for name in _walk(folder) if not _is_left_out(name))
        return
    others = git(folder, None, "ls-files", "-z", "--others", "--exclude-standard", "--", ".")
    if others is None:
        raise InvalidInput(
            f"git did not list the files of {folder} that it does not track; it has {GIT_S_MAX:g} s "
            "for that. Let .gitignore leave out what is not code, or keep the project in a folder of "
            "its own."
        )
    yield from _there(folder, tracked, depth)
    yield from (name for name in _there(folder, others, depth) if not _is_left_out(name))


def _there(folder: Path, listed: bytes, depth: int) -> Iterator[str]:
    """Yield those of git's list that are on the disk; of a submodule, its files."""
    for found in re.finditer(rb"[^\0]+", listed):  # one at a time: there may be millions
        name = os.fsdecode(found[0])
        path = folder / name.rstrip("/")
        if path.is_dir() and not path.is_symlink():
            if depth < SUBMODULES_DEPTH_MAX:
                yield from (f"{name.rstrip('/')}/{each}" for each in _names(path, depth + 1))
        elif path.is_symlink() or path.exists():
            yield name


def _walk(folder: Path) -> Iterator[str]:
    """Yield files and links, each folder's as they are read: one may have millions."""
    for looked, (inner, entry) in enumerate(_entries(folder)):
        if looked == LOOKED_MAX:
            raise _too_many(folder)
        if not entry.is_dir(follow_symlinks=False):
            yield inner + entry.name


def _entries(folder: Path, inner: str = "") -> Iterator[tuple[str, DirEntry[str]]]:
    """Yield what lies in `folder` and below, with the path of its folder: "" or "pkg/"."""
    try:
        entries = scandir(folder / inner)
    except (PermissionError, FileNotFoundError):  # another's, as lost+found, or gone meanwhile
        return
    with entries:
        for entry in entries:
            yield inner, entry
            if entry.is_dir(follow_symlinks=False) and not _is_left_out(entry.name):
                yield from _entries(folder, f"{inner}{entry.name}/")


def _is_left_out(name: str) -> bool:
    return any(fnmatch(part, pattern) for part in name.split("/") for pattern in LEFT_OUT)
