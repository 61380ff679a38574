"""Which of a run's metrics a page draws: many names are groups and pages, and only those are read."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.histories import History
from tests.visitors import Visitor
from tracks_dagster.curves.curve import TRAINING, Curves, Metric
from tracks_dagster.curves.effects.buckets import Buckets
from tracks_dagster.curves.effects.pixels import Pixels
from tracks_dagster.settings import Settings
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.journal_lines import METRICS_MAX, OWN, STEPS
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import format_time
from tracks_dagster.wings.watch.board.catalogue import GROUPS_MAX, PANELS_MAX, metric_page
from tracks_dagster.wings.watch.board.effects import sources
from tracks_dagster.wings.watch.board.effects.serving import guarded
from tracks_dagster.wings.watch.board.effects.side_by_side import Lines
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wiring import build


def metric(name: str) -> Metric:
    """Return a metric of a script."""
    return Metric(name=name, group=TRAINING, kind=STEPS, column=OWN + name)


MANY = [metric("accuracy"), metric("loss"), *(metric(f"layer/{n:03d}") for n in range(998))]


def test_a_few_metrics_are_one_page_without_choices() -> None:
    page = metric_page(MANY[:20])
    assert page.names[0] == "loss"
    assert (page.groups, page.pages, page.words) == ((), 1, "")


def test_many_metrics_are_grouped_by_their_prefix_and_paged() -> None:
    page = metric_page(MANY)
    assert len(page.names) == PANELS_MAX
    assert page.groups == (("layer", 998), ("training", 2))
    assert page.words == "1 to 24 of 1000"
    last = metric_page(MANY, page=999)
    assert last.page == last.pages - 1 == 41
    assert last.words == "985 to 1000 of 1000"
    layers = metric_page(MANY, "layer", 1)
    assert layers.names[0] == "layer/024"
    assert layers.words == "25 to 48 of 998"
    assert metric_page(MANY, "nonsense").total == 1000


def test_of_many_groups_the_largest_are_offered() -> None:
    metrics = [metric(f"g{n % 100}/x{n}") for n in range(1000)]
    assert len(metric_page(metrics).groups) == GROUPS_MAX


def test_of_ten_thousand_names_a_page_reads_what_it_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app, now = build(settings), datetime.now(UTC)
    history = History("wide", begin=now).declare().open().supervise().place().restore()
    names = [f"layer{number % 50}/x{number}" for number in range(10_000)]
    lines = [
        {"kind": "step", "t": format_time(now), "step": step, "loss": 1.0, "step_s": 0.4}
        | {"metrics": dict.fromkeys(names, float(step))}
        for step in (1, 2)
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    prefix = journal_prefix(AttemptRef("wide", 1), history.launch_id, 0)
    app.store.put(f"{prefix}{0:012d}.jsonl", data)
    history.write_to(app.store)
    app.projector.scan()
    asked: list[Collection[str]] = []
    whole = sources.read_curves

    def read_curves(*given: Any, **how: Any) -> Curves:
        asked.append(given[2])
        return whole(*given, **how)

    monkeypatch.setattr(sources, "read_curves", read_curves)
    visitor = Visitor(guarded(Sources(settings)))
    page = visitor.get("/runs/wide").text
    assert all(each is not None and len(each) <= PANELS_MAX + 1 for each in asked)
    assert page.count("<figure") <= PANELS_MAX
    assert f"1 to {PANELS_MAX} of {METRICS_MAX + 2}" in page  # with the loss and the time of a step
    assert len(page) < 150_000
    assert 'class="name">loss<' in page
    other = visitor.get("/runs/wide?group=layer11&page=0").text
    assert 'class="name">layer11/x11<' in other
    assert 'class="name">loss<' not in other
    assert "training loss" in other
    assert "at step 2" in other  # the tiles stay those of the run


def test_a_metric_that_was_never_finite_lies_in_the_middle_of_its_buckets() -> None:
    found = Buckets.empty(4)
    found.odd[2] = True
    of_none: dict[str, Any] = {
        "metrics": {},
        "without": {},
        "steps_per_x": {},
        "growing": (),
        "is_over": True,
        "names": "",
        "basis": "",
    }
    lines = Lines(
        x_label="step",
        within=(0.0, 4.0),
        grid=Pixels(0.0, 4.0, 4),
        found={"odd": {"a": found}},
        **of_none,
    )
    used, x = lines.places("odd")
    assert (used.tolist(), x.tolist()) == ([2], [2.5])
