"""The code that a run was declared with, laid out where its ranks run it.

Every attempt has a copy of its own on every machine, and it is the folder that its ranks start in: a
file that a script writes beside itself stays with that attempt. Standard library only: the gang's
parent uses it.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from tracks_dagster.attempts.ports import SCRIPT
from tracks_dagster.track.errors import InvalidInput

CODE = "code"  # the folder in a gang's own that its ranks start in
PYTHONS = ("python", "python3")
READ_ONLY = 0o444
EXECUTABLE = 0o111


class CodeUnusable(InvalidInput):
    """Stored code that cannot be laid out: it is not an archive of ours."""


def lay_out(folder: Path, *, code: bytes | None, key: str | None, files: Mapping[str, str]) -> None:
    """Make `folder` with the stored code, its files read-only; nothing where it is there already.

    code: of the store's object `key`, an archive or one script. files: name → text, laid over it. All
    of it or nothing: it is made beside `folder` and renamed. Raises CodeUnusable for what is not
    an archive, and for a name or link in it that leads out of the folder. The archive may come from
    anybody: nothing is written through a link, and nothing twice.
    """
    if folder.exists():
        return
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        if code is not None and key is not None and key.endswith(".py"):
            (scratch / SCRIPT).write_bytes(code)
        elif code is not None:
            _unpack(code, scratch)
        for name, text in files.items():
            path = _place(name, scratch)
            if path.is_dir() and not path.is_symlink():
                raise CodeUnusable(
                    f"The stored code has a folder {name!r}, where a file has to go."
                )
            path.unlink(missing_ok=True)
            path.write_text(text, encoding="utf-8")
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def command_line(words: Sequence[str], python: str | None) -> list[str]:
    """Return what a rank starts; a script and `-m` are started by `python`, None being this one."""
    return [*([python or sys.executable] if _is_program(words[0]) else []), *words]


def is_python(entry: Sequence[str]) -> bool:
    """Whether an entry is a script or module of Python, with or without `python` before it: what PATH
    has by that name is the project's interpreter (`paths`)."""
    return _is_program(entry[0]) or (
        entry[0] in PYTHONS and len(entry) > 1 and _is_program(entry[1])
    )


def _is_program(word: str) -> bool:
    return word == "-m" or word.endswith(".py")


def paths(code: Path, python: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a rank finds the stored code and its interpreter.

    The code comes first: an editable install of the same package would import a person's checkout as
    it is now. PATH: so that a shell script's `python` is the same one.
    """
    roots = [str(each) for each in (code, code / "src") if each.is_dir()]
    found = {"PYTHONPATH": os.pathsep.join(filter(None, [*roots, environ.get("PYTHONPATH")]))}
    if python is None or os.sep in python:
        folder = os.path.dirname(python or sys.executable)  # noqa: PTH120  # no link is followed
        found["PATH"] = os.pathsep.join([folder, environ.get("PATH", os.defpath)])
    return found


def _unpack(code: bytes, folder: Path) -> None:
    try:
        with tarfile.open(fileobj=io.BytesIO(code), mode="r:") as tar:
            links = [path for member in tar if (path := _write(tar, member, folder)).is_symlink()]
    except (tarfile.TarError, ValueError) as error:  # ValueError: a name that no file can have
        raise CodeUnusable(f"The stored code cannot be unpacked: {error}.") from error
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ENOENT):  # ENOENT: a link to ""
            raise
        raise CodeUnusable(f"The stored code cannot be unpacked: {error.strerror}.") from error
    for link in links:  # now that all are there: `a/..` is elsewhere where `a` is a link
        if not Path(os.path.realpath(link)).is_relative_to(os.path.realpath(folder)):
            name = link.relative_to(folder).as_posix()
            raise CodeUnusable(f"The stored code has a link {name!r} that leads out of it.")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> Path:
    path = _place(member.name, folder)
    if os.path.lexists(path):
        raise CodeUnusable(f"The stored code has {member.name!r} twice.")
    if member.issym():
        path.symlink_to(member.linkname)
        return path
    content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None:
        raise CodeUnusable(f"The stored code has {member.name!r}, which is not a file or link.")
    path.write_bytes(content.read())
    path.chmod(READ_ONLY | (member.mode & EXECUTABLE))
    return path


def _place(name: str, folder: Path) -> Path:
    """Return where a file of that name goes, its folders made; nothing is ever below a link."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/"):
        raise CodeUnusable(f"The stored code has a file {name!r} outside of its folder.")
    for parent in (folder.joinpath(*parts[:depth]) for depth in range(1, len(parts))):
        if parent.is_symlink() or (parent.exists() and not parent.is_dir()):
            raise CodeUnusable(f"The stored code has a file {name!r} below a link or a file.")
        parent.mkdir(exist_ok=True)
    return folder.joinpath(*parts)
