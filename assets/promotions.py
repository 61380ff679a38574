"""The promotions asset: a window on which checkpoints were given an alias.

Nothing computes it: a promotion is a record in a run's track, and run_evals tells Dagster of those
that it decides.
"""

from dagster import AssetSpec

from tracks_dagster.track import names

promotions = AssetSpec(
    key=names.PROMOTIONS,
    deps=[names.EVAL_PARTITIONS],
    group_name="evaluation",
    kinds={"pytorch"},
    owners=["team:training"],
    description=(
        "Checkpoints that were given an alias, the newest event last: manifest sha256, the eval "
        "and its metrics, the threshold, and who decided. A refused promotion is an observation "
        "that says what stood against it. Never red. To promote by hand use `tracks promote "
        'RUN@STEP --alias NAME --why "…"`; who holds an alias now is the ledger\'s to tell.'
    ),
)
