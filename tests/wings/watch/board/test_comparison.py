"""What differs between runs, and what a run of an experiment changed against the baseline."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tracks_dagster.curves.curve import TRAINING, Metric
from tracks_dagster.curves.effects.buckets import Buckets
from tracks_dagster.curves.effects.pixels import Pixels
from tracks_dagster.review.comparing import Score
from tracks_dagster.review.experiments import (
    Experiment,
    ExperimentRun,
    MeasuredBy,
    baseline_of,
    differing,
)
from tracks_dagster.studies.space import CHOICE, INT, LOGUNIFORM, UNIFORM
from tracks_dagster.track.journal_lines import STEPS
from tracks_dagster.track.records import Json
from tracks_dagster.wings.watch.board.colours import COLOURS, DASHES, colour_of, looks_of
from tracks_dagster.wings.watch.board.comparison import (
    CHANGES_MAX,
    ComparedRun,
    coloured,
    comparison_view,
    experiment_view,
    seed_bands,
)
from tracks_dagster.wings.watch.board.effects.configs import config_picture
from tracks_dagster.wings.watch.board.effects.parallel import seen_as, share_of
from tracks_dagster.wings.watch.board.effects.side_by_side import Lines, band_of

LOSS = MeasuredBy(suite="quality", metric="loss", direction="min")


def score(value: float, *, step: int = 100, metric: str = "loss", version: str = "1") -> Score:
    """Return one eval."""
    return Score(
        suite="quality",
        suite_version=version,
        snapshot_id="",
        seed=1,
        step=step,
        environment_sha256="",
        metrics={metric: value},
    )


FIRST = ExperimentRun(
    run_id="first",
    owner="ann",
    state="succeeded",
    steps=100,
    settings={"lr": 0.1, "seed": 7},
    branched_from=None,
    device_s=3600.0,
    alias=None,
    final_step=100,
    rule=LOSS,
    scores=(score(2.5),),
)
SECOND = replace(
    FIRST, run_id="second", settings={"lr": 0.2, "seed": 7}, alias="candidate", scores=(score(2.0),)
)
THIRD = replace(
    FIRST, run_id="third", settings={"lr": 0.1, "seed": 7, "warm": 5}, scores=(score(3.0),)
)


def test_only_what_is_not_the_same_everywhere_differs() -> None:
    assert differing([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": None}]) == ["b", "c"]
    assert differing([{"a": 1}]) == []
    assert differing([]) == []


@pytest.mark.parametrize(
    ("runs", "wanted", "chosen", "why"),
    [
        ((FIRST, SECOND, THIRD), "third", "third", "as you chose"),
        ((FIRST, SECOND, THIRD), "", "second", "the newest that was promoted, to candidate"),
        ((FIRST, THIRD), "", "first", "the oldest: none was promoted yet"),
        ((FIRST, THIRD, replace(SECOND, baseline="third")), "", "third", "named by second"),
    ],
)
def test_the_baseline_is_chosen_else_promoted_else_the_oldest(
    runs: tuple[ExperimentRun, ...], wanted: str, chosen: str, why: str
) -> None:
    found, words = baseline_of(runs, wanted)
    assert (found.run_id, words) == (chosen, why)


def experiment(*runs: ExperimentRun, baseline: ExperimentRun = FIRST) -> Experiment:
    return Experiment(runs=runs, baseline=baseline, why="", count=len(runs), newest=len(runs))


def rows(*runs: ExperimentRun, baseline: ExperimentRun = FIRST) -> dict[str, tuple[object, ...]]:
    """Return changes, difference and verdict of each run."""
    view = experiment_view("gpt", experiment(*runs, baseline=baseline))
    return {row.run_id: (row.changes, row.difference, row.verdict) for row in view.rows}


def test_each_run_shows_what_it_changed_and_whether_that_was_better() -> None:
    found = rows(FIRST, SECOND, THIRD)
    assert list(found) == ["first", "third", "second"]  # the baseline, then the newest
    assert found["second"] == (("lr 0.1 → 0.2",), "−0.5000", "good")
    assert found["third"] == (("warm – → 5",), "+0.5000", "bad")
    assert found["first"] == ((), "–", "")


def test_a_metric_is_better_as_its_own_rule_says() -> None:
    rule = replace(LOSS, metric="accuracy", direction="max")
    best = replace(FIRST, rule=rule, scores=(score(0.5, metric="accuracy"),))
    worse = replace(best, run_id="worse", scores=(score(0.4, metric="accuracy"),))
    assert rows(best, worse, baseline=best)["worse"][1:] == ("−0.1000", "bad")


def test_metrics_that_are_not_the_same_are_not_compared() -> None:
    other = replace(SECOND, scores=(score(0.5, metric="accuracy"),))
    assert rows(FIRST, other)["second"][1:] == ("–", "")
    elsewhere = replace(SECOND, scores=(score(2.0, version="2"),))
    assert rows(FIRST, elsewhere)["second"][1:] == ("–", "")
    assert rows(FIRST, replace(SECOND, scores=()))["second"][1:] == ("–", "")


def test_neither_of_two_steps_is_called_better_unless_each_is_the_last_of_its_run() -> None:
    early = replace(SECOND, scores=(score(3.0, step=60),))
    assert rows(FIRST, early)["second"][1:] == ("+0.5000", "")
    stopped = replace(early, final_step=60)
    assert rows(FIRST, stopped)["second"][1:] == ("+0.5000", "bad")
    values = {
        row.run_id: row.value for row in experiment_view("gpt", experiment(FIRST, early)).rows
    }
    assert values == {"first": "2.500 at 100", "second": "3 at 60"}


def test_without_a_rule_nobody_knows_which_is_better() -> None:
    first, second = replace(FIRST, rule=None), replace(SECOND, rule=None)
    assert rows(first, second, baseline=first)["second"][1:] == ("−0.5000", "")


def test_of_many_changes_the_first_are_shown_and_the_others_counted() -> None:
    many = replace(SECOND, settings={f"key_{n}": n for n in range(20)})
    changes = rows(FIRST, many)["second"][0]
    assert isinstance(changes, tuple)
    assert len(changes) == CHANGES_MAX + 1
    assert changes[-1] == f"and {22 - CHANGES_MAX} more"


def test_a_baseline_from_elsewhere_says_so() -> None:
    mine = replace(SECOND, experiment="wider", baseline="first")
    view = experiment_view("wider", experiment(FIRST, mine))
    assert [row.about for row in view.rows] == ["ann, outside: of no experiment", "ann, candidate"]
    of_family = experiment_view("gpt", experiment(FIRST, mine))
    assert [row.about for row in of_family.rows] == ["ann", "ann, candidate"]


def test_a_run_has_its_own_colour_whatever_it_is_compared_with() -> None:
    runs = [f"lr-{n:03}" for n in range(50)]
    looks = looks_of(runs)
    places = [sorted(r for r in runs if colour_of(r) == colour_of(run)).index(run) for run in runs]
    for run, place in zip(runs, places, strict=True):
        assert looks_of([run])[run] == colour_of(run)
        assert (looks[run].split()[0] == colour_of(run)) is (place < DASHES), run
    assert looks_of(runs[::-1]) == looks
    assert {colour_of(run) for run in runs} <= {f"r{n}" for n in range(COLOURS)}
    assert len(set(looks_of(runs[:6]).values())) == 6  # of two of one colour one is dashed
    for begin in range(20):  # whichever runs a page compares: five of a colour too
        many = [f"run-{begin}-{number}" for number in range(50)]
        assert len(set(looks_of(many).values())) == 50


def compared(run_id: str, **config: object) -> ComparedRun:
    """Return a run with this config."""
    settings = {"config": {"lr": 0.1, **config}, "code": {"sha256": "c0de"}}
    return ComparedRun(run_id=run_id, settings=settings, outcome={}, seed_key="seed")


def test_runs_that_differ_only_in_the_seed_are_a_family() -> None:
    runs = [
        compared("a1", seed=1),
        compared("b1", seed=1, lr=0.2),
        compared("a2", seed=2),
        compared("b2", seed=2, lr=0.2),
        compared("c", seed=1, lr=0.3),
    ]
    assert seed_bands(runs) == {"a1": 0, "a2": 0, "b1": 1, "b2": 1}
    other_code = replace(runs[0], run_id="a3", settings={**runs[0].settings, "code": {}})
    assert seed_bands([runs[0], other_code]) == {}


def buckets(grid: Pixels, values: dict[float, float]) -> Buckets:
    """Return one run's values, by their place."""
    found = Buckets.empty(grid.count)
    found.add(np.array([*values]), np.array([*values.values()]), grid)
    return found


def test_a_band_is_the_mean_and_deviation_of_runs_where_two_of_them_are() -> None:
    grid = Pixels(0.0, 5.0, 5)
    runs = {
        "a": buckets(grid, {0.5: 1.0, 1.5: 2.0, 2.5: 3.0}),
        "b": buckets(grid, {0.5: 3.0, 2.5: 7.0, 3.5: math.nan, 4.5: 9.0}),
    }
    metric = Metric(name="loss", group=TRAINING, kind=STEPS, column="loss")
    lines = Lines(
        x_label="step",
        within=(0.0, 5.0),
        grid=grid,
        metrics={"loss": metric},
        found={"loss": runs},
        without={},
        steps_per_x={"a": 1.0, "b": 1.0},
        growing=(),
        is_over=True,
        names="",
        basis="",
    )
    band = band_of(lines, "loss", ["a", "b", "without the metric"], css="r1")
    # at 1.5 b is between its neighbours, 5; beyond 2.5 there is b alone
    assert [(point.x, point.value) for point in band.mean] == [(0.5, 2.0), (1.5, 3.5), (2.5, 5.0)]
    off = [high.value - mean.value for high, mean in zip(band.high, band.mean, strict=True)]
    assert off == pytest.approx([math.sqrt(2), math.sqrt(4.5), math.sqrt(8)])
    assert [low.value for low in band.low] == pytest.approx(
        [mean.value - each for mean, each in zip(band.mean, off, strict=True)]
    )
    assert [point.x for point in band.odd] == [3.5]
    smooth = band_of(lines, "loss", ["a", "b"], css="r1", smooth=1000)
    assert [point.value for point in smooth.mean] == pytest.approx([4.16, 4.16, 4.16], abs=0.02)


def test_many_runs_are_rows_and_the_title_counts_them() -> None:
    runs = [compared(f"r-{n}", lr=n) for n in range(50)]
    few, many = (comparison_view(some, shown=()) for some in (runs[:3], runs))
    assert (few.title, few.is_long) == ("r-0 against r-1 against r-2", False)
    assert (many.title, many.is_long) == ("50 runs compared", True)
    (lr,) = (row for group in many.groups for row in group.rows)
    assert (lr.name, len(lr.values)) == ("lr", 50)


def pictured(*runs: ComparedRun, asked: str = "") -> tuple[str, str, list[str]]:
    """Return the picture, what the last axis is, and what is left to words."""
    found = config_picture(runs, coloured(runs, {}, ()), asked, "?against={}".format)
    assert found is not None
    [chosen] = [link.label for link in found.against if link.is_chosen]
    return found.svg, chosen, list(found.words)


def of_config(run_id: str, numbers: dict[str, float], **config: Json) -> ComparedRun:
    settings = {"config": config}
    return ComparedRun(
        run_id=run_id, settings=settings, outcome={}, numbers=numbers, seed_key="seed"
    )


def test_runs_are_lines_over_what_differs_in_their_configs_and_what_was_measured() -> None:
    losses = [{"training loss": 2.0 + n, "training val/loss": 3.0 + n} for n in range(3)]
    runs = [
        of_config("a", losses[0], lr=0.1, seed=1, width=64),
        of_config("b", losses[1], lr=0.001, seed=2, width=64, act="gelu"),
        of_config("c", losses[2], lr=0.01, seed=3, width=64),
    ]
    svg, against, words = pictured(*runs)
    assert (against, words) == ("training val/loss", [])
    assert svg.count("<a ") == 3
    assert 'aria-label="3 runs over lr, act and training val/loss"' in svg
    assert ">none</text>" in svg  # a and c have no act
    evaluated = [replace(run, numbers={"quality loss": 1.0, **run.numbers}) for run in runs]
    assert pictured(*evaluated)[1] == "quality loss"
    assert pictured(*evaluated, asked="training loss")[1] == "training loss"


def test_what_cannot_be_drawn_over_the_configs_is_in_words() -> None:
    values = [1.0, 1.1, 1.2, 1.3, 50.0, math.nan]
    runs = [of_config(f"r{n}", {"training loss": v}, lr=n + 1) for n, v in enumerate(values)]
    svg, _, words = pictured(*runs, of_config("unmeasured", {}, lr=9))
    assert svg.count("<a ") == 5
    assert words == [
        "1 run without training loss.",
        "1 run whose training loss cannot be drawn.",
        "1 run beyond the scale, at its end.",
    ]


@pytest.mark.parametrize(
    "runs",
    [
        [
            of_config("a", {"training loss": 1.0}, lr=1),
            of_config("b", {"training loss": 2.0}, lr=2),
        ],
        [of_config(name, {"training loss": 1.0}, lr=1, seed=n) for n, name in enumerate("abc")],
        [of_config(name, {}, lr=n) for n, name in enumerate("abc")],
    ],
    ids=["two runs", "seeds alone", "nothing measured"],
)
def test_configs_are_not_drawn_where_a_picture_would_say_nothing(runs: list[ComparedRun]) -> None:
    assert config_picture(runs, coloured(runs, {}, ()), "", str) is None


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((0.1, 0.001), LOGUNIFORM),
        ((0.1, 0.2), UNIFORM),
        ((-1, 4), INT),
        ((True, False), CHOICE),
        ((1, "auto"), CHOICE),
        ((1.7e308, -1.7e308), CHOICE),
        ((10**400, 1), CHOICE),
        (([1, 2], None), CHOICE),
    ],
)
def test_an_axis_is_laid_out_by_the_values_that_are_known(
    values: tuple[Json, ...], kind: str
) -> None:
    param = seen_as(values)
    assert param.kind == kind
    assert len({share_of(param, value) for value in values}) == 2
