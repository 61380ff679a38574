"""After a reboot or an outage: what lives, and what starts first."""

from tracks_dagster.wing import Command, Wing

WING = Wing(
    commands={
        "triage": Command(
            module="edge.triage",
            summary="After a reboot or an outage: what lives, what to start first.",
            group="Woken at night",
            after="status",
        )
    }
)
