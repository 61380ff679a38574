"""Which code a run trains: the commit of a checkout, and its local changes as one diff.

Asked once for each declared run. An image holds no checkout: its build left the commit in a file. A
folder with neither, a machine without git or a git that does not answer gives None, never an error:
not knowing the commit stops nobody from training. `git apply` takes the diff. Files that cannot or may
not be in it are named in its first lines, which git passes over: binary ones, large ones, those with a
secret in them.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tracks_dagster.attempts.effects.local.key_files import key_part
from tracks_dagster.track.bodies import CodeVersion
from tracks_dagster.track.text.redact import Redact

GIT_S_MAX = 10.0  # a checkout on a slow network disk answers late; a broken one never
DISTRIBUTION = "tracks-dagster"
BUILT_FROM = "GIT_COMMIT"  # the file that an image's build leaves beside workspace.yaml
DIFF_BYTES_MAX = 1024 * 1024  # of all files together
UNTRACKED_BYTES_MAX = 256 * 1024  # of a file that git does not know

# Lines of content begin with " ", "+" or "-".
_FILE = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_NAME = re.compile(r"diff --git .*? \"?b/(?P<name>[^\n\"]*)")
_BINARY = re.compile(rb"^(?:Binary files .* differ|GIT binary patch)$", re.MULTILINE)


def read_code_version(folder: Path) -> CodeVersion:
    """Return commit, branch (None on a detached HEAD) and dirtiness of the checkout at `folder`."""
    commit = None if is_apart(folder) else _git_text(folder, "rev-parse", "--verify", "HEAD")
    branch = _git_text(folder, "symbolic-ref", "--short", "--quiet", "HEAD")
    changes = _git_text(folder, "status", "--porcelain") if commit else None
    return CodeVersion(
        git_commit=commit or _built_from(folder),
        branch=branch if commit else None,
        dirty=None if changes is None else bool(changes),
        package_version=importlib.metadata.version(DISTRIBUTION),
    )


def is_apart(folder: Path) -> bool:
    """Whether git leaves out all of `folder`, as an installed package in a checkout's `.venv`."""
    ignored = git(folder, None, "check-ignore", "--quiet", ".") is not None
    return ignored and not git(folder, None, "ls-files", "--cached", "--", ".")


def _built_from(folder: Path) -> str | None:
    """Return the commit of an image's checkout that `folder` is, or lies in."""
    around = (folder, *folder.absolute().parents)
    root = next((each for each in around if (each / "workspace.yaml").is_file()), folder)
    try:
        found = (root / BUILT_FROM).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return found if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", found) else None


def read_code_diff(folder: Path, clean: Redact) -> bytes | None:
    """Return the diff from HEAD to the files of the checkout at `folder`, new ones included.

    None without a checkout, without changes, or where git does not answer. clean: whatever it would
    change holds a secret, and its file is left out. Nothing of the checkout is written.
    """
    with tempfile.TemporaryDirectory(prefix="tracks-index-") as scratch:
        index = _own_index(folder, Path(scratch))
        if index is None:
            return None
        left_out = list(_add_new(folder, index))
        diff = git(folder, index, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD")
    if not diff and not left_out:
        return None
    kept: list[bytes] = []
    room_bytes = DIFF_BYTES_MAX
    for part in _FILE.split(diff or b"")[1:]:
        why = _objection(part, room_bytes, clean)
        if why is None:
            kept.append(part)
            room_bytes -= len(part)
        else:
            left_out.append(
                f"{part.partition(chr(10).encode())[0].decode('utf-8', 'replace')}: {why}"
            )
    head = "".join(f"# Left out: {clean(line)}\n" for line in left_out)
    return head.encode()[:DIFF_BYTES_MAX] + b"".join(kept)


def _objection(part: bytes, room_bytes: int, clean: Redact) -> str | None:
    """Return why the changes of one file cannot be kept, or None."""
    if _BINARY.search(part):
        return "it is binary"
    if len(part) > room_bytes:
        return f"with it there would be more than {DIFF_BYTES_MAX} bytes"
    try:
        text = part.decode("utf-8")
    except UnicodeDecodeError:
        return "it is not UTF-8"
    named = _NAME.match(text)
    if named is not None and key_part(named["name"]) is not None:
        return "it is called like a key"
    return None if clean(text) == text else "it holds what looks like a secret"


def _own_index(folder: Path, scratch: Path) -> Path | None:
    """Return a copy of the checkout's index: to name new files in it changes nobody's."""
    found = git(folder, None, "rev-parse", "--path-format=absolute", "--git-path", "index")
    if (
        found is None
        or is_apart(folder)
        or git(folder, None, "rev-parse", "--verify", "HEAD") is None
    ):
        return None
    try:
        # With its time, by which git knows whose content it has to compare.
        return Path(shutil.copy2(os.fsdecode(found.strip()), scratch / "index"))
    except OSError:
        return None


def _add_new(folder: Path, index: Path) -> Iterator[str]:
    """Name in the index what git does not know and does not ignore; yield what is too large."""
    listed = git(folder, index, "ls-files", "-z", "--others", "--exclude-standard") or b""
    small: list[str] = []
    for name in map(os.fsdecode, filter(None, listed.split(b"\0"))):
        try:
            is_small = (folder / name).lstat().st_size <= UNTRACKED_BYTES_MAX
        except OSError:
            continue  # it went while this looked
        if is_small:
            small.append(name)
        else:
            yield f"{name}: it is new and has more than {UNTRACKED_BYTES_MAX} bytes"
    names = b"\0".join(map(os.fsencode, small))
    if small:
        add = ("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
        git(folder, index, "--literal-pathspecs", *add, given=names)


def git(
    folder: Path, index: Path | None, *arguments: str, given: bytes | None = None
) -> bytes | None:
    """Return what git prints, or None when it fails or does not answer in time."""
    # Without locks: one that is killed here would leave its own in the user's checkout.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    try:
        done = subprocess.run(
            # No program that the repository names is asked what changed, and none is left behind.
            ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments],
            input=given if given is not None else b"",
            env=environment,
            capture_output=True,
            timeout=GIT_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _git_text(folder: Path, *arguments: str) -> str | None:
    """Return what git prints as text; None as of `_git`."""
    printed = git(folder, None, *arguments)
    return None if printed is None else printed.decode("utf-8", "replace").strip()
