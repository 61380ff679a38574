"""Shows in Dagster what studies have come to: the best trial of each, and its end."""

import json
from collections.abc import Mapping
from typing import Any

from dagster import (
    AddDynamicPartitionsRequest,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterInstance,
    EventLogRecord,
    MetadataValue,
    ResourceParam,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from tracks_dagster.defs.site import Site
from tracks_dagster.review.effects.explain.run import attempt_address
from tracks_dagster.review.effects.metadata import study_lineage, study_metadata
from tracks_dagster.settings import find_board_url, find_ui_url
from tracks_dagster.track import names
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wiring import App

Event = AssetMaterialization | AssetObservation

LOOKS_MAX = 20  # studies that one tick looks at; the next one goes on
STUDIES_MAX = 500  # the newest, that are shown
_HEADS = (
    "select s.study, c.seq from studies s join track_cursors c on c.track = 'studies/' || s.study "
    "order by s.declared_at desc, s.study limit :limit"
)
# What tells two events of a study from each other; the rest of an event is as of its moment.
_IDENTITY = ("state", "finished_at", "best_run_id", "manifest_sha256")


def show_studies(site: Site) -> SensorDefinition:
    """Return the sensor."""

    def show_studies(context: SensorEvaluationContext, app: ResourceParam[App]) -> SensorResult:
        return _tick(site, context, app)

    return sensor(
        name=site.name(names.SHOW_STUDIES),
        minimum_interval_seconds=site.every_s(),
        default_status=site.sensor_status,
        description=(
            "Shows studies, which `tracks tune` declares: a partition of the asset studies each, "
            "materialized where its best trial is another one, and at its end. Off: trials train "
            "nevertheless, and what a study has come to is shown once it is on."
        ),
    )(site.body(show_studies))


def _tick(site: Site, context: SensorEvaluationContext, app: App) -> SensorResult:
    """Report what is new since the cursor: the seq that was looked at of each study, and the hour.

    Once an hour Dagster is asked again whether it has what it was given.
    """
    heads = {row["study"]: row["seq"] for row in app.ledger.query(_HEADS, {"limit": STUDIES_MAX})}
    hour = f"{app.now():%Y-%m-%dT%H}"
    looked = _cursor(context.cursor, hour)
    new = [name for name, seq in heads.items() if seq > looked.get(name, -1)][:LOOKS_MAX]
    events: list[Event] = []
    problems: list[str] = []
    for name in new:
        looked[name] = heads[name]  # one that cannot be read is looked at again within the hour
        try:
            event = _event(site, app, app.tracks.study(name))
            if event is not None and _identity(event) != _newest(context.instance, event):
                events.append(event)
        except Exception as error:  # noqa: BLE001 - of that study alone
            problems.append(app.redact(f"{name}: {problem_of(error)}"))
    for problem in problems:
        context.log.warning(problem)
    context.update_cursor(json.dumps({"hour": hour, "looked": looked}))
    partitions = site.name(names.STUDY_PARTITIONS)
    return SensorResult(
        skip_reason="; ".join(problems)
        or (f"looked at: {', '.join(new)}" if new else "no study has anything new"),
        dynamic_partitions_requests=[AddDynamicPartitionsRequest(partitions, new)],
        asset_events=events,
    )


def _cursor(text: str | None, hour: str) -> dict[str, int]:
    """Return what was looked at in this hour; nothing where that cannot be read."""
    try:
        found = parse_json(text or "{}")
        looked = found["looked"] if found["hour"] == hour else {}
        return {str(name): int(seq) for name, seq in looked.items()}
    except (ValueError, TypeError, AttributeError, KeyError):
        return {}


def _event(site: Site, app: App, study: StudyState) -> Event | None:
    """Return what Dagster shows of a study now; None while nothing was measured."""
    key, partition = site.key(names.STUDY_PARTITIONS), study.declared.study
    metadata: dict[str, Any] = study_metadata(study)
    if board_url := find_board_url(app.settings):
        metadata["look_up/live"] = MetadataValue.url(f"{board_url}/studies/{partition}")
    if "manifest_sha256" not in metadata:
        if study.finished is None:
            return None
        return AssetObservation(asset_key=key, partition=partition, metadata=metadata)
    metadata["comes_from"] = MetadataValue.md(study_lineage(study))
    run, ui_url = app.tracks.find_run(metadata["best_run_id"]), find_ui_url(app.settings)
    attempt = None if run is None else run.attempt(metadata["attempt"])
    if ui_url and run is not None and attempt is not None:
        address = attempt_address(run.run_id, attempt, ui_url, app.settings.prefix)
        metadata["look_up/receipt"] = MetadataValue.url(address)
    return AssetMaterialization(
        asset_key=key,
        partition=partition,
        metadata=metadata,
        tags={names.TAG_DATA_VERSION: metadata["manifest_sha256"]},
    )


def _newest(instance: DagsterInstance, event: Event) -> tuple[Any, ...] | None:
    """Return the identity of the newest event that Dagster has of a study; None where it has none."""
    of_it = AssetRecordsFilter(asset_key=event.asset_key, asset_partitions=[str(event.partition)])
    made = instance.fetch_materializations(of_it, limit=1).records
    seen = instance.fetch_observations(of_it, limit=1).records
    newest = max((*made, *seen), key=lambda each: each.storage_id, default=None)
    there = None if newest is None else _of(newest)
    return None if there is None else _identity(there)


def _of(record: EventLogRecord) -> Event | None:
    return record.asset_materialization or record.asset_observation


def _identity(event: Event) -> tuple[Any, ...]:
    metadata: Mapping[str, MetadataValue[Any]] = event.metadata
    return tuple(metadata[name].value if name in metadata else None for name in _IDENTITY)
