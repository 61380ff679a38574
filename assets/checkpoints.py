"""The checkpoints asset: a window on what the tracks say was committed.

Nothing computes it: rank 0 commits a checkpoint in the track of its run, and whoever supervises the
attempt tells Dagster. Its partitions are registered as checkpoints appear.
"""

from dagster import AssetSpec, DynamicPartitionsDefinition

from assets.attempts import HOW_TO_START
from tracks_dagster.track import names

checkpoints = AssetSpec(
    key=names.CHECKPOINT_PARTITIONS,
    deps=[names.ATTEMPT_PARTITIONS],
    partitions_def=DynamicPartitionsDefinition(name=names.CHECKPOINT_PARTITIONS),
    group_name="training",
    kinds={"pytorch"},
    owners=["team:training"],
    description=(
        f"{HOW_TO_START}\n\n"
        "Every committed checkpoint: `RUN/aNN/step-STEP`. A checkpoint stands here after its commit "
        "record stands in the run's track, and only that record makes it real. Weights, optimizer, "
        "RNG and data cursor of one step, verified by hash whenever they are read. Never red: a "
        "save that failed leaves no checkpoint. `tracks checkpoints list RUN` shows what was "
        "superseded or quarantined since."
    ),
)
