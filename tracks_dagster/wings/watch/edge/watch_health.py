"""The sensor that records alerts of runs that train."""

from dagster import SensorDefinition

from tracks_dagster.defs.sensors.deciders import decider_sensor
from tracks_dagster.defs.site import Site
from tracks_dagster.wings.watch.health.effects.watch import WatchHealth


def definitions(site: Site) -> list[SensorDefinition]:
    """Return the sensor of this module."""
    return [
        decider_sensor(
            site,
            WatchHealth(),
            every_s=15,
            idle="no alert begins or ends",
            description=(
                "Judges every run that goes on by its journal and its record, and records an alert "
                "when a rule begins to hold, and that it is over when it no longer does. Changes "
                "nothing of a run. Off: `tracks health` and the board still judge, and no alert "
                "of these rules is recorded."
            ),
        ),
    ]
