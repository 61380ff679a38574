"""Shows in Dagster the snapshots of files that were made without it, by `tracks snapshots add`."""

import json
from collections.abc import Iterator, Mapping

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DefaultSensorStatus,
    ResourceParam,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.review.effects.metadata import files_metadata
from tracks_dagster.track import names
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.wiring import App

Event = AssetMaterialization | AssetObservation | AssetCheckEvaluation

ASSET = AssetKey(names.DATASET_PARTITIONS)
TRACKS_MAX = 20  # datasets that one tick shows; the next one goes on
_HEADS = (
    "select d.dataset as dataset, c.seq as seq from datasets d "
    "join track_cursors c on c.track = 'datasets/' || d.dataset where d.kind = 'files' "
    "order by d.dataset"
)


@sensor(
    name=names.SHOW_DATASETS,
    minimum_interval_seconds=5,
    default_status=DefaultSensorStatus.RUNNING,
    description=(
        "Shows datasets of one's own, which `tracks snapshots add` made: a partition of the asset "
        "datasets each, with a materialization for every snapshot. Off: they are used nevertheless, "
        "and shown once it is on."
    ),
)
@without_secrets
def show_datasets(context: SensorEvaluationContext, app: ResourceParam[App]) -> SensorResult:
    """Report what is new since the cursor: a JSON object from dataset to the seq that was shown."""
    shown: dict[str, int] = json.loads(context.cursor or "{}")
    heads: Mapping[str, int] = {row["dataset"]: row["seq"] for row in app.ledger.query(_HEADS)}
    new = [name for name, seq in heads.items() if seq > shown.get(name, -1)][:TRACKS_MAX]
    events: list[Event] = []
    for name in new:
        state = app.tracks.find_dataset(name)
        if state is not None:
            events += _events(state, after=shown.get(name, -1))
            shown[name] = state.head.seq
    context.update_cursor(json.dumps(shown))
    return SensorResult(
        skip_reason=f"shown: {', '.join(new)}" if new else "no dataset has anything new",
        dynamic_partitions_requests=[AddDynamicPartitionsRequest(names.DATASET_PARTITIONS, new)],
        asset_events=events,
    )


def _events(state: DatasetState, *, after: int) -> Iterator[Event]:
    """Yield what happened to a dataset after that record."""
    dataset = state.declared.dataset
    for snapshot in state.snapshots:
        body = snapshot.body
        # A Dagster run has shown its own.
        if snapshot.seq > after and body.dagster_run_id is None:
            yield AssetMaterialization(
                asset_key=ASSET,
                partition=dataset,
                metadata=files_metadata(body),
                tags={names.TAG_DATA_VERSION: body.snapshot_id},
            )
            # Without the partition: Dagster's storage takes one evaluation of a partition outside
            # of its runs and refuses the next, which would fail this tick again and again.
            yield AssetCheckEvaluation(
                asset_key=ASSET,
                check_name=names.OWN_CHECKS,
                passed=True,
                severity=AssetCheckSeverity.ERROR,
                description=f"{dataset}: {len(body.checks)} checks passed",
                metadata={"dataset": dataset, "checked": list(body.checks)},
            )
        if snapshot.quarantine is not None and snapshot.quarantine.seq > after:
            yield AssetObservation(
                asset_key=ASSET,
                partition=dataset,
                description=f"Snapshot {body.snapshot_id[:12]} is quarantined: "
                f"{snapshot.quarantined_why}",
                metadata={"snapshot_id": body.snapshot_id, "quarantined": True},
            )
