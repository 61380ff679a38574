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
    AssetRecordsFilter,
    DagsterInstance,
    ResourceParam,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from tracks_dagster.defs.site import Site
from tracks_dagster.review.effects.metadata import files_metadata
from tracks_dagster.track import names
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wiring import App

Event = AssetMaterialization | AssetObservation | AssetCheckEvaluation

TRACKS_MAX = 20  # datasets that one tick shows; the next one goes on
EVENTS_MAX = 200  # of a dataset, the newest, that a tick looks for what was shown before
_HEADS = (
    "select d.dataset as dataset, c.seq as seq from datasets d "
    "join track_cursors c on c.track = 'datasets/' || d.dataset where d.kind = 'files' "
    "order by d.dataset"
)


def show_datasets(site: Site) -> SensorDefinition:
    """Return the sensor."""

    def show_datasets(context: SensorEvaluationContext, app: ResourceParam[App]) -> SensorResult:
        return _tick(site, context, app)

    return sensor(
        name=site.name(names.SHOW_DATASETS),
        minimum_interval_seconds=site.every_s(),
        default_status=site.sensor_status,
        description=(
            "Shows datasets of one's own, which `tracks snapshots add` made: a partition of the asset "
            "datasets each, with a materialization for every snapshot. Off: they are used "
            "nevertheless, and shown once it is on."
        ),
    )(site.body(show_datasets))


def _tick(site: Site, context: SensorEvaluationContext, app: App) -> SensorResult:
    """Report what is new since the cursor: a JSON object from dataset to the seq that was shown."""
    partitions = site.name(names.DATASET_PARTITIONS)
    shown = _cursor(context.cursor)
    heads: Mapping[str, int] = {row["dataset"]: row["seq"] for row in app.ledger.query(_HEADS)}
    new = [name for name, seq in heads.items() if seq > shown.get(name, -1)]
    done: list[str] = []
    events: list[Event] = []
    problems: list[str] = []
    for name in new:
        if len(done) == TRACKS_MAX:
            break
        try:
            state = app.tracks.find_dataset(name)
            if state is not None:
                for asset, partition in _places(site, name):
                    there = _shown(context.instance, asset, partition)
                    found = _events(asset, partition, state, after=shown.get(name, -1))
                    events += (event for what, event in found if what not in there)
                shown[name] = state.head.seq
                done.append(name)
        except Exception as error:  # noqa: BLE001 - of that dataset alone
            problems.append(app.redact(f"{name}: {problem_of(error)}"))
    for problem in problems:
        context.log.warning(problem)
    context.update_cursor(json.dumps(shown))
    return SensorResult(
        skip_reason="; ".join(problems)
        or (f"shown: {', '.join(done)}" if done else "no dataset has anything new"),
        dynamic_partitions_requests=[AddDynamicPartitionsRequest(partitions, done)],
        asset_events=events,
    )


def _cursor(text: str | None) -> dict[str, int]:
    """Return what was shown; nothing where that cannot be read: then Dagster is asked what it has."""
    try:
        return {str(name): int(seq) for name, seq in parse_json(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _places(site: Site, dataset: str) -> Iterator[tuple[AssetKey, str | None]]:
    """Yield the assets that show a dataset, each with the partition that does."""
    yield site.key(names.DATASET_PARTITIONS), dataset
    if dataset in site.own_datasets:
        yield site.dataset_key(dataset), None


def _shown(instance: DagsterInstance, asset: AssetKey, partition: str | None) -> frozenset[str]:
    """Return what Dagster shows of a dataset, by what `_events` calls it.

    Where Dagster's storage was busy, a tick's events were stored and its cursor was not.
    """
    of_it = AssetRecordsFilter(asset_key=asset, asset_partitions=partition and [partition])
    made = instance.fetch_materializations(of_it, limit=EVENTS_MAX).records
    seen = instance.fetch_observations(of_it, limit=EVENTS_MAX).records
    snapshots = (
        (each.asset_materialization.tags or {}).get(names.TAG_DATA_VERSION, "")
        for each in made
        if each.asset_materialization is not None
    )
    records = (
        str(each.asset_observation.metadata["record"].value)
        for each in seen
        if each.asset_observation is not None and "record" in each.asset_observation.metadata
    )
    return frozenset((*snapshots, *records))


def _events(
    asset: AssetKey, partition: str | None, state: DatasetState, *, after: int
) -> Iterator[tuple[str, Event]]:
    """Yield what happened to a dataset after that record, each with what tells it from the others: the
    id of a snapshot, or the number of a record."""
    dataset = state.declared.dataset
    for snapshot in state.snapshots:
        body = snapshot.body
        # A Dagster run has shown its own.
        if snapshot.seq > after and body.dagster_run_id is None:
            materialization = AssetMaterialization(
                asset_key=asset,
                partition=partition,
                metadata=files_metadata(body),
                tags={names.TAG_DATA_VERSION: body.snapshot_id},
            )
            # Without the partition: Dagster's storage takes one evaluation of a partition outside
            # of its runs and refuses the next, which would fail this tick again and again.
            check = AssetCheckEvaluation(
                asset_key=asset,
                check_name=names.OWN_CHECKS,
                passed=True,
                severity=AssetCheckSeverity.ERROR,
                description=f"{dataset}: {len(body.checks)} checks passed",
                metadata={"dataset": dataset, "checked": list(body.checks)},
            )
            yield body.snapshot_id, materialization
            yield body.snapshot_id, check
        quarantine = snapshot.quarantine
        if quarantine is not None and quarantine.seq > after:
            yield (
                str(quarantine.seq),
                AssetObservation(
                    asset_key=asset,
                    partition=partition,
                    description=f"Snapshot {body.snapshot_id[:12]} is quarantined: "
                    f"{snapshot.quarantined_why}",
                    metadata={
                        "snapshot_id": body.snapshot_id,
                        "quarantined": True,
                        "record": quarantine.seq,
                    },
                ),
            )
