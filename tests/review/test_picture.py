"""The pictures of a run's loss on Dagster's page of an attempt."""

from __future__ import annotations

import base64
import math
import random
from xml.etree import ElementTree as ET

import pytest

from tests.stories import RUN_ID, Story
from tracks_dagster.curves.curve import TRAINING, Curve, Metric, Point, Series
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.picture import (
    SMALL_CHARACTERS_MAX,
    extremes,
    pictures,
    small_picture,
)
from tracks_dagster.track.journal_lines import STEPS

SVG = "{http://www.w3.org/2000/svg}"


def point(step: int, value: float) -> Point:
    return Point(step=step, x=float(step), value=value, at=0.0)


def series(points: list[Point], *, is_kept: bool = True, attempt_id: int = 1) -> Series:
    return Series(
        attempt_id=attempt_id, rank=None, is_kept=is_kept, points=tuple(points), count=len(points)
    )


def loss(*parts: Series) -> Curve:
    metric = Metric(name="loss", group=TRAINING, kind=STEPS, column="loss")
    return Curve(metric=metric, series=parts)


def svg_of(markdown: str) -> ET.Element:
    head, _, data = markdown.removesuffix(")").partition("base64,")
    assert head.endswith("](data:image/svg+xml;")
    return ET.fromstring(base64.b64decode(data))


def test_a_run_has_a_small_picture_and_a_large_one_with_what_was_lost_in_grey(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    shown = pictures(tracks, tracks.run(RUN_ID), None)
    small, large = shown["curve/loss"], shown["curve/loss_large"]
    assert small.startswith("![loss 5 at step 1, 0.125 at 40](data:image/svg+xml;base64,")
    assert [path.get("stroke") for path in svg_of(small).findall(f"{SVG}path")] == [
        "#b3b8c0",
        "#2563c9",
    ]
    classes = [line.get("class") for line in svg_of(large).iter(f"{SVG}polyline")]
    assert "line lost" in classes


def test_a_run_that_lost_every_step_is_drawn_too(story: Story, tracks: Tracks) -> None:
    story.attempt("preempted", last_step=9, commits=())
    story.write_tracks()
    small = pictures(tracks, tracks.run(RUN_ID), None)["curve/loss"]
    assert small.startswith("![loss: every step was lost](")
    assert len(svg_of(small).findall(f"{SVG}path")) == 1


def test_a_run_without_a_loss_has_no_picture(story: Story, tracks: Tracks) -> None:
    story.refused()
    assert pictures(tracks, tracks.run(RUN_ID), None) == {}


@pytest.mark.parametrize(
    "curve",
    [
        loss(series([point(step, 1e300 * (-1) ** step) for step in range(10**6, 10**6 + 5000)])),
        loss(series([point(1, 1.7e308), point(2, -1.7e308)])),
        loss(series([point(1, 2.5)])),
        loss(series([point(1, 2.5), point(2, math.nan), point(3, math.inf)])),
        loss(series([point(1, 2.5)], is_kept=False)),
        loss(
            *(
                series([point(n, 1.0), point(n + 1, 2.0)], is_kept=n % 2 == 0, attempt_id=n)
                for n in range(400)
            )
        ),
    ],
    ids=["long", "wide", "one point", "no numbers", "all lost", "many attempts"],
)
def test_the_small_picture_is_always_small_enough_to_be_shown_at_once(curve: Curve) -> None:
    markdown = small_picture(curve)
    assert len(markdown) < SMALL_CHARACTERS_MAX
    assert "nan" not in str(svg_of(markdown).attrib)


def test_a_spike_is_not_lost_where_points_are_left_out() -> None:
    rng = random.Random(20261123)
    points = [point(step, rng.random()) for step in range(10_000)]
    points[7777] = point(7777, 50.0)
    shown = extremes(points, 56)
    assert len(shown) <= 56
    assert point(7777, 50.0) in shown
    assert shown == sorted(shown, key=lambda each: each.step)
