"""Where the code stands: git's answer about one folder, as a `CodeVersion`.

Asked once for each declared run. A folder that is no checkout, a machine without git or a git that
does not answer gives None, never an error: not knowing the commit stops nobody from training.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path

from tracks_dagster.core.bodies import CodeVersion

GIT_S_MAX = 10.0  # a checkout on a slow network disk answers late; a broken one never
DISTRIBUTION = "tracks-dagster"


def read_code_version(folder: Path) -> CodeVersion:
    """Return commit, branch (None on a detached HEAD) and dirtiness of the checkout at `folder`."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    branch = _git(folder, "symbolic-ref", "--short", "--quiet", "HEAD")
    changes = _git(folder, "status", "--porcelain") if commit else None
    return CodeVersion(
        git_commit=commit or None,
        branch=branch if commit else None,
        dirty=None if changes is None else bool(changes),
        package_version=importlib.metadata.version(DISTRIBUTION),
    )


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
