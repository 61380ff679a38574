"""Which panels a page has of many runs' metrics: grouped, found, starred, hidden, folded, paged."""

from __future__ import annotations

import pytest

from tracks_dagster.curves.curve import Metric, metrics_of
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.watch.board.catalogue import PANELS_MAX, Catalogue, Wanted, catalogue
from tracks_dagster.wings.watch.board.effects.compare import matching

NAMES = ("train/acc", "train/loss", "val/loss", "plain")


def metrics(*names: str) -> tuple[Metric, ...]:
    """Return the metrics of a run whose script reports these."""
    own = {f"metrics.{name}": 10 for name in names}
    return metrics_of({"step": {"loss": 10, "step_s": 10, **own}})[0]


def shown(found: Catalogue) -> dict[str, list[str]]:
    """Return the panels by the title of their group."""
    return {group.title: [line.name for line in group.lines] for group in found.groups}


def test_panels_are_grouped_by_the_name_before_the_slash() -> None:
    assert shown(catalogue({"a": metrics(*NAMES)}, Wanted())) == {
        "Training": ["loss", "plain"],
        "train": ["train/acc", "train/loss"],
        "val": ["val/loss"],
        "Speed": ["step_s"],
    }


def test_names_and_units_are_those_that_people_read() -> None:
    (line,) = catalogue({"a": metrics()}, Wanted(only=("step_s",))).lines
    assert (line.title, line.unit, line.missing) == ("time of a step", "s", "")


def test_starred_ones_come_first_and_hidden_and_folded_ones_have_no_panel() -> None:
    wanted = Wanted(star=("val/loss",), hide=("plain",), fold=("train",))
    found = catalogue({"a": metrics(*NAMES)}, wanted)
    assert shown(found) == {
        "Starred": ["val/loss"],
        "Training": ["loss"],
        "Speed": ["step_s"],
        "train": [],
    }
    assert found.hidden == ("plain",)
    assert [(group.title, group.count) for group in found.groups if group.is_folded] == [
        ("train", 2)
    ]


def test_a_metric_that_not_all_runs_have_names_those_without_it() -> None:
    runs = {f"r{n}": metrics("loss2") if n == 1 else metrics() for n in range(6)}
    (line,) = catalogue(runs, Wanted(only=("loss2",))).lines
    assert line.missing == "not of r0, r2, r3 and 2 more runs"


def test_ten_thousand_names_are_paged() -> None:
    names = tuple(
        Metric(name=f"g{n % 9}/{n}", group="training", kind="step", column=f"metrics.g{n % 9}/{n}")
        for n in range(10_000)
    )
    first = catalogue({"a": names}, Wanted())
    assert (len(first.lines), first.total, first.pages) == (PANELS_MAX, 10_000, 417)
    last = catalogue({"a": names}, Wanted(page=10**6))
    assert (last.page, len(last.lines)) == (416, 10_000 % PANELS_MAX)


def test_names_are_found_by_a_regular_expression_that_cannot_run_for_long() -> None:
    assert matching(NAMES, "") is None
    assert matching(NAMES, "^TRAIN/.*loss$") == {"train/loss"}
    assert matching(["a" * 60], "(a+)+$b") == set()  # minutes in a matcher that goes back
    with pytest.raises(InvalidInput, match="is not a regular expression"):
        matching(NAMES, "train/(")
