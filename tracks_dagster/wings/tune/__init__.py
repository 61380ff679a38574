"""Search under a budget, by command: declare a study, follow it, list what there is."""

from tracks_dagster.wing import Command, Wing

WING = Wing(
    commands={
        "tune": Command(
            module="edge.tune",
            summary="Search a project's config for the best metric, under a budget.",
            group="Start",
            after="run",
        ),
        "studies": Command(
            module="edge.studies",
            summary="Studies: their best, what runs, what was stopped and why.",
            group="Start",
            after="tune",
        ),
    }
)
