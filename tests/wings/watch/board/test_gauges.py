"""What Prometheus is given: the dashboard's names exist, and labels stay few."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tracks_dagster.wings.watch.board.effects.app import exposition
from tracks_dagster.wings.watch.board.gauges import RUN_LABELS, Gauge, gauges

DASHBOARD = Path(__file__).parents[4] / "docs/grafana.json"


def test_the_dashboard_asks_for_gauges_that_there_are_and_for_all_of_them() -> None:
    text = DASHBOARD.read_text(encoding="utf-8")
    json.loads(text)
    asked = set(re.findall(r"tracks_[a-z_]+", text))
    assert asked == {each.name for each in gauges({})}


def test_a_gauge_is_of_a_run_and_of_nothing_that_grows() -> None:
    for each in gauges({}):
        assert each.labels in ((), RUN_LABELS, (*RUN_LABELS, "light"), (*RUN_LABELS, "severity"))


def test_a_running_run_that_was_not_read_is_open_and_unread() -> None:
    found = {
        each.name: each.samples for each in gauges({}, running=["a", "b"], problems={"b", "c"})
    }
    assert found["tracks_open_attempts"] == [((), 2.0)]
    assert found["tracks_runs_unread"] == [((), 3.0)]


def test_the_format_is_that_of_prometheus() -> None:
    pytest.importorskip("prometheus_client", reason="an extra")
    gauge = Gauge(name="tracks_x", meaning="a meaning", labels=("run",), samples=[(('a"b',), 1.5)])
    text, content_type = exposition([gauge])
    assert b'tracks_x{run="a\\"b"} 1.5' in text
    assert b"# HELP tracks_x a meaning" in text
    assert content_type.startswith("text/plain")
