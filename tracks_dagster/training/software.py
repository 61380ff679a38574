"""What a rank on this machine would compute with, read without importing torch.

The supervisor asks before it starts a gang; the gang itself records what it really loaded
(`environment.describe_software`), and a test holds the two equal.
"""

from __future__ import annotations

import json
import os
import platform
import runpy
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from tracks_dagster.track.names import TRAINER_FAMILY
from tracks_dagster.track.records import Json, canonical_json, sha256_hex

THREADS_DEFAULT = 1  # of a rank on the CPU: another count sums in another order

TRACKS = "tracks-dagster"  # this package; its version is all that a record says of it
_PACKAGE = Path(__file__).resolve().parents[1]
# The rooms that decide what a step computes; what acts in them for others, in `effects`, does not.
_TRAINING_CODE = ("attempts", "data", "reasons", "retry", "track", "training")


def foresee_software(environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the software of a gang that starts here with `environ`, without what it trains.

    A library that is not installed is None. threads: of a rank on the CPU.
    """
    threads = environ.get("OMP_NUM_THREADS") or str(THREADS_DEFAULT)
    return {
        "python": platform.python_version(),
        "torch": _version("torch"),
        "cuda": _cuda_version(),
        "numpy": _version("numpy"),
        TRACKS: _version(TRACKS),
        "platform": platform_name(),
        "threads": int(threads) if threads.isdigit() else None,
    }


def describe_code(trainer: str) -> dict[str, Json]:
    """Return which code a gang trains; trainer: as of `RunDeclared`.

    Of stored code it is its own sha256, in a key apart from that of a family that ships: what an older
    version recorded under the other key was this package's, and is no other code than the script's.
    """
    if trainer == TRAINER_FAMILY:
        return {"code_sha256": code_sha256()}
    return {"stored_code_sha256": PurePosixPath(trainer).stem}


def platform_name() -> str:
    """Return the system and the processor's architecture, for example linux-x86_64."""
    return f"{sys.platform}-{platform.machine()}"


def code_sha256(package: Path = _PACKAGE) -> str:
    """Return the sha256 of the training code of `package`: every source's path and digest.

    Read again at each call (a few milliseconds): a daemon outlives a checkout's changes.
    """
    paths = [
        path
        for room in _TRAINING_CODE
        for path in (package / room).rglob("*.py")
        if "effects" not in path.relative_to(package).parts
    ]
    digests = {
        path.relative_to(package).as_posix(): sha256_hex(path.read_bytes()) for path in paths
    }
    return sha256_hex(canonical_json(digests))


def list_packages() -> str:
    """Return a line `name==version` for each package of this interpreter, sorted, once each.

    The first of a name on the import path counts, as it does for an import. Some 0.1 s for 300.
    """
    found: dict[str, str] = {}
    for each in distributions():
        name = str(each.metadata["Name"] or "").lower().replace("_", "-")
        if name:
            found.setdefault(name, each.version)
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _cuda_version() -> str | None:
    """Return the CUDA version that torch was built for, from its own generated `version.py`."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("version.py")
    cuda: str | None = runpy.run_path(str(path)).get("cuda") if path.exists() else None
    return cuda


if __name__ == "__main__":  # another interpreter's supervisor asks it so
    print(json.dumps(foresee_software(os.environ)))
