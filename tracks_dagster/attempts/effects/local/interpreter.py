"""Whether a person's own interpreter can run the ranks of a gang on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tracks_dagster.attempts.effects.local.processes import worker_environment
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json

CHECK_S_MAX = 60.0  # the first start from a cold network disk
LINES_MAX = 5
# Finds without importing: torch alone takes seconds to import.
_CHECK = """
import sys
from importlib.util import find_spec
missing = [name for name in sys.argv[1:] if find_spec(name) is None]
if missing:
    raise SystemExit("it lacks " + " and ".join(missing))
"""


def ask_interpreter(python: str) -> Mapping[str, Json]:
    """Return what `foresee_software` says by that interpreter; {} where it does not answer in time."""
    try:
        done = subprocess.run(
            [python, "-m", "tracks_dagster.training.software"],
            env=worker_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_S_MAX,
            check=True,
        )
        found: dict[str, Json] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}  # its gang says why it cannot start, and records what it finds
    return found


def check_interpreter(python: str, *, store_url: str) -> str:
    """Return the path of `python`, as the caller's PATH has it: a daemon's may have another.

    Raises InvalidInput where it starts nothing, or lacks what a rank on that store imports.
    """
    package, needed = "tracks-dagster", ["torch", "tracks_dagster"]
    if store_url.startswith("s3:"):
        package, needed = "'tracks-dagster[s3]'", [*needed, "boto3"]
    doing = f"The project's interpreter {python} cannot run it"
    path = shutil.which(python)
    if path is None:
        raise InvalidInput(f"{doing}: there is no such program; write its path under python:.")
    try:
        done = subprocess.run(
            [path, "-c", _CHECK, *needed],
            env=worker_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_S_MAX,
            check=False,
        )
    except OSError as error:
        raise InvalidInput(f"{doing}: {error.strerror}.") from error
    except subprocess.TimeoutExpired as error:
        raise InvalidInput(f"{doing}: it did not answer within {CHECK_S_MAX:g} s.") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.strip().splitlines()[-LINES_MAX:])
        raise InvalidInput(
            f"{doing}: {said or f'it ended with {done.returncode}'}. Install {package} into that "
            f"environment: {python} -m pip install {package}"
        )
    return str(Path(path).absolute())  # a link of a venv stays one
