"""What of a project's folder is stored with a run: its files as one tar, the same bytes every time.

With git: what it tracks, and what it neither tracks nor ignores. Without: all files. Caches,
environments and files that hold keys by their name are left out, unless git tracks them. Names, modes
and contents decide the bytes; owners and times do not, so that unchanged code has the same sha256.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tracks_dagster.attempts.effects.local.checkout import git
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import sha256_hex

CODE_BYTES_MAX = 64 * 1024 * 1024  # of all files together; every attempt unpacks them
FILES_MAX = 20_000
LARGEST_NAMED = 3
SUBMODULES_DEPTH_MAX = 8

# Of files and of folders on the way to them, where git does not track them.
LEFT_OUT = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", ".venv", "venv", "node_modules", "*.egg-info"),
    *(".tracks", ".tracks-notebook", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".nox"),
    *(".ipynb_checkpoints", ".DS_Store", "wandb", "mlruns", "lightning_logs"),
    *(
        ".hypothesis",
        ".coverage",
        ".coverage.*",
    ),  # what tests leave, which `pytest --tracks` allows
    *(".env", ".env.*", ".netrc", "*.pem", "id_rsa*", "id_ed25519*", "credentials.json"),  # keys
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedCode:
    """A tar of a folder's files. names: of the files, relative to the folder, sorted."""

    data: bytes
    names: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Of the tar."""
        return sha256_hex(self.data)


def pack_folder(folder: Path, *, needed: Iterable[str] = ()) -> PackedCode:
    """Return the files of `folder`; needed: names of those without which the project cannot start.

    Raises InvalidInput naming what cannot be stored: too much (with the largest files), a link that
    leads out of the folder, a file that cannot be read, a needed file that is left out.
    """
    found = _pack(folder, sorted(set(_names(folder))))
    for name in needed:
        if name not in found.names:
            raise InvalidInput(
                f"{name} is not stored with the run: git ignores it, or its name is one of those left "
                f"out ({', '.join(LEFT_OUT)}). Add it to git, or call it otherwise."
            )
    return found


def pack_script(script: Path, *others: str) -> PackedCode:
    """Return one file and those of these names beside it; raises InvalidInput where one cannot be read,
    or they are too large."""
    return _pack(script.parent, sorted({script.name, *others}))


def _pack(folder: Path, names: list[str]) -> PackedCode:
    if len(names) > FILES_MAX:
        raise InvalidInput(
            f"{folder} has {len(names)} files to store; at most {FILES_MAX} are stored with a run. "
            "Let .gitignore leave out what is no code."
        )
    sizes = {name: _size(folder, name) for name in names}
    if (total := sum(sizes.values())) > CODE_BYTES_MAX:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST_NAMED]
        listed = ", ".join(f"{name} ({sizes[name]} bytes)" for name in largest)
        raise InvalidInput(
            f"{folder} has {total} bytes to store; at most {CODE_BYTES_MAX} are stored with a run. The "
            f"largest files: {listed}. Let .gitignore leave out what is no code; `tracks snapshots "
            "add` takes data."
        )
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            _add(tar, folder, name)
    return PackedCode(data=written.getvalue(), names=tuple(names))


def _size(folder: Path, name: str) -> int:
    try:
        return (folder / name).lstat().st_size
    except OSError as error:
        raise _unread(folder / name, error) from error


def _add(tar: tarfile.TarFile, folder: Path, name: str) -> None:
    """Add a file or a link, with nothing of this machine in its header."""
    path, member = folder / name, tarfile.TarInfo(name)
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            member.type, member.linkname = tarfile.SYMTYPE, _inner_target(folder, path)
            tar.addfile(member)
        elif stat.S_ISREG(mode):
            data = path.read_bytes()
            member.size, member.mode = len(data), 0o755 if mode & stat.S_IXUSR else 0o644
            tar.addfile(member, io.BytesIO(data))
        else:
            raise InvalidInput(
                f"{path} is no file, folder or link; remove it, or let git ignore it."
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


def _leads_to_itself(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _names(folder: Path, depth: int = 0) -> Iterator[str]:
    """Yield the names of what is stored, in no order, some twice."""
    tracked = git(folder, None, "ls-files", "-z", "--cached", "--", ".")
    if tracked is None:
        yield from (name for name in _walk(folder) if not _is_left_out(name))
        return
    others = git(folder, None, "ls-files", "-z", "--others", "--exclude-standard", "--", ".") or b""
    yield from _there(folder, tracked, depth)
    yield from (name for name in _there(folder, others, depth) if not _is_left_out(name))


def _there(folder: Path, listed: bytes, depth: int) -> Iterator[str]:
    """Yield those of git's list that are on the disk; of a submodule, its files."""
    for name in map(os.fsdecode, filter(None, listed.split(b"\0"))):
        path = folder / name.rstrip("/")
        if path.is_dir() and not path.is_symlink():
            if depth < SUBMODULES_DEPTH_MAX:
                yield from (f"{name.rstrip('/')}/{each}" for each in _names(path, depth + 1))
        elif path.is_symlink() or path.exists():
            yield name


def _walk(folder: Path) -> Iterator[str]:
    for base, folders, files in os.walk(folder):
        inner = Path(base).relative_to(folder)
        links = [each for each in folders if (Path(base) / each).is_symlink()]
        folders[:] = [each for each in folders if each not in links and not _is_left_out(each)]
        yield from ((inner / name).as_posix() for name in (*links, *files))


def _is_left_out(name: str) -> bool:
    return any(fnmatch(part, pattern) for part in name.split("/") for pattern in LEFT_OUT)
