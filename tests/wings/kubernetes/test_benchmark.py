"""The benchmark of gangs on Kubernetes runs, in small, and counts what the launcher promises."""

from __future__ import annotations

import pytest

from benchmarks import kubernetes, kubernetes_ticks
from benchmarks.kubernetes_gangs import Scale
from benchmarks.kubernetes_ticks import ITSELF, OTHERS

pytestmark = pytest.mark.full

SMALL = Scale(
    gangs=8, pods=3, samples=(2,), large_pods=5, late=2, ending=0.5, window_s=1.0, log_bytes=4096
)


def test_gangs_are_watched_glanced_at_and_swept_for_what_the_launcher_says() -> None:
    figures = kubernetes.gang_figures(SMALL)
    assert figures["start_requests_per_gang"] in (3.0, 4.0)
    assert figures["sensor_tick_requests @6 gangs"] == 1.0
    assert figures["sweep_requests @6 gangs"] == 2.0
    assert figures["open_watches_of_8_gangs"] == 24.0
    assert figures["events_kb_per_watcher_per_start_of_another @2 gangs"] == 0.0
    idle, peak = (figures[f"supervisor_mib @one gang, {at}"] for at in ("idle", "peak"))
    assert 0.0 < idle <= peak


def test_a_tick_and_a_decision_ask_for_no_more_beside_closed_attempts() -> None:
    figures = kubernetes_ticks.figures(closed=(0, 20), own=(0, 10))
    for whose in (OTHERS, ITSELF):
        for what in ("store_requests", "queries", "dagster_lookups", "api_requests"):
            assert figures[f"tick_growth by {whose}, {what}"] == 1.0
            assert figures[f"decision_growth by {whose}, {what}"] <= 1.0
