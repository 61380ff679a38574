"""Sends curves to the trackers of trackers.yaml; without such a file there is no such sensor."""

from dagster import (
    ResourceParam,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from tracks_dagster.defs.site import Site
from tracks_dagster.ledger.effects.following import StoredCursors
from tracks_dagster.ledger.effects.ticks import TickPart, run_parts
from tracks_dagster.track import names
from tracks_dagster.wings.watch.edge.tracker_settings import asks_for_trackers, load_trackers
from tracks_dagster.wings.watch.effects.trackers.exporting import Exported
from tracks_dagster.wings.watch.effects.trackers.following import send_what_is_due
from tracks_dagster.wiring import App

EVERY_S = 30
LINES_MAX = 20  # that a tick's page shows
_CURSORS: dict[str, StoredCursors] = {}  # by store: each asks for a run's cursor once a process


def definitions(site: Site) -> list[SensorDefinition]:
    """Return the sensor, where somebody asked for it: in code, or by a file of trackers."""
    is_asked = asks_for_trackers() if site.exports_curves is None else site.exports_curves
    return [export_curves(site)] if is_asked else []


def export_curves(site: Site) -> SensorDefinition:
    """Return the sensor."""
    return sensor(
        name=site.name(names.EXPORT_CURVES),
        minimum_interval_seconds=site.every_s(EVERY_S),
        default_status=site.sensor_status,
        description=(
            "Sends the kept steps of every run, up to its newest commit, to the trackers of "
            "trackers.yaml. Off: they stay as they are, and get what they lack once it is on."
        ),
    )(site.body(_export_curves))


def _export_curves(context: SensorEvaluationContext, app: ResourceParam[App]) -> SkipReason:
    """Bring each tracker up to date; one that cannot be reached gets it at a later tick."""
    trackers = load_trackers(app.settings)
    part = TickPart(
        name="export",
        work=lambda after: send_what_is_due(
            app.tracks,
            app.ledger,
            _CURSORS.setdefault(app.store.url, StoredCursors(app.store)),
            trackers,
            cache=app.settings.cache,
            after=after,
        ),
    )
    ticks, cursor = run_parts((part,), context.cursor, app.now())
    tick = ticks[part.name]
    for problem in tick.problems:
        context.log.warning(app.redact(problem))
    context.update_cursor(cursor)
    lines = [_line(each) for each in tick.done[:LINES_MAX]]
    words = "; ".join([*tick.problems[:LINES_MAX], *lines]) or "no run has anything new"
    return SkipReason(app.redact(words))


def _line(done: Exported) -> str:
    back = "" if done.rolled_back is None else f" ({done.rolled_back})"
    return (
        f"{done.run_id}: {done.words} to {done.tracker}, up to {done.to_step}{back}{done.without}"
    )
