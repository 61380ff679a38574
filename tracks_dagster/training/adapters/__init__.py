"""How frameworks that run their own loop join an attempt: one module for each, imported by the script.

Each has `follow`, over `a.folder`, `a.ends`, `a.report` and `a.commit_folder`. None of the frameworks
is a dependency: a script that names one has it. Here lies what two of them share.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tracks_dagster.track.errors import CheckpointMismatch
from tracks_dagster.track.json_text import MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.training.attempt import Attempt

SUMS_DIFFER = (
    "On three or more ranks DDP sums gradients in another order in the first step after a resume: the "
    "last bits differ."
)


class Norms:
    """The norm of the gradients as accelerate found it when it last clipped them."""

    def __init__(self, accelerator: Any) -> None:
        self._clip = accelerator.clip_grad_norm_
        self._newest: Any = None
        accelerator.clip_grad_norm_ = self._clip_and_keep

    def take(self) -> dict[str, float]:
        """Return it as a metric of the step; nothing where nothing was clipped. Every rank calls it."""
        norm, self._newest = self._newest, None
        if norm is None:
            return {}
        # Of a sharded gradient each rank has a part.
        return {"grad_norm": float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)}

    def _clip_and_keep(self, *args: Any, **kwargs: Any) -> Any:
        self._newest = self._clip(*args, **kwargs)
        return self._newest


def write_place(a: Attempt, folder: Path, place: dict[str, Json]) -> None:
    """Write where this rank is, beside what the framework wrote: what has no place in its own files."""
    text = json.dumps({"ranks": a.world_size, **place})
    (folder / _place_file(a)).write_text(text)


def read_place(a: Attempt, folder: Path) -> dict[str, Json]:
    """Return what this rank wrote beside the framework's files.

    Raises CheckpointMismatch where another adapter, or another number of ranks, saved them.
    """
    file = folder / _place_file(a)
    if not file.is_file():
        raise CheckpointMismatch(
            f"The checkpoint has no {file.name}: resume on as many ranks as saved it, with the adapter "
            "that saved it."
        )
    place: dict[str, Json] = parse_json(file.read_text(), bytes_max=MANIFEST_BYTES_MAX)
    ranks = place.pop("ranks")
    if ranks != a.world_size:
        raise CheckpointMismatch(
            f"The checkpoint was saved by {ranks} ranks and the attempt has {a.world_size}. Each rank "
            f"has a place of its own in the data: resume on {ranks}."
        )
    return place


def _place_file(a: Attempt) -> str:
    return f"place-{a.rank}.json"
