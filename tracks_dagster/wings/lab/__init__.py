"""Tries things out: a policy over past failures, a trainer against interruptions."""

from tracks_dagster.wing import Command, Wing

WING = Wing(
    commands={
        "conform": Command(
            module="edge.conform",
            summary="Certify a trainer: interrupt it, resume it, compare.",
            group="Before a full run",
            after="canary",
        ),
        "simulate": Command(
            module="edge.simulate",
            summary="Play another retry policy over past failures.",
            group="Reasons and retries",
            after="policy",
        ),
    }
)
