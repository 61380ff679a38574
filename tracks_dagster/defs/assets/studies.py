"""The studies asset: a partition each, which shows its best trial and where that comes from."""

from dagster import AssetSpec

from tracks_dagster.defs.site import Site
from tracks_dagster.track import names


def studies(site: Site) -> AssetSpec:
    """Return the asset. Nothing computes it: what a study has come to is in its track, and show_studies
    reports it to Dagster."""
    return AssetSpec(
        key=site.key(names.STUDY_PARTITIONS),
        partitions_def=site.partitions(names.STUDY_PARTITIONS),
        deps=[site.shown_after(names.CHECKPOINT_PARTITIONS)],
        group_name="studies",
        kinds={"pytorch"},
        owners=["team:training"],
        description=(
            "Searches of a project's config, a partition each: `tracks tune` declares one. A "
            "materialization is its best trial so far, again where another is better and at its end: "
            "the value, the config, the manifest sha256 of its checkpoint, the runs that this comes "
            "from, and what trains now. A study without any value is an observation. Never red: why "
            "trials failed or were stopped is on the board, and `tracks studies STUDY` prints it. "
            "Trials are training runs, so they have no partition here."
        ),
    )
