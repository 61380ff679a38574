"""The gang of an incident: what its ranks were given and wrote, and what is seen of their end.

The only part of an incident that is played. Its two ranks run on a node each.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tests.fakes import FakeGangs
from tracks_dagster.reasons.evidence import Condition, LastWord, RankEnd
from tracks_dagster.track.bodies import AttemptPlaced, CheckpointCommitted, RankPlace
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Json, canonical_json, format_time, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef

NODES = ("gpu-node-11", "gpu-node-12")
DEVICES = ("GPU-5a1f0c9e-77aa", "GPU-0c77d2b4-11bb")
ENVIRONMENT: Mapping[str, Json] = {"python": "3.11.9", "torch": "2.8.0", "platform": "linux-x86_64"}
SAMPLES_PER_STEP = 48


class GoneGangs(FakeGangs):
    """Gangs that are gone before they are closed: to kill them adds nothing to how they ended."""

    def kill(self, ref: AttemptRef) -> None:
        """Do nothing, as a launcher that finds nobody."""


def placed(run_id: str, launch_id: str, environment: Mapping[str, Json]) -> AttemptPlaced:
    """Return where the ranks of a launch came up."""
    ranks = tuple(
        RankPlace(
            rank=rank,
            node=NODES[rank],
            pid=700 + rank,
            pid_started=1.5,
            boot_id=f"boot-{NODES[rank]}",
            device=DEVICES[rank],
            accelerator="NVIDIA H100",
            pod=f"{run_id}-{rank}",
        )
        for rank in range(2)
    )
    return AttemptPlaced(
        launch_id=launch_id,
        world_size=2,
        ranks=ranks,
        image="registry/trainer@sha256:77aa",
        environment=environment,
        environment_sha256=sha256_hex(canonical_json(dict(environment))),
        packages_sha256=sha256_hex(b"torch==2.13.0\n"),
    )


def committed(ref: CheckpointRef, launch_id: str) -> CheckpointCommitted:
    """Return what rank 0 records of a checkpoint that it saved."""
    return CheckpointCommitted(
        launch_id=launch_id,
        ref=ref,
        cursor=SAMPLES_PER_STEP * ref.step,
        epoch=0,
        trigger="interval",
        total_bytes=32,
        written_bytes=32,
        blocking_s=0.1,
        metrics={"loss": 5.0 / ref.step},
    )


def last_word(rank: int, reason: str, said: str, at: datetime, **more: Any) -> LastWord:
    """Return what a rank writes down as it fails; said: "package.Type: message"."""
    exception, _, message = said.partition(": ")
    return LastWord(
        rank=rank,
        reason=reason,
        exception=exception,
        message=message,
        traceback_tail=f"Traceback (most recent call last):\n  …\n{said}\n",
        step=more.pop("step", None),
        at=format_time(at),
        **more,
    )


def exited(rank: int, code: int, *, log: str = "") -> RankEnd:
    """Return a rank that ended with an exit code."""
    return RankEnd(rank=rank, exit_code=code, log_tail=log)


def killed(rank: int, signal: int = 9, **more: Any) -> RankEnd:
    """Return a rank that a signal ended."""
    return RankEnd(rank=rank, signal=signal, **more)


def unseen(rank: int) -> RankEnd:
    """Return a rank of whose end nobody knows: its node cannot be reached."""
    return RankEnd(rank=rank)


def condition(now: datetime, type_: str, reason: str, message: str, **more: Any) -> Condition:
    """Return what a control plane, or the supervisor, said just after `now`."""
    at = format_time(now + timedelta(seconds=1))
    fields = {"source": "kubernetes", **more}
    return Condition(type=type_, reason=reason, message=message, at=at, **fields)
