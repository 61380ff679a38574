"""What Dagster's UI shows of a committed checkpoint, no matter who reports it.

A checkpoint is real because its record is in the track. The report comes after, so one that is lost or
repeated changes nothing but a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracks_dagster.ledger.facts.checkpoint import CHECKPOINT, partition_key
from tracks_dagster.ledger.facts.fact import shown
from tracks_dagster.track import names
from tracks_dagster.track.bodies import TimeSpent
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.accounting import cursor_from
from tracks_dagster.track.states.run_state import CheckpointState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """One checkpoint to report: its partition key, its version and its metadata."""

    key: str
    manifest_sha256: str
    metadata: dict[str, Json]

    @property
    def event(self) -> dict[str, Any]:
        """The arguments of Dagster's `AssetMaterialization` beside its key, no matter who reports."""
        return {
            "partition": self.key,
            "metadata": self.metadata,
            "tags": {names.TAG_DATA_VERSION: self.manifest_sha256},
        }


def checkpoint_report(state: RunState, checkpoint: CheckpointState) -> CheckpointReport:
    """Return what Dagster shows of a commit of the run."""
    ref = checkpoint.ref
    rate = samples_per_s(state, checkpoint)
    return CheckpointReport(
        key=partition_key(ref),
        manifest_sha256=ref.manifest_sha256,
        metadata={
            **shown(CHECKPOINT, checkpoint),
            "look_up/where_it_comes_from": f"tracks lineage checkpoint:{ref.run_id}@{ref.step}",
            "look_up/what_rests_on_it": f"tracks blast checkpoint:{ref.run_id}@{ref.step}",
            **({} if rate is None else {"samples_per_s": rate}),
            **{f"metric_{name}": value for name, value in checkpoint.body.metrics.items()},
        },
    )


def samples_per_s(state: RunState, checkpoint: CheckpointState) -> float | None:
    """Return how many samples a second its attempt trained on since the commit before, else since its
    start; None where the order is the script's own or nobody measured.

    Time that saves and evaluations took is left out.
    """
    ref, body = checkpoint.ref, checkpoint.body
    attempt = state.attempt(ref.attempt_id)
    before = [
        each.body
        for each in state.checkpoints
        if each.ref.attempt_id == ref.attempt_id and each.ref.step < ref.step
    ]
    since = max(before, key=lambda each: each.ref.step, default=None)
    if attempt is None or body.spent is None or body.cursor is None:
        return None
    spent = since.spent if since is not None else TimeSpent()
    cursor = since.cursor if since is not None else cursor_from(attempt)
    if spent is None or cursor is None:
        return None
    seconds = body.spent.steps_s + body.spent.data_s - spent.steps_s - spent.data_s
    return round((body.cursor - cursor) / seconds, 3) if seconds > 0 else None
