"""Files that a script leaves beside its checkpoints: a best model, a merged adapter, a plot. Pure.

A note names each, by the sha256 of its list of files; the list names the parts of each file by theirs,
so that equal bytes are stored once. Nothing resumes from an artifact, and nothing collects it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracks_dagster.track.bodies import Note
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json, canonical_json, sha256_hex

ARTIFACT = "artifact"  # in a note's data
PART_BYTES = 8 * 1024 * 1024
FILES_MAX = 1000  # of one artifact
BYTES_MAX = 16 * 1024**3
ARTIFACTS_MAX = 100  # of one launch
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFile:
    """One file. path: below the artifact, its own name for a single file; parts: sha256, in order."""

    path: str
    size_bytes: int
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArtifact:
    """What a note says of one. sha256: of its list of files; step: the last one done by then."""

    name: str
    sha256: str
    file_count: int
    total_bytes: int
    step: int


def list_key(run_id: str, sha256: str) -> str:
    """Return where the list of an artifact's files is."""
    return f"runs/{run_id}/artifacts/{sha256}.json"


def part_key(run_id: str, sha256: str) -> str:
    """Return where a part of a file is."""
    return f"runs/{run_id}/artifacts/parts/{sha256}"


def list_of(files: Iterable[ArtifactFile]) -> bytes:
    """Return the list as it is stored; equal files are equal bytes."""
    rows = sorted([each.path, each.size_bytes, list(each.parts)] for each in files)
    return canonical_json({"files": rows})


def files_of(found: Json) -> tuple[ArtifactFile, ...]:
    """Return the files of a list."""
    return tuple(
        ArtifactFile(path=path, size_bytes=size, parts=tuple(parts))
        for path, size, parts in found["files"]
    )


def note_of(name: str, files: Iterable[ArtifactFile], *, step: int, by: str) -> Note:
    """Return the note that makes these files an artifact of the run.

    Raises InvalidInput for a name that a folder cannot have everywhere.
    """
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} cannot name an artifact: use 1 to 100 of letters, digits and . _ = -, a letter "
            'or digit first, as a.artifact(path, name="best").'
        )
    files = tuple(files)
    total = sum(each.size_bytes for each in files)
    sha256 = sha256_hex(list_of(files))
    count = f"{len(files)} file{'' if len(files) == 1 else 's'}"
    return Note(
        by=by,
        text=f"artifact {name} after step {step}: {count}, {total} bytes, {sha256[:12]}",
        data={
            ARTIFACT: name,
            "sha256": sha256,
            "file_count": len(files),
            "total_bytes": total,
            "step": step,
        },
    )


def artifacts_of(notes: Iterable[Note]) -> tuple[RunArtifact, ...]:
    """Return the artifacts that notes name, by name; of one name the newest counts."""
    found: dict[str, RunArtifact] = {}
    for each in notes:
        data: Mapping[str, Json] = each.data
        if NAME.fullmatch(str(data.get(ARTIFACT, ""))):
            own = {key: data[key] for key in ("sha256", "file_count", "total_bytes", "step")}
            found[data[ARTIFACT]] = RunArtifact(name=data[ARTIFACT], **own)
    return tuple(found[name] for name in sorted(found))
