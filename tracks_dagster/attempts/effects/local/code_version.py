"""Where the code stands: git's answer about one folder, as a `CodeVersion`.

Asked once for each declared run. An image holds no checkout: its build left the commit in a file. A
folder with neither, a machine without git or a git that does not answer gives None, never an error:
not knowing the commit stops nobody from training.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from pathlib import Path

from tracks_dagster.track.bodies import CodeVersion

GIT_S_MAX = 10.0  # a checkout on a slow network disk answers late; a broken one never
DISTRIBUTION = "tracks-dagster"
BUILT_FROM = "GIT_COMMIT"  # the file that an image's build leaves beside workspace.yaml


def read_code_version(folder: Path) -> CodeVersion:
    """Return commit, branch (None on a detached HEAD) and dirtiness of the checkout at `folder`."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    branch = _git(folder, "symbolic-ref", "--short", "--quiet", "HEAD")
    changes = _git(folder, "status", "--porcelain") if commit else None
    return CodeVersion(
        git_commit=commit or _built_from(folder),
        branch=branch if commit else None,
        dirty=None if changes is None else bool(changes),
        package_version=importlib.metadata.version(DISTRIBUTION),
    )


def _built_from(folder: Path) -> str | None:
    try:
        found = (folder / BUILT_FROM).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return found if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", found) else None


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, or None when it fails or does not answer in time."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
