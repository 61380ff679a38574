"""Names of checkpoints, and which one a run resumes from.

A checkpoint is a protocol (writing, committed, superseded), not a file: it exists for readers if and
only if its `checkpoint_committed` record is in the run's track. How bytes are written and
verified is `training.saves.manifest`'s work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracks_dagster.track.errors import InvalidInput, NoCheckpoint
from tracks_dagster.track.names import RUN_ID, AttemptRef

_AT = re.compile(rf"(?P<run_id>{RUN_ID})@(?P<step>[0-9]{{1,18}})")


@dataclass(frozen=True)
class CheckpointRef:
    """Names one committed checkpoint.

    run_id: the training run; attempt_id: 1-based; step: optimizer steps done, 0 or more;
    object_prefix: where its chunks and manifest lie, ends with "/";
    manifest_sha256: 64 hex digits, of the manifest's stored bytes.
    """

    run_id: str
    attempt_id: int
    step: int
    object_prefix: str
    manifest_sha256: str


def resume_target(checkpoints: list[CheckpointRef]) -> CheckpointRef:
    """Return the checkpoint with the greatest `(attempt_id, step)`.

    The caller passes only what is committed (superseded ones too), neither quarantined nor deleted.
    By step alone, a stale attempt's higher step would win over the attempt that replaced it.

    Raises NoCheckpoint when the list is empty.
    """
    if not checkpoints:
        raise NoCheckpoint("no committed checkpoint found")
    return max(checkpoints, key=lambda checkpoint: (checkpoint.attempt_id, checkpoint.step))


def object_prefix(ref: AttemptRef, launch_id: str, step: int) -> str:
    """Return the prefix under which one launch writes its checkpoint of one step."""
    return f"{ref.folder}{launch_id}/step-{step}/"


def parse_at(text: str) -> tuple[str, int]:
    """Return (run_id, step) of `RUN@STEP`; raises InvalidInput for anything else."""
    match = _AT.fullmatch(text)
    if match is None:
        raise InvalidInput(
            f"{text!r} names no checkpoint; write RUN@STEP, for example my-run@40. "
            "`tracks checkpoints list RUN` shows the steps that there are."
        )
    return match["run_id"], int(match["step"])


def checkpoint_at(ref: CheckpointRef) -> str:
    """Return a checkpoint as people write it, `RUN@STEP`."""
    return f"{ref.run_id}@{ref.step}"


def manifest_key(ref: CheckpointRef) -> str:
    """Return the key of the manifest that `ref` names."""
    return f"{ref.object_prefix}manifest-{ref.manifest_sha256}.json"
