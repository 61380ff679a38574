"""The four data snapshots as assets: checked, stored and committed by one service call each.

A snapshot's data version is its id, the sha256 of its manifest. Where the data comes from and what
its rows must be is `data.effects.datasets`'s to know.
"""

from collections.abc import Iterator
from pathlib import Path

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetsDefinition,
    Config,
    DataVersion,
    Failure,
    MaterializeResult,
    MetadataValue,
    ResourceParam,
    TableRecord,
    asset,
)
from pydantic import Field

from tracks_dagster.data.effects.snapshots import make_snapshot
from tracks_dagster.defs.site import Site
from tracks_dagster.track.bodies import SnapshotCommitted
from tracks_dagster.track.errors import DataRejected, InvalidInput
from tracks_dagster.track.names import snapshot_asset
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.wiring import App

CHECK = "rows_pass"
CHECK_DESCRIPTION = (
    "Every value is as the dataset's schema (pandera) wants it. When this is red nothing was stored, "
    "the snapshot before stays in use, and the metadata names the bad rows."
)
OPERATION = (
    " It changes when it is materialized and the data differs; the same data finds the same snapshot."
    " When it is red, correct what the run's error or the check's table names, and materialize it"
    " again; training continues with the snapshot before."
)


SHIPPED = {
    "aws-docs": (
        "English text to train the language model on: the documentation of AWS's services as botocore "
        "ships it, one document a service, 6 MB."
    ),
    "aws-docs-heldout": (
        "Documentation of AWS services that aws_docs does not hold, for the language model's evals."
    ),
    "flights": (
        "Flights that left New York in January to October 2013, one row a flight: what is known before "
        "landing, and whether it arrived 15 minutes late or more. Cancelled and diverted flights have "
        "no arrival delay and are left out."
    ),
    "flights-heldout": ("The flights of November and December 2013, for the classifier's evals."),
}


class SnapshotConfig(Config):
    """What may be given in the launchpad."""

    source: str | None = Field(
        default=None,
        description=(
            "Path of your own data on the machine that runs this: for text a UTF-8 file or a folder "
            "of .txt files, for flights a .csv or .parquet file. Empty: the data that ships."
        ),
    )


def snapshots(site: Site) -> list[AssetsDefinition]:
    """Return the assets of the datasets that ship."""
    return [_snapshot(site, dataset, words) for dataset, words in SHIPPED.items()]


def _snapshot(site: Site, dataset: str, description: str) -> AssetsDefinition:
    key = site.key(snapshot_asset(dataset))

    def snapshot(
        context: AssetExecutionContext, config: SnapshotConfig, app: ResourceParam[App]
    ) -> Iterator[MaterializeResult[None] | AssetCheckResult]:
        try:
            committed = make_snapshot(
                app.tracks,
                app.datasets,
                dataset,
                source=Path(config.source) if config.source else None,
                dagster_run_id=context.run.run_id,
            )
        except DataRejected as error:
            yield _failed_check(error, app.redact)
        except InvalidInput as error:
            raise Failure(str(error), allow_retries=False) from error
        else:
            yield _materialized(committed)

    return asset(
        key=key,
        group_name="data",
        kinds={"duckdb", "parquet"},
        owners=["team:data"],
        code_version="1",
        description=description + OPERATION,
        check_specs=[
            AssetCheckSpec(CHECK, asset=key, blocking=True, description=CHECK_DESCRIPTION)
        ],
        output_required=False,  # bad rows: the check fails and there is no materialization
    )(site.body(snapshot))


def _materialized(committed: SnapshotCommitted) -> MaterializeResult[None]:
    return MaterializeResult(
        data_version=DataVersion(committed.snapshot_id),
        metadata={
            "dagster/row_count": committed.row_count,
            "total_bytes": committed.total_bytes,
            "shard_count": committed.shard_count,
            "snapshot_id": committed.snapshot_id,
            "logical_sha256": committed.logical_sha256,
            "manifest_key": MetadataValue.path(committed.manifest_key),
            "source": committed.source,
            "look_up/what_rests_on_it": (
                f"tracks blast snapshot:{committed.dataset}@{committed.snapshot_id}"
            ),
        },
        check_results=[
            AssetCheckResult(
                check_name=CHECK, passed=True, metadata={"checked": list(committed.checks)}
            )
        ],
    )


def _failed_check(error: DataRejected, clean: Redact) -> AssetCheckResult:
    rows = [
        TableRecord(
            {"row": bad.row, "column": bad.column, "value": bad.value or "", "must be": bad.check}
        )
        for bad in error.bad_rows
    ]
    metadata: dict[str, MetadataValue] = {"bad_value_count": MetadataValue.int(error.bad_row_count)}
    if rows:
        metadata["bad_values"] = MetadataValue.table(rows)
    return AssetCheckResult(
        check_name=CHECK, passed=False, description=clean(str(error)), metadata=metadata
    )
