"""Pictures of curves: what stands in them, where, and that nothing outside is needed to look at one."""

from __future__ import annotations

import itertools
import math
import re
from base64 import b64decode
from collections.abc import Iterable
from xml.etree import ElementTree as ET

import pytest

from tracks_dagster.curves.curve import (
    COMMIT,
    END,
    REMEDY,
    Curve,
    Mark,
    Metric,
    Point,
    Series,
    smoothed,
)
from tracks_dagster.review.effects.pages.charts import (
    MARKS_MAX,
    Band,
    Look,
    compare_panel,
    curve_panel,
    image,
    image_uri,
    log_ticks,
    tick_text,
    ticks,
)

LOSS = Metric(name="loss", group="training", kind="step", column="loss")
STEP_S = Metric(name="ranks/step_s", group="ranks", kind="ranks", column="step_s", unit="s")


def series(
    values: Iterable[float],
    *,
    first: int = 1,
    attempt_id: int = 1,
    is_kept: bool = True,
    rank: int | None = None,
) -> Series:
    points = tuple(Point(n, float(n), value, 0.0) for n, value in enumerate(values, first))
    return Series(
        attempt_id=attempt_id, rank=rank, is_kept=is_kept, points=points, count=len(points)
    )


def curve(*parts: Series, metric: Metric = LOSS) -> Curve:
    return Curve(metric=metric, series=parts)


def mark(kind: str, step: int, label: str = "") -> Mark:
    text = f"{kind} <of> {label}"
    return Mark(kind=kind, step=step, x=float(step), attempt_id=1, text=text, label=label)


def elements(svg: str, name: str) -> list[ET.Element]:
    """Return the picture's elements of a name, or of a class; it has to be well-formed."""
    found = ET.fromstring(svg).iter()
    return [each for each in found if name in (each.tag, *(each.get("class") or "").split())]


def places(polyline: ET.Element) -> list[tuple[float, float]]:
    pairs = (each.split(",") for each in (polyline.get("points") or "").split())
    return [(float(x), float(y)) for x, y in pairs]


@pytest.mark.parametrize(
    ("low", "high", "count", "texts"),
    [
        (0.0, 120.0, 5, ["0", "20", "40", "60", "80", "100", "120"]),
        (2.41, 2.49, 4, ["2.42", "2.44", "2.46", "2.48"]),
        (0.0, 1_000_000.0, 5, ["0", "200k", "400k", "600k", "800k", "1000k"]),
        (0.0, 3e9, 3, ["0", "1000M", "2000M", "3000M"]),
        (-1.0, 1.0, 4, ["-1", "-0.5", "0", "0.5", "1"]),
        (1e-6, 3e-6, 2, ["1e-06", "2e-06", "3e-06"]),
        (0.9, 1.1, 2, ["0.9", "1", "1.1"]),
    ],
)
def test_an_axis_has_round_numbers(low: float, high: float, count: int, texts: list[str]) -> None:
    assert [tick_text(value, low, high) for value in ticks(low, high, count)] == texts


def test_ticks_are_bounded_whatever_the_axis() -> None:
    for low, high in (
        (0.0, 0.0),
        (0.0, 5e-324),
        (-8e307, 8e307),
        (1e15, 1e15 + 1),
        (0.0, math.inf),
    ):
        assert len(ticks(low, high, 5)) <= 21


def test_an_attempt_has_a_colour_and_what_was_lost_lies_below_joined_to_what_was_kept() -> None:
    svg = curve_panel(
        curve(
            series([5.0, 4.0]),
            series([3.0], first=3, is_kept=False),
            series([3.5, 3.0], first=3, attempt_id=2),
        )
    )
    lines = elements(svg, "polyline")
    assert [line.get("class") for line in lines] == ["line lost", "line a0", "line a1"]
    joint = places(lines[1])[-1]
    assert places(lines[0])[0] == joint
    assert places(lines[2])[0] == joint
    assert [title.text for title in elements(svg, "title")] == [
        "attempt 1: 1 points lost",
        "attempt 1: 2 points kept",
        "attempt 2: 2 points kept",
    ]


def test_the_picture_says_which_values_its_edges_have() -> None:
    root = ET.fromstring(curve_panel(curve(series([2.0, 1.0, 4.0], first=8))))
    data = {name: float(root.get(f"data-{name}", "nan")) for name in ("x0", "x1", "y0", "y1")}
    assert data == pytest.approx({"x0": 8, "x1": 10, "y0": 0.88, "y1": 4.12})
    (line,) = root.iter("polyline")
    edges = [float(root.get(f"data-{name}", "nan")) for name in ("left", "right")]
    assert [places(line)[0][0], places(line)[-1][0]] == edges
    assert root.get("aria-label") == "loss by step, 1 to 4; 4 after step 10"


def test_the_last_number_of_an_axis_is_not_cut_off() -> None:
    svg = curve_panel(curve(series([1.0, 2.0])), x_range=(0.0, 100_000_000.0))
    for text in elements(svg, "text"):
        x, half = float(text.get("x", "0")), 3.1 * len(text.text or "")
        assert x + (0 if "end" in (text.get("class") or "") else half) <= 720


def test_several_pictures_share_an_axis() -> None:
    svg = curve_panel(curve(series([1.0, 2.0], first=50)), x_range=(0.0, 100.0))
    xs = [x for x, _ in places(elements(svg, "polyline")[0])]
    root = ET.fromstring(svg)
    middle = (float(root.get("data-left", 0)) + float(root.get("data-right", 0))) / 2
    assert xs[0] == middle


def test_what_is_not_a_number_is_a_gap_with_a_cross() -> None:
    values = [1.0, 2.0, math.nan, 3.0, math.inf, 2.0, 1.0]
    svg = curve_panel(curve(series(values)))
    assert [len(places(line)) for line in elements(svg, "polyline")] == [2, 2]
    assert len(elements(svg, "circle")) == 1  # step 4 alone
    titles = [cross.find("title") for cross in elements(svg, "gap")]
    assert [title.text for title in titles if title is not None] == [
        "nan in step 3, attempt 1",
        "inf in step 5, attempt 1",
    ]
    assert curve_panel(curve(series([math.nan]))) == ""
    assert curve_panel(curve()) == ""


@pytest.mark.parametrize(
    "values",
    [
        [7.0],
        [0.0, 0.0],
        [1e308, -1e308],
        [5e-324, 0.0],
        [1e15 + 1, 1e15],
        [1e-199, 1e308],
        [1e-299, 1e10],
    ],
)
def test_any_finite_values_have_a_picture(values: list[float]) -> None:
    for look in (Look(is_log=True), Look(smooth=1), Look(is_log=True, smooth=1000)):
        other = curve_panel(curve(series(values)), look=look)
        assert "nan" not in other
        assert "inf" not in other
    svg = curve_panel(curve(series(values, first=0)))
    root = ET.fromstring(svg)
    for line in root.iter("polyline"):
        for x, y in places(line):
            assert 0 <= x <= 720
            assert 0 <= y <= 300
    assert "nan" not in svg
    assert "inf" not in svg.replace("info", "")


def test_by_logarithm_a_tenth_takes_as_much_room_everywhere() -> None:
    svg = curve_panel(curve(series([100.0, 10.0, 1.0])), look=Look(is_log=True))
    (line,) = elements(svg, "polyline")
    heights = [y for _, y in places(line)]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.2)
    assert "data-log" in svg
    texts = {each.text for each in elements(svg, "text")}
    assert {"1", "10", "100"} <= texts


def test_values_that_are_not_above_zero_have_no_logarithm() -> None:
    values = curve(series([1.0, 0.0, -1.0]))
    assert curve_panel(values, look=Look(is_log=True)) == curve_panel(values)


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0.9, 110.0, 3, [1.0, 10.0, 100.0]),
        (0.9, 11.0, 4, [1.0, 2.0, 5.0, 10.0]),
        (2.0, 2.2, 3, [2.0, 2.05, 2.1, 2.15, 2.2]),  # less than two: as without logarithms
    ],
)
def test_an_axis_of_logarithms_has_round_numbers(
    low: float, high: float, count: int, expected: list[float]
) -> None:
    assert log_ticks(low, high, count) == pytest.approx(expected)


def test_an_axis_of_logarithms_has_few_numbers_however_long_it_is() -> None:
    for high in (1e3, 1e12, 1e300):
        assert 3 <= len(log_ticks(1e-290, high, 5)) <= 11


def test_an_average_is_of_what_is_near_and_a_gap_counts_for_nothing() -> None:
    points = series([4.0, math.nan, 0.0]).points
    found = [point.value for point in smoothed(points, 1)]
    # They are two steps from each other, so that the other counts exp(-2) of one's own.
    weight = math.exp(-2)
    assert found[0] == pytest.approx(4.0 / (1 + weight))
    assert math.isnan(found[1])
    assert found[2] == pytest.approx(4.0 * weight / (weight + 1))
    far = [point.value for point in smoothed(series([1.0] * 50).points, 1000)]
    assert far == pytest.approx([1.0] * 50)


def test_what_is_averaged_lies_faint_behind_its_average() -> None:
    svg = curve_panel(curve(series([1.0, 3.0, 1.0, 3.0])), look=Look(smooth=10))
    raw, average = elements(svg, "polyline")
    assert raw.get("class") == "line a0 raw"
    assert average.get("class") == "line a0"
    heights = [y for _, y in places(average)]
    assert max(heights[1:]) - min(heights[1:]) < 100


def test_an_average_goes_on_over_the_end_of_an_attempt() -> None:
    one = series([1.0, 3.0] * 10)
    two = series([1.0, 3.0] * 10, first=21, attempt_id=2)
    whole = smoothed([*one.points, *two.points], 5)
    svg = curve_panel(curve(one, two), look=Look(smooth=5))
    lines = elements(svg, "polyline")
    assert [line.get("class") for line in lines] == [
        "line a0 raw",
        "line a1 raw",
        "line a0",
        "line a1",
    ]
    end, begin = places(lines[2])[-1], places(lines[3])[0]
    assert begin == end  # joined
    heights = [y for _, y in places(lines[3])]
    assert abs(heights[1] - heights[0]) < 40  # of some 240 that the values jump up and down
    assert whole[20].value == pytest.approx(2.0, abs=0.2)


def test_marks_stand_on_the_axis_with_words_where_there_is_room() -> None:
    marks = [
        mark(COMMIT, 10),
        mark(END, 23, "a01 preempted"),
        mark(REMEDY, 20, "micro_batch 4 → 2"),
        mark(END, 99, "beyond the picture"),
    ]
    loss = curve(series([1.0] * 40))
    wide = curve_panel(loss, marks)
    assert [len(elements(wide, name)) for name in ("commit", "ended", "remedy")] == [1, 1, 1]
    texts = [each.text for each in elements(wide, "text")]
    assert "a01 preempted" in texts
    assert "micro_batch 4 → 2" in texts
    assert "end <of> a01 preempted" in [each.text for each in elements(wide, "title")]
    small = curve_panel(loss, marks, width=360, height=170)
    assert "a01 preempted" not in [each.text for each in elements(small, "text")]
    assert [len(elements(small, name)) for name in ("commit", "ended", "remedy")] == [1, 1, 1]
    assert elements(small, "svg")[0].get("class") == "panel small"


def test_many_marks_are_bounded_and_their_words_do_not_lie_on_each_other() -> None:
    marks = [mark(END, step, f"a{step:02d} preempted") for step in range(1, 2001)]
    svg = curve_panel(curve(series([1.0] * 2000)), marks)
    assert len(elements(svg, "ended")) <= MARKS_MAX
    words = [e for e in elements(svg, "text") if "preempted" in (e.text or "")]
    ends = [float(each.get("x", "0")) for each in words]
    assert all(b - a > 70 for a, b in itertools.pairwise(ends))


def test_a_metric_by_rank_has_a_line_for_each() -> None:
    parts = [series([1.0, 1.1], rank=rank) for rank in range(3)]
    svg = curve_panel(curve(*parts, metric=STEP_S))
    assert [line.get("class") for line in elements(svg, "polyline")] == [
        "line a0",
        "line a1",
        "line a2",
    ]
    assert "rank 2, attempt 1: 2 points kept" in svg


def test_compared_runs_lie_over_each_other_without_what_they_lost() -> None:
    one = curve(series([3.0, 2.0]), series([9.0], first=3, is_kept=False))
    other = curve(series([4.0, 3.0]), series([2.5], first=3, attempt_id=2))
    svg = compare_panel({"a <b>": one, "c": other})
    lines = elements(svg, "polyline")
    assert [(line.get("class"), len(places(line))) for line in lines] == [
        ("line a0", 2),
        ("line a1", 3),
    ]
    assert [line.findtext("title") for line in lines] == ["a <b>", "c"]
    assert compare_panel({"a": curve()}) == ""


def test_a_band_is_its_mean_over_what_lies_between_its_edges() -> None:
    band = Band(
        name="loss",
        css="r3 d1",
        mean=series([3.0, 2.0]).points,
        low=series([2.0, 1.0]).points,
        high=series([4.0, 3.0]).points,
        odd=(Point(2, 2.0, math.nan, 0.0),),
    )
    svg = compare_panel({"c": curve(series([2.5, 2.5]))}, bands={"mean of a <b>, d": band})
    (area,) = elements(svg, "polygon")
    assert (area.get("class"), len(places(area))) == ("spread r3 d1", 4)
    assert [line.get("class") for line in elements(svg, "polyline")] == ["line a0", "line r3 d1"]
    assert len(elements(svg, "path")) == 1  # a cross for what is not a finite number
    root = ET.fromstring(svg)
    assert root.get("aria-label") == "loss by step of c, mean of a <b>, d"
    assert float(root.get("data-y0", "")) < 1.0
    assert float(root.get("data-y1", "")) > 4.0
    alone = compare_panel({}, bands={"mean of a, d": band})
    assert ET.fromstring(alone).get("aria-label") == "loss by step of mean of a, d"


def test_a_picture_needs_no_page_and_a_page_needs_no_styles_of_it() -> None:
    loss = curve(series([3.0, 2.0]))
    svg = curve_panel(loss, [mark(END, 2, "\x1b[31m\0 & 'quoted'")])
    assert not re.search(r" id=|style|javascript|https?://|url\(", svg)
    whole = image(svg)
    root = ET.fromstring(whole)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (root.get("width"), root.get("height")) == ("720", "300")
    assert "prefers-color-scheme: dark" in whole
    assert "--c0:" in whole
    head, _, data = image_uri(svg).partition(",")
    assert head == "data:image/svg+xml;base64"
    assert b64decode(data).decode() == whole
    assert image_uri("") == image("") == ""
