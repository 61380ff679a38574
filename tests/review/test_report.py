"""The report: one file that needs nothing but itself."""

from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser

from tests.fakes import FakeClock, FakeObjectStore
from tests.reports import render_report
from tests.stories import RUN_ID, Story
from tracks_dagster.curves.curve import Curve, Metric, Point, Series
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.review.effects.explain.run import NO_CONTEXT, ExplainContext, load_run
from tracks_dagster.review.effects.explain.stretches import STRETCHES_MAX
from tracks_dagster.review.effects.pages.report import EXPLAINED_MAX, newest_words, render_loaded
from tracks_dagster.track.names import run_track
from tracks_dagster.track.track import log_key

VOID = {"meta", "line", "circle", "polyline", "br"}


class Page(HTMLParser):
    """Collects what the tests ask of a page, and checks that its elements nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[str] = []
        self.links: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.classes += (known.get("class") or "").split()
        self.links += [known[name] or "" for name in ("src", "href") if name in known]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_a_report_refers_to_nothing_outside_itself(story: Story, tracks: Tracks) -> None:
    story.whole()
    html = render_report(tracks, RUN_ID)
    page = Page(html)
    assert page.open == []
    assert page.links == []
    assert not re.search(r"https?://|@import|url\(|<script", html)


def test_the_curve_shows_every_attempt_in_its_colour_and_lost_steps_in_grey(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    page = Page(render_report(tracks, RUN_ID))
    panels = 3  # the loss, and two times
    assert page.classes.count("panel") == panels + 2  # progress and burn
    assert {"a0", "a1", "a2"} <= set(page.classes)
    assert page.classes.count("lost") == panels  # only attempt 1 lost steps
    assert page.classes.count("commit") == 4 * panels  # checkpoints of 10, 20, 30 and 40


def test_words_of_people_cannot_become_markup(story: Story, tracks: Tracks) -> None:
    story.whole()
    story.history.note('`<b>` <script>alert(1)</script> https://x.example/"><i> {{ run_id }}')
    story.history.write_to(story.store)
    html = render_report(tracks, RUN_ID)
    assert "See whether &lt;half&gt; the batch &amp; twice" in html
    assert "<code>&lt;b&gt;</code> &lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "{{ run_id }}" in html  # a template of theirs is not filled in
    assert not re.search(r"<script|<b>(?!Attempt \d)|<i>", html)


def test_each_attempt_has_its_lights_and_an_open_one_an_advice(
    story: Story, tracks: Tracks, clock: FakeClock
) -> None:
    story.attempt("preempted", last_step=100, commits=(100,))
    story.begin()
    story.ship(range(101, 103))
    story.write_tracks()
    clock.at = story.history.at
    html = render_report(tracks, RUN_ID)
    first, second = html.split('<details class="explained"')[1:3]
    assert first.count('<span class="light green">green</span>') == 3
    assert "Advice: " not in first
    assert '<span class="light grey">grey</span> improving?' in second
    assert "Advice: continue; the slope of the loss is not known yet" in second


def test_it_follows_the_readers_colours_and_fits_a_phone(story: Story, tracks: Tracks) -> None:
    story.whole()
    html = render_report(tracks, RUN_ID)
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html


def test_a_run_without_a_step_has_a_report_too(story: Story, tracks: Tracks) -> None:
    story.refused()
    html = render_report(tracks, RUN_ID)
    assert "No step is in the journals yet." in html
    assert "refused" in html


def test_the_time_line_names_every_attempt_its_end_and_its_length_in_words(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    html = render_report(tracks, RUN_ID)
    lanes = re.findall(r'<div class="lane-bars" role="img" aria-label="([^"]+)"', html)
    assert [lane.split(",")[0] for lane in lanes] == [
        "a01: preempted",
        "a02: gpu_oom",
        "a03: completed",
    ]
    assert lanes[0].endswith("20 steps kept, 3 lost")
    lefts = [float(left) for left in re.findall(r"left:([\d.]+)%", html)]
    assert lefts == sorted(lefts)
    assert all(0 <= left <= 100 for left in lefts)


def test_what_is_recorded_after_the_finish_does_not_stretch_the_time_line(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    axis = re.compile(r'<div class="axis">.*?</div>')
    before = axis.findall(render_report(tracks, RUN_ID))
    story.history.at += timedelta(days=7)
    story.history.note("still good").write_to(story.store)
    html = render_report(tracks, RUN_ID)
    assert "still good" in html
    assert axis.findall(html) == before


def test_the_last_label_of_the_picture_ends_with_it_and_is_not_cut_off(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    html = render_report(tracks, RUN_ID)
    assert re.search(r'<text class="end" [^>]*>step 40</text>', html)


def test_curve_and_picture_have_margins_of_their_own(story: Story, tracks: Tracks) -> None:
    story.whole()
    html = render_report(tracks, RUN_ID)
    (curve,) = re.findall(r'<svg class="panel" viewBox="0 0 720 300".*?</svg>', html, re.DOTALL)
    assert set(re.findall(r'class="grid" x1="(\d+)" x2="(\d+)"', curve)) == {("56", "704")}
    assert '<text class="middle" x="704.0" y="271">40</text>' in curve  # above the axis's own name
    (picture,) = re.findall(r'<svg class="picture".*?</svg>', html, re.DOTALL)
    assert '<line class="grid" x1="176.0"' in picture


def test_the_bar_of_seconds_says_in_words_what_it_shows(story: Story, tracks: Tracks) -> None:
    story.whole()
    html = render_report(tracks, RUN_ID)
    (result,) = re.findall(r'<div class="buckets" role="img" aria-label="([^"]+)"', html)
    shares = [float(share) for share in re.findall(r"([\d.]+)%", result)]
    assert abs(sum(shares) - 100) < 1
    for bucket in result.split(", "):
        assert f"<td>{bucket.rsplit(' ', 1)[0]}</td>" in html  # and the table beside it


def test_the_picture_shows_checkpoints_resumes_evals_and_the_promotion(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    html = render_report(tracks, RUN_ID)
    classes = Page(html).classes
    assert classes.count("dot") == 4
    assert classes.count("resume") == 2 + 2  # two resumes; an eval and a promotion hang below
    assert "heldout-loss@40: completed" in html
    assert "promoted to best" in html
    assert "3 attempts in 3 rows, 4 checkpoints; resumed: attempt 2 from step 20" in html


def test_the_explanation_of_an_attempt_has_its_place_and_evidence_is_folded_away(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    html = render_loaded(tracks, load_run(tracks, RUN_ID), NO_CONTEXT, attempt_id=2)
    assert re.findall(r'<details class="explained" id="(a\d\d)"( open)?>', html) == [
        ("a01", ""),
        ("a02", " open"),
        ("a03", ""),
    ]
    assert html.count("<details><summary>Evidence as stored</summary>") == 3


def test_a_run_of_three_hundred_attempts_stays_readable_and_says_what_stands_together(
    story: Story, tracks: Tracks
) -> None:
    for number in range(1, 301):
        reason = "gpu_oom" if number % 40 == 0 else "preempted"
        story.attempt(reason, last_step=number, commits=(number,))
    story.write_tracks()
    html = render_report(tracks, RUN_ID)
    page = Page(html)
    assert page.open == []
    assert page.classes.count("lane") <= STRETCHES_MAX
    assert page.classes.count("explained") == EXPLAINED_MAX
    assert "There are 300 attempts" in html
    assert f"The oldest {300 - EXPLAINED_MAX} attempts are not explained here" in html
    assert "a01–a39 (39 attempts)" in html
    assert len(html) < 2_000_000
    early = render_loaded(tracks, load_run(tracks, RUN_ID), NO_CONTEXT, attempt_id=7)
    assert 'id="a07" open' in early  # the one that was asked for is there anyway


def test_a_broken_record_is_reported_at_the_top(
    story: Story, tracks: Tracks, store: FakeObjectStore
) -> None:
    story.whole()
    seq = story.history.state.attempts[1].ended_seq
    assert seq is not None
    store.delete(log_key(run_track(RUN_ID), seq))
    html = render_report(tracks, RUN_ID)
    assert f'<p class="broken">THE RECORD BREAKS at record {seq}' in html
    assert "a02 end not known" in html  # and nowhere that it is open, which nobody knows
    assert not re.search(r">open<|: open,| open<", html)


def test_what_the_run_cost_in_money_stands_with_its_seconds(story: Story, tracks: Tracks) -> None:
    story.whole()
    assert "a device hour" not in render_report(tracks, RUN_ID)
    prices = Prices(currency="EUR", per_device_hour={"cpu": 36.0}, source="prices.yaml")
    html = render_report(tracks, RUN_ID, ExplainContext(prices=prices))
    assert "1.12 EUR at 36 a device hour" in html  # 112 device seconds


def test_pages_of_the_ui_can_be_followed_where_its_address_is_set(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    page = Page(render_report(tracks, RUN_ID, ExplainContext(ui_url="https://dagster.example.org")))
    assert "https://dagster.example.org/runs/dagster-2" in page.links
    assert all(link.startswith("https://dagster.example.org/") for link in page.links)


def test_a_large_value_is_written_in_full_as_on_the_board() -> None:
    def words(value: float) -> str:
        metric = Metric(name="m", group="speed", kind="step", column="m", unit="samples/s")
        points = (Point(step=3, x=3.0, value=value, at=0.0),)
        series = Series(attempt_id=1, rank=None, is_kept=True, points=points, count=1)
        return newest_words(Curve(metric=metric, series=(series,)))

    assert words(35955.2) == "35\u202f955 samples/s after step 3"
    assert words(2.65612) == "2.656 samples/s after step 3"
    assert words(3e9) == "3e+09 samples/s after step 3"


def test_the_report_shows_progress_against_burn_of_a_run_that_was_retried(
    story: Story, tracks: Tracks
) -> None:
    story.whole()
    html = render_report(tracks, RUN_ID)
    drawn = html.split("<h2>Progress against burn</h2>")[1].split("<h2>")[0]
    assert "<strong>kept steps</strong>" in drawn
    assert "<strong>device-hours</strong>" in drawn
    assert drawn.count("<svg") == 2
