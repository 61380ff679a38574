"""Datasets of a person's own files: a partition each, and a materialization for each snapshot.

`tracks snapshots add` makes them too, without Dagster; the sensor show_datasets shows those here.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    Config,
    DataVersion,
    Failure,
    MaterializeResult,
    ResourceParam,
    asset,
)
from pydantic import Field

from tracks_dagster.data.effects.own_checks import read_checks
from tracks_dagster.data.effects.snapshots import Added, add_files, checks_in_force
from tracks_dagster.defs.site import DatasetSource, Site
from tracks_dagster.review.effects.metadata import files_metadata
from tracks_dagster.track import names
from tracks_dagster.track.errors import DataRejected, InvalidInput
from tracks_dagster.track.states.dataset_state import SnapshotState
from tracks_dagster.wiring import App


class DatasetConfig(Config):
    """What may be given in the launchpad; what is left out is as the deployment has it, else as in the
    newest snapshot."""

    source: str | None = Field(
        default=None,
        description="A path on the machine that runs this, or s3://bucket/prefix.",
    )
    in_place: bool | None = Field(
        default=None,
        description="Record hashes and leave the files where they are; false copies them.",
    )
    checks: str | None = Field(
        default=None,
        description="Path of a Python file of checks; see `tracks snapshots add --help`.",
    )


def datasets(site: Site) -> AssetsDefinition:
    """Return the asset of all datasets of files, a partition each."""

    def datasets(
        context: AssetExecutionContext, config: DatasetConfig, app: ResourceParam[App]
    ) -> Iterator[MaterializeResult[None] | AssetCheckResult]:
        """Datasets of one's own: a partition is a dataset, each of its materializations a snapshot.

        Materialize a partition to freeze the same files again, as they are now, after the same checks;
        the same files find the snapshot that is there. The launchpad takes another source, and so adds
        a new dataset: add a partition with its name first. `tracks snapshots add NAME PATH` does the
        same in a terminal and shows here within seconds. When it is red, correct what the error or the
        check names and materialize it again; training goes on with the snapshot before.
        """
        dataset = context.partition_key
        config = _filled_in(config, site.sources.get(dataset))
        also = {"asset_key": site.dataset_key(dataset)} if dataset in site.own_datasets else None
        yield from _made(context, config, app, dataset, also=also)

    return asset(
        key=site.key(names.DATASET_PARTITIONS),
        partitions_def=site.partitions(names.DATASET_PARTITIONS),
        group_name="data",
        kinds={"python"},
        owners=["team:data"],
        code_version="1",
        check_specs=[_own_checks(site.key(names.DATASET_PARTITIONS))],
        output_required=False,  # bad files: the check fails and there is no materialization
    )(site.body(datasets))


def dataset_of_own(site: Site, dataset: str) -> AssetsDefinition:
    """Return the asset of one dataset that a project names: an edge of the graph from what it is made
    of to what is trained on it."""
    key = site.key(names.DATASET_PARTITIONS, dataset)
    source = site.sources.get(dataset)

    def made(
        context: AssetExecutionContext, config: DatasetConfig, app: ResourceParam[App]
    ) -> Iterator[MaterializeResult[None] | AssetCheckResult]:
        also = {"asset_key": site.key(names.DATASET_PARTITIONS), "partition": dataset}
        yield from _made(context, _filled_in(config, source), app, dataset, also=also)

    return asset(
        key=key,
        deps=[] if source is None else list(source.deps),
        automation_condition=None if source is None else source.automation,
        group_name="data",
        kinds={"python"},
        owners=["team:data"],
        code_version="1",
        description=(
            f"The dataset {dataset}: each materialization is a snapshot of its files.\n\n"
            "Materialize it to freeze the same files again, as they are now, after the same checks; "
            f"the launchpad takes another source. `tracks snapshots add {dataset} PATH` does the same "
            "in a terminal and shows here within seconds. When it is red, correct what the error or "
            "the check names; training goes on with the snapshot before."
        ),
        check_specs=[_own_checks(key)],
        output_required=False,  # bad files: the check fails and there is no materialization
    )(site.body(made))


def _filled_in(config: DatasetConfig, source: DatasetSource | None) -> DatasetConfig:
    """Return what the launchpad gave, and of the rest what the deployment says."""
    if source is None:
        return config
    of_source: dict[str, Any] = {"source": str(source.path), "in_place": source.in_place}
    if source.checks is not None:
        of_source["checks"] = str(source.checks)
    return DatasetConfig(**{**of_source, **config.model_dump(exclude_none=True)})


def _own_checks(key: AssetKey) -> AssetCheckSpec:
    return AssetCheckSpec(
        names.OWN_CHECKS,
        asset=key,
        blocking=True,
        description="The checks of one's own that the files had to pass. When this is red nothing was "
        "recorded, the snapshot before stays in use, and the description names each failure.",
    )


def _made(
    context: AssetExecutionContext,
    config: DatasetConfig,
    app: App,
    dataset: str,
    *,
    also: Mapping[str, Any] | None,
) -> Iterator[MaterializeResult[None] | AssetCheckResult]:
    """Freeze the files. also: another asset that shows the snapshot."""
    try:
        added = _freeze(app, dataset, config, context.run.run_id)
    except DataRejected as error:
        yield AssetCheckResult(
            check_name=names.OWN_CHECKS, passed=False, description=app.redact(str(error))
        )
    except InvalidInput as error:
        raise Failure(app.redact(str(error)), allow_retries=False) from error
    else:
        checked = AssetCheckResult(
            check_name=names.OWN_CHECKS,
            passed=True,
            metadata={"checked": list(added.passed)},
        )
        metadata = {
            **files_metadata(added.body),
            "written_bytes": added.written_bytes,
            "was_there_already": not added.is_new,
        }
        version = added.body.snapshot_id
        if also is not None:
            tags = {names.TAG_DATA_VERSION: version}
            context.log_event(AssetMaterialization(**also, metadata=metadata, tags=tags))
        yield MaterializeResult(
            data_version=DataVersion(version), metadata=metadata, check_results=[checked]
        )


def _freeze(app: App, dataset: str, config: DatasetConfig, dagster_run_id: str) -> Added:
    state = app.tracks.find_dataset(dataset)
    before: SnapshotState | None = state.snapshots[-1] if state and state.snapshots else None
    source = config.source or (before.body.source if before else None)
    if source is None:
        raise InvalidInput(
            f"There is no dataset {dataset!r} yet; give its `source` in the launchpad."
        )
    checks = (
        checks_in_force(app.tracks, dataset)
        if config.checks is None
        else read_checks(Path(config.checks))
    )
    was_in_place = before is not None and before.body.in_place is not None
    return add_files(
        app.tracks,
        app.datasets,
        dataset,
        source,
        in_place=was_in_place if config.in_place is None else config.in_place,
        cache=app.settings.cache,
        checks=checks,
        dagster_run_id=dagster_run_id,
    )
