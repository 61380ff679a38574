"""The report: one file that needs nothing but itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from tests.stories import RUN_ID, Story
from tracks_dagster.services.report import render_report
from tracks_dagster.services.tracks import Tracks

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
    assert {"a0", "a1", "a2"} <= set(page.classes)
    assert page.classes.count("lost") == 1  # only attempt 1 lost steps
    assert page.classes.count("commit") == 4  # checkpoints of 10, 20, 30 and 40


def test_words_of_people_cannot_become_markup(story: Story, tracks: Tracks) -> None:
    story.whole()
    html = render_report(tracks, RUN_ID)
    assert "See whether &lt;half&gt; the batch &amp; twice" in html


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
