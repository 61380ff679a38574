"""What a rank on this machine would compute with, read without importing torch.

The supervisor asks before it starts a gang; the gang itself records what it really loaded
(`environment.describe_software`), and a test holds the two equal.
"""

from __future__ import annotations

import json
import os
import platform
import re
import runpy
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from tracks_dagster.track.names import TRAINER_FAMILY
from tracks_dagster.track.records import Json

THREADS_DEFAULT = 1  # of a rank on the CPU: another count sums in another order

_NAME_OR_VERSION = re.compile(r"^(Name|Version):[ \t]*(\S+)", re.MULTILINE)

TRACKS = "tracks-dagster"  # this package; its version is all that a record says of it


def foresee_software(environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the software of a gang that starts here with `environ`, without what it trains.

    A library that is not installed is None. threads: of a rank on the CPU.
    """
    threads = environ.get("OMP_NUM_THREADS") or str(THREADS_DEFAULT)
    torch = _torch()
    return {
        "python": platform.python_version(),
        "torch": torch.get("__version__"),
        "cuda": torch.get("cuda"),
        "numpy": _version("numpy"),
        TRACKS: _version(TRACKS),
        "platform": platform_name(),
        "threads": int(threads) if threads.isdigit() else None,
    }


def describe_code(trainer: str) -> dict[str, Json]:
    """Return which stored code a gang trains; trainer: its key, as of `RunDeclared`.

    Its sha256 has a key apart from `code_sha256`: under that one older versions recorded their own
    package's, and two that are not the same thing are not compared. A family's is not known.
    """
    if trainer == TRAINER_FAMILY:
        return {}
    return {"stored_code_sha256": PurePosixPath(trainer).stem}


def platform_name() -> str:
    """Return the system and the processor's architecture, for example linux-x86_64."""
    return f"{sys.platform}-{platform.machine()}"


def list_packages() -> str:
    """Return a line `name==version` for each package of this interpreter, sorted, once each.

    The first of a name on the import path counts, as it does for an import. Some 20 ms for 200: two
    lines of each METADATA are read, where `Distribution.version` parses all of it every time.
    """
    found: dict[str, str] = {}
    for each in distributions():
        text = each.read_text("METADATA") or each.read_text("PKG-INFO") or ""
        header = dict(_NAME_OR_VERSION.findall(text.split("\n\n", 1)[0]))
        if "Name" in header:
            name = header["Name"].lower().replace("_", "-")
            found.setdefault(name, header.get("Version", "unknown"))
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _torch() -> Mapping[str, str | None]:
    """Return what torch says of itself in its own generated `version.py`, {} where there is none.

    Its wheel does not have all of it: on PyPI 2.14.1 is torch.__version__ 2.14.1+cu130.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    path = Path(spec.origin).with_name("version.py")
    return runpy.run_path(str(path)) if path.exists() else {}


if __name__ == "__main__":  # another interpreter's supervisor asks it so
    print(json.dumps(foresee_software(os.environ)))
