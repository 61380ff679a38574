"""Tries things out: a policy over past failures, a trainer against faults, a step's cost."""

from tracks_dagster.wing import Command, Wing

WING = Wing(
    commands={
        "conform": Command(
            module="edge.conform",
            summary="Certify a trainer: interrupt it, resume it, compare.",
            group="Before a full run",
            after="canary",
        ),
        "drill": Command(
            module="edge.drill",
            summary="Play faults, and score what came of each.",
            group="Before a full run",
            after="conform",
        ),
        "simulate": Command(
            module="edge.simulate",
            summary="Play another retry policy over past failures.",
            group="Reasons and retries",
            after="policy",
        ),
        "size": Command(
            module="edge.size",
            summary="The memory of a step, and the largest micro-batch that fits.",
            group="Compare and count",
            after="slo",
        ),
        "profile": Command(
            module="edge.profile",
            summary="What steps take, what the whole run will, and more devices.",
            group="Compare and count",
            after="size",
        ),
    },
    definitions=("edge.weekly_drills",),
)
