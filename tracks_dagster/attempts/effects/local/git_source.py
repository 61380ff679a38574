"""A project in a git repository: `git+https://HOST/PATH@REF#subdirectory=FOLDER`.

The repository is fetched into a folder that is removed afterwards. A password in the address is used
and stored nowhere: what is recorded has none.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tracks_dagster.track.errors import InvalidInput

PREFIX = "git+"
SCHEMES = ("https", "ssh", "file")
FETCH_S_MAX = 300.0
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}")
_FOLDER = "subdirectory="


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """url: as it is fetched; place: the whole address as it is recorded. folder: inside it."""

    url: str
    ref: str
    folder: str
    place: str


def parse_git_source(text: str) -> GitSource:
    """Return what an address means; raises InvalidInput, without a password that is in it."""
    try:
        parts = urlsplit(text.removeprefix(PREFIX))
        host = parts.netloc.rpartition("@")[2]
    except ValueError as error:
        raise InvalidInput(f"The address of the repository is invalid: {error}.") from error
    path, has_ref, ref = parts.path.rpartition("@")
    path, ref = (path, ref) if has_ref else (parts.path, "HEAD")
    folder = parts.fragment.removeprefix(_FOLDER)
    shown = f"{PREFIX}{parts.scheme}://{host}{path}"
    is_inside = not folder.startswith("/") and ".." not in folder.split("/")
    is_folder = not parts.fragment or (parts.fragment.startswith(_FOLDER) and is_inside)
    if (
        parts.scheme not in SCHEMES
        or not path.strip("/")
        or not _REF.fullmatch(ref)
        or not is_folder
    ):
        raise InvalidInput(
            f"{shown} cannot name a project; write git+https://HOST/PATH@REF, or git+file:///PATH@REF, "
            f"with #{_FOLDER}FOLDER where the project is not the whole repository. Schemes: "
            f"{', '.join(SCHEMES)}."
        )
    return GitSource(
        url=f"{parts.scheme}://{parts.netloc}{path}",
        ref=ref,
        folder=folder,
        place=f"{shown}@{ref}" + (f"#{_FOLDER}{folder}" if folder else ""),
    )


@contextmanager
def fetched(source: GitSource) -> Iterator[Path]:
    """Give the project's folder at that ref, for as long as the context lasts; raises InvalidInput."""
    with tempfile.TemporaryDirectory(prefix="tracks-git-") as scratch:
        for words in (
            ("init", "--quiet"),
            ("fetch", "--quiet", "--depth", "1", "--no-tags", "--", source.url, source.ref),
            ("-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"),
        ):
            _git(source, Path(scratch), *words)
        yield Path(scratch) / source.folder


def _git(source: GitSource, folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}  # nobody is there to answer
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidInput(
            f"Cannot fetch {source.place}: git did not end within {FETCH_S_MAX:g} s."
        ) from error
    except OSError as error:
        raise InvalidInput(f"Cannot fetch {source.place}: git: {error.strerror}.") from error
    if done.returncode != 0:
        user = urlsplit(source.url).netloc.rpartition("@")[0]
        words = done.stderr.replace(f"{user}@", "") if user else done.stderr
        lines = words.strip().splitlines()
        why = lines[-1] if lines else f"git ended with {done.returncode}"
        raise InvalidInput(f"Cannot fetch {source.place}: {why}")
