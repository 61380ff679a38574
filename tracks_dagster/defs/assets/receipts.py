"""The receipts asset: all that is recorded of an attempt, one partition for each that ended.

The Dagster run that saw the end materializes it, else the watcher. Materializing it by hand reads the
record again.
"""

from collections.abc import Iterator

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    Failure,
    MaterializeResult,
    MetadataValue,
    ResourceParam,
    asset,
)

from tracks_dagster.attempts.effects.closing import find_attempt
from tracks_dagster.defs.assets.attempts import ended_as_meant, ending_result, how_to_start
from tracks_dagster.defs.site import Site
from tracks_dagster.review.effects.metadata import Show, attempt_metadata
from tracks_dagster.settings import find_board_url
from tracks_dagster.track import names
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import AttemptRef, parse_attempt_key
from tracks_dagster.wiring import App

DESCRIPTION = f"""What is recorded of each attempt that ended: why, its loss, what it cost.

{{how_to_start}}

What is recorded of an attempt that ended, however it ended: why, the run's loss as a picture, what it
cost, which steps it ran, what was decided, on which data, where, with which config. A partition has the
name of its attempt, `RUN/aNN`.

Each attempt has one within seconds of its end, also one that failed and one whose Dagster run died. The
check `{names.ENDED_AS_MEANT}` is red where something failed, and a warning where its place was taken
away. Never red itself. Materialize a partition to read the record again, for example after
`tracks reclassify`; `tracks explain RUN/aNN --full` has everything.
"""


def receipts(site: Site) -> AssetsDefinition:
    """Return the asset."""
    return asset(
        key=site.key(names.RECEIPTS),
        partitions_def=site.partitions(names.ATTEMPT_PARTITIONS),
        deps=[site.key(names.ATTEMPT_PARTITIONS)],
        check_specs=[ended_as_meant(site, names.RECEIPTS)],
        group_name="training",
        kinds={"python"},
        owners=["team:training"],
        code_version=names.RECEIPT_CODE_VERSION,
        description=DESCRIPTION.format(how_to_start=how_to_start(site.prefix)),
    )(site.body(_receipts))


def _receipts(
    context: AssetExecutionContext, app: ResourceParam[App]
) -> Iterator[MaterializeResult[None]]:
    """Read the receipt of one attempt that ended."""
    try:
        run_id, attempt_id = parse_attempt_key(context.partition_key)
        _, attempt = find_attempt(app.tracks, AttemptRef(run_id, attempt_id))
    except InvalidInput as error:
        raise Failure(str(error), allow_retries=False) from error
    if attempt.reason is None:
        raise Failure(
            f"{context.partition_key} has not ended, so it has no receipt yet; it gets one by itself. "
            f"`tracks explain {context.partition_key}` says what is known.",
            allow_retries=False,
        )
    yield MaterializeResult(
        metadata=attempt_metadata(
            app.tracks,
            run_id,
            attempt_id,
            Show.by(MetadataValue, app.settings.ui_url, find_board_url(app.settings)),
            cache=app.settings.cache,
        ),
        check_results=[ending_result(attempt)],
    )
