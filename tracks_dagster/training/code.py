"""The code that a run was declared with, laid out where its ranks run it.

Every attempt has a copy of its own on every machine, and it is the folder that its ranks start in: a
file that a script writes beside itself stays with that attempt. Standard library only: the gang's
parent uses it.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath

READ_ONLY = 0o444
EXECUTABLE = 0o111


class CodeUnusable(ValueError):
    """Stored code that cannot be laid out: it is no archive of ours."""


def lay_out(data: bytes, folder: Path) -> None:
    """Unpack a stored archive into `folder`, its files read-only; nothing where it is there already.

    All of it or nothing: it is unpacked beside `folder` and renamed. Raises CodeUnusable for what is
    no archive, and for a name or link in it that leads out of the folder.
    """
    if folder.exists():
        return
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                _write(tar, member, scratch)
    except tarfile.TarError as error:
        raise CodeUnusable(f"The stored code cannot be unpacked: {error}.") from error
    scratch.rename(folder)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = PurePosixPath(member.name)
    if not _is_inside(name):
        raise CodeUnusable(f"The stored code has a file {member.name!r} outside of its folder.")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        if not _is_inside(name.parent / member.linkname):
            raise CodeUnusable(f"The stored code has a link {member.name!r} that leads out of it.")
        path.symlink_to(member.linkname)
        return
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise CodeUnusable(f"The stored code has {member.name!r}, which is no file or link.")
    path.write_bytes(content.read())
    path.chmod(READ_ONLY | (member.mode & EXECUTABLE))


def _is_inside(path: PurePosixPath) -> bool:
    """Whether a path, its `..` followed, stays below where it starts."""
    depth = 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            return False
    return depth >= 0
