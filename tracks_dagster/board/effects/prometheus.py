"""The board's gauges in the format of Prometheus, by its own client: the extra `metrics`."""

from __future__ import annotations

from collections.abc import Iterable

from tracks_dagster.board.gauges import Gauge
from tracks_dagster.track.errors import InvalidInput

MISSING = (
    "There is no /metrics here: the package prometheus-client is not installed. Install it beside "
    "tracks_dagster (`pip install prometheus-client`, or the extra `metrics`), then start the board "
    "again."
)


class NoClient(InvalidInput):
    """Prometheus' client is not installed."""


def exposition(gauges: Iterable[Gauge]) -> tuple[bytes, str]:
    """Return the text of the gauges and its content type; raises NoClient."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client import Gauge as Exposed
    except ImportError as error:
        raise NoClient(MISSING) from error

    registry = CollectorRegistry()
    for each in gauges:
        exposed = Exposed(each.name, each.meaning, each.labels, registry=registry)
        for labels, value in each.samples:
            (exposed.labels(*labels) if labels else exposed).set(value)
    return generate_latest(registry), CONTENT_TYPE_LATEST
